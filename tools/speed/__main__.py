"""`python -m tools.speed OUT`: run each measurement in a process of its own, and write its JSON to the folder OUT.

Measurements that no longer fit into the time are left out and named; `--only` makes them in a second call.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.tiny import TINY
from tintype.runtime.files import Json, write_json

ROOT = Path(__file__).parents[2]
_LEAST_S = 20.0
"""A measurement does not begin with less time left."""
_TINY_STUDY = """
question: How fast is it?
recipe: plan.yaml
set: [train.steps=2]
seeds: [7]
arms: [{techniques: [ema]}]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


@dataclass(frozen=True)
class Measurement:
    """Arguments of `python -m`, in which {out} is the measurement's JSON file, and the seconds that it may take."""

    arguments: tuple[str, ...]
    most_s: float


WORDS = "text={kind: words, width: 512, depth: 4, heads: 8, max_tokens: 80}"
"""A text encoder that needs no weights of others."""


@dataclass(frozen=True)
class Work:
    """Options of the commands, which set the amount of work."""

    mini: tuple[str, ...]
    large: tuple[str, ...]
    study: tuple[str, ...]
    kernels: tuple[str, ...]
    tests: tuple[str, ...]


WORK = Work(
    mini=("--recipe", "mini", "--batch", "128,256", "--steps", "40"),
    large=(
        *("--recipe", "prx-jit-1024", "--set", WORDS, "--set", "model.patch=2", "--set", "data.size_px=32"),
        *("--batch", "32", "--steps", "10"),
    ),
    study=("--jobs", "10", "--runs", "20"),
    kernels=(),
    tests=("tests/fault/test_exact.py", "tests/unit/model/test_on_gpu.py", "tests/unit/optim/test_replay.py"),
)


def tiny_work(out: Path) -> Work:
    """Return next to nothing, with a plan and a study that are written to the folder."""
    (out / "plan.yaml").write_text(TINY)
    (out / "study.yaml").write_text(_TINY_STUDY)
    plan = ("--recipe", str(out / "plan.yaml"), "--batch", "4", "--steps", "2")
    study = (str(out / "study.yaml"), "--runs", "1")
    return Work(plan, plan, study, ("--tiny",), ("tests/unit/runtime/test_determinism.py",))


def measurements(out: Path, work: Work) -> dict[str, Measurement]:
    """Return the measurements by name, the most important first."""
    exact, inexact = (("--set", f"run.deterministic={value}") for value in ("true", "false"))
    pytest = ("pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(out / "exact.xml"), *work.tests)
    bench = ("tintype", "bench", "--out", "{out}")
    return {
        "exact": Measurement(pytest, 180),
        "mini": Measurement((*bench, *work.mini, *inexact), 90),
        "mini-deterministic": Measurement((*bench, *work.mini, *exact), 90),
        "mini-again": Measurement((*bench, *work.mini, *inexact), 90),
        "training": Measurement(("tools.speed.kernels", "training", "{out}", *work.kernels), 330),
        "optimizer": Measurement(("tools.speed.kernels", "optimizer", "{out}", *work.kernels), 90),
        "sampling": Measurement(("tools.speed.kernels", "sampling", "{out}", *work.kernels), 120),
        "study": Measurement((*bench, "--study", *work.study), 420),
        "large": Measurement((*bench, *work.large, *inexact), 120),
        "large-deterministic": Measurement((*bench, *work.large, *exact), 120),
    }


def run(name: str, measurement: Measurement, out: Path, left_s: float) -> dict[str, Json]:
    """Run one measurement; its output goes to a log beside its JSON."""
    file, began_s = out / f"{name}.json", time.monotonic()
    command = [sys.executable, "-m", *(argument.format(out=file) for argument in measurement.arguments)]
    # torch reads it once in a process; the same for all, so that exact steps differ from others in nothing else.
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with (out / f"{name}.log").open("w") as log:
        try:
            limit_s = min(left_s, measurement.most_s)
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=limit_s
            ).returncode
        except subprocess.TimeoutExpired:
            return {"failed": "out of time", "seconds": time.monotonic() - began_s}
    if (report := out / f"{name}.xml").exists():
        write_json(file, tests_in(report))
    return {"exit_code": ended, "seconds": time.monotonic() - began_s, "command": " ".join(measurement.arguments)}


def tests_in(report: Path) -> dict[str, Json]:
    """Return the outcome of each test by its name."""
    found: dict[str, Json] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        found[str(case.get("name"))] = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.speed", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the JSON files and logs")
    parser.add_argument("--only", nargs="*", help="names of measurements")
    parser.add_argument("--minutes", type=float, default=9.5, help="time for all of them")
    parser.add_argument("--tiny", action="store_true", help="measure next to nothing, on any device: for tests")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    ends_s, summary = time.monotonic() + 60 * options.minutes, dict[str, Json]()
    for name, measurement in measurements(out, tiny_work(out) if options.tiny else WORK).items():
        if options.only and name not in options.only:
            continue
        left_s = ends_s - time.monotonic()
        summary[name] = run(name, measurement, out, left_s) if left_s > _LEAST_S else {"failed": "no time left"}
        print(name, summary[name], flush=True)
        write_json(out / "summary.json", summary)
    return int(any("failed" in one or one["exit_code"] for one in summary.values() if isinstance(one, dict)))


if __name__ == "__main__":
    sys.exit(main())
