"""Change files of a run or study and give them the right checksum: for tests of what else a reader refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from tintype.plan import Plan
from tintype.runtime import files


def write_plan(folder: Path, plan: Plan) -> None:
    """Make a folder that of a run, before other files of the run are written there."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_sealed(folder / files.PLAN, plan.to_yaml(), run=plan.hash)


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Let `change` alter the content of a JSON file."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    content.pop("seal", None)
    change(content)
    files.write_checked(path, content, content.get("format", 1))


def edit_lines(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let `change` return each line of a log anew."""
    files.write_lines(path, [change(line) for line in files.read_lines(path)])


def edit_text(path: Path, old: str, new: str) -> None:
    """Replace words of a plan or study file."""
    text = files.without_seal(path.read_text())
    assert old in text
    files.write_sealed(path, text.replace(old, new))


def without_seals(folder: Path, besides: Collection[str] = ()) -> None:
    """Write the files of a run or a study as an earlier version did, `besides` some: with checksums, without seals."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in besides]
    for path in sorted(found, key=lambda path: path.name == files.PLAN):  # the others are read by it
        if path.suffix == ".jsonl":
            path.write_text(files.lines_text(files.read_lines(path), None))
        elif path.suffix in (".yaml", ".txt"):
            path.write_text(files.without_seal(path.read_text()))
        elif path.suffix == ".safetensors" and path.parent.parent.name == "samples":
            with safe_open(path, "pt") as shard:
                images, about = shard.get_tensor("images"), dict(shard.metadata())
            about.pop(files.SEAL, None)
            path.write_bytes(save({"images": images}, metadata=about))
        elif path.suffix == ".json" and path.name not in ("state.json", "tintype.json"):
            content = json.loads(path.read_text())
            for key in (files.SEAL, "checksum", "records", "beside"):
                content.pop(key, None)
            bare = path.name in ("manifest.json", "samples.json")
            text = json.dumps(content) if bare else files.checked_text(content, content["format"], None)
            path.write_text(text)
    if (about_file := folder / "tintype.json").is_file():
        export = json.loads(about_file.read_text())
        export["sha256"] = {name: files.sha256_of(folder / name) for name in export["sha256"]}
        about_file.write_text(json.dumps(export))
