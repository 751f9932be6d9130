"""Small run folders of every format of files that runs are made of, to be read by all later versions.

`python -m tests.stored_runs.write` writes the next set (`tests/stored_runs/SET/KIND`). Run it when a format changes:
tests/fault/test_stored_runs.py says so. From 0.1.0 on, never change or remove a set: it stands for the runs that
people have.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.ranks import run_ranks
from tests.stopping import train_to
from tests.tiny import tiny_plan
from tintype import __version__
from tintype.config.strict import parse, read_yaml
from tintype.evaluation import results
from tintype.evaluation import run as scoring
from tintype.evaluation.protocol import Protocol
from tintype.export import trained
from tintype.export.model_folder import export_model
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.plan import Plan
from tintype.runtime.files import read_json, write_json
from tintype.runtime.machine import environment
from tintype.sampling.generate import SamplerSettings, generate
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.load import load_run
from tintype.train.session import build_session
from tintype.train.start import identity
from tintype.train.state import new_state

ROOT = Path(__file__).parent
SMALL = (
    "model={depth: 1, width: 8, heads: 1, mlp_ratio: 1.0, patch: 4}",
    "text={width: 8, depth: 1, heads: 1, buckets: 16, max_tokens: 8}",
    "train.steps=4",
)
KINDS = {
    "adamw": ([], []),
    "ema": ([], ["ema"]),
    "power-ema": ([], ["power-ema:snapshots=2"]),
    "muon": ([], ["muon"]),
    "sharded": (["run.distribution.kind=fsdp"], []),
}
"""Runs that were stopped at step 2 of 4: settings and techniques. That of `sharded` is by two ranks."""
SCORED, EXPORT, EXPECTED, FORMATS = "ema", "export", "expected.json", "formats.json"
STEP = 2
PROTOCOL = parse(
    Protocol,
    read_yaml("{count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}", "p"),
)
SAMPLER = SamplerSettings(steps=4, guidance=ClassifierFreeSettings(scale=2.0))


def current_formats() -> dict[str, int]:
    """The numbers that this version writes."""
    return {
        "checkpoint": checkpoint.FORMAT,
        "result": results.FORMAT,
        "export": trained.FORMAT,
    }


def sets() -> list[Path]:
    """The stored sets, oldest first."""
    return sorted((path for path in ROOT.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def loaded(path: Path) -> tuple[str, list[int]]:
    """The identity of the weights that sampling loads, and the bytes of an image made with them."""
    parts, _ = load_run(path)
    image = generate(parts, ["a red ball"], SAMPLER, seed=0, size_px=16)
    return identity(parts.modules.state_dict()), [int(value) for value in image.flatten()]


def write_set(folder: Path, changed: set[str]) -> None:
    """Write what has to do with the formats that changed."""
    for kind in KINDS if "checkpoint" in changed else [SCORED]:
        if kind == "sharded":
            run_ranks(2, write_run, str(folder), kind)
        else:
            write_run(str(folder), kind)
        _expect(folder / kind)
    scoring.evaluate(folder / SCORED, PROTOCOL)
    shutil.rmtree(folder / SCORED / "evaluation" / "samples")
    if changed - {"result"}:
        export_model(folder / SCORED, folder / EXPORT)
        (folder / EXPORT / "README.md").unlink()
        _expect(folder / EXPORT)
    write_json(folder / FORMATS, {**current_formats(), "tintype": __version__})


def write_run(folder: str, kind: str) -> None:
    """Train from weights that are all random, so that each matters, to the middle of the run."""
    settings, techniques = KINDS[kind]
    plan = tiny_plan(*SMALL, *settings, techniques=techniques)
    path = Path(folder) / kind
    _begin_anywhere(path, plan)
    with patch("tintype.train.folder.environment", _any_machine):
        train_to(plan, path, STEP)
    if (path / "environment.json").exists():
        shutil.rmtree(checkpoint.folder_of(path / "checkpoints", 0), ignore_errors=True)
        (path / ".lock").unlink(missing_ok=True)


def _begin_anywhere(path: Path, plan: Plan) -> None:
    from tintype.runtime.dist import current

    world = current()
    parts = build_session(plan.model_copy(update={"run": tiny_plan().run}))
    generator = torch.Generator().manual_seed(0)
    for parameter in parts.modules.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    folder = RunFolder(path, world)
    with folder.claim(plan):
        checkpoint.save(folder.checkpoints, new_state(parts), keep=2, world=world)


def _any_machine(device: torch.device) -> dict[str, Any]:
    """Return what a run notes of its machine, without what only this machine has."""
    kept = {key: value for key, value in environment(device).items() if key != "commit"}
    return {**kept, "system": "", "device": ""}


def _expect(path: Path) -> None:
    weights, image = loaded(path)
    content = {"weights": weights, "image": image}
    (path.parent / f"{path.name}.{EXPECTED}").write_text(json.dumps(content) + "\n", encoding="utf-8")


def main() -> None:
    number, stored = len(sets()) + 1, read_json(sets()[-1] / FORMATS) if sets() else {}
    changed = {name for name, format in current_formats().items() if format != stored.get(name)}
    if not changed:
        raise SystemExit(f"nothing to do: {sets()[-1]} has the formats of this version")
    with tempfile.TemporaryDirectory() as temporary:
        write_set(Path(temporary) / "set", changed)
        shutil.copytree(Path(temporary) / "set", ROOT / str(number))
    print(f"wrote {ROOT / str(number)}")


if __name__ == "__main__":
    main()
