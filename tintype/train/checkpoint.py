"""Checkpoints that are whole or absent.

Written to a temporary folder, with a SHA-256 for each file, flushed, and renamed into place; only then are older ones
pruned. The loader goes from the newest to the oldest, checks each, and moves a damaged one aside. Two kinds of file
only, safetensors and JSON: loading never runs code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tintype.errors import UserError
from tintype.train import fault
from tintype.train.state import TrainState

FORMAT = 1
_TENSORS, _SCALARS, _MANIFEST = "state.safetensors", "state.json", "manifest.json"
_WRITING = ".writing-"


class DamagedError(Exception):
    """A checkpoint that is not what was written."""


def save(folder: Path, state: TrainState, keep: int) -> Path:
    """Commits the state as `folder/step-N` and prunes all but the newest `keep`."""
    target = commit(folder, state.step, state.tensors(), state.scalars(), what="checkpoint", stage="save")
    fault.point("save.prune")
    for step in steps(folder)[:-keep]:
        shutil.rmtree(folder_of(folder, step), ignore_errors=True)  # what stays is pruned by the next save
    return target


def commit(
    folder: Path, step: int, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], *, what: str, stage: str
) -> Path:
    """Writes `folder/step-N` whole or not at all. `what` is its name in messages, `stage` that of its fault points."""
    fault.point(f"{stage}.begin")
    target = folder_of(folder, step)
    temporary = folder / f"{_WRITING}{target.name}"
    try:
        remove_leftovers(folder)
        temporary.mkdir(parents=True)
        _write_files(temporary, tensors, scalars, stage)
        fault.point(f"{stage}.rename")
        temporary.rename(target)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        kept = steps(folder)
        intact = f"the {what} of step {kept[-1]} is intact" if kept else f"no {what} was written before"
        raise UserError(
            f"cannot write the {what} of step {step} to {folder}: {error}; {intact}. "
            "Make room or mend the permissions, then run the same command again to go on"
        ) from error
    return target


def restore(folder: Path, state: TrainState, on_damage: Callable[[Path, str], None]) -> bool:
    """Loads the newest good checkpoint into the state; damaged ones are moved aside and reported."""
    for step in reversed(steps(folder)):
        path = folder_of(folder, step)
        try:
            tensors, scalars = read(path)
        except DamagedError as error:
            on_damage(_quarantine(path), str(error))
            continue
        state.load(tensors, scalars)
        return True
    return False


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The verified content of one checkpoint."""
    scalars = verify(path)["scalars"]
    return load_file(path / _TENSORS), scalars


def verify(path: Path) -> dict[str, Any]:
    """What `state.json` holds, after all checksums were found right."""
    return _verify(path, (_TENSORS, _SCALARS))[0]


def describe(path: Path) -> tuple[dict[str, Any], str]:
    """The verified scalars, and the SHA-256 that the tensors should have: quick, since they are not read."""
    stored, wanted = _verify(path, (_SCALARS,))
    return stored["scalars"], wanted[_TENSORS]


def tensors_file(path: Path) -> Path:
    return path / _TENSORS


def _verify(path: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """What `state.json` and the manifest hold, after the checksums of the named files were found right."""
    try:
        wanted: dict[str, str] = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["sha256"]
        if set(wanted) != {_TENSORS, _SCALARS}:
            raise DamagedError(f"{_MANIFEST} does not name the files")
        for name in names:
            if _digest(path / name) != wanted[name]:
                raise DamagedError(f"{name} does not match its checksum")
        stored: dict[str, Any] = json.loads((path / _SCALARS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error
    if stored["format"] != FORMAT:
        raise UserError(
            f"{path} was written in format {stored['format']}; this version of tintype reads format {FORMAT}"
        )
    return stored, wanted


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, oldest first."""
    return sorted(int(entry.name.removeprefix("step-")) for entry in folder.glob("step-" + "[0-9]" * 9))


def newest_whole_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, if nothing of it is damaged."""
    found = steps(folder)
    try:
        return found[-1] if found and verify(folder_of(folder, found[-1])) else None
    except DamagedError:
        return None


def remove_leftovers(folder: Path) -> None:
    """Removes what a process that died while saving left behind."""
    for leftover in folder.glob(f"{_WRITING}*"):
        shutil.rmtree(leftover)


def remove_after(folder: Path, step: int) -> None:
    """Removes what was written of later steps. Each goes at once: what is half removed is a leftover."""
    remove_leftovers(folder)
    for later in [one for one in steps(folder) if one > step]:
        path = folder_of(folder, later)
        path.rename(path.with_name(f"{_WRITING}{path.name}"))
    remove_leftovers(folder)


def folder_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}"


def _write_files(temporary: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], stage: str) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary / _TENSORS)
    fault.point(f"{stage}.state")
    _write_json(temporary / _SCALARS, {"format": FORMAT, "scalars": dict(scalars)})
    digests = {name: _digest(temporary / name) for name in (_TENSORS, _SCALARS)}
    fault.point(f"{stage}.manifest")
    _write_json(temporary / _MANIFEST, {"sha256": digests})
    for name in (_TENSORS, _SCALARS, _MANIFEST):
        _flush(temporary / name)
    _flush(temporary)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quarantine(path: Path) -> Path:
    number = 0
    while (target := path.with_name(f"damaged-{number}-{path.name}")).exists():
        number += 1
    return path.rename(target)
