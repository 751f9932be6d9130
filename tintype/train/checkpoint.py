"""Atomic checkpoints: complete or absent.

A checkpoint is written to a temporary folder with a SHA-256 for each file, flushed, and renamed to its final path.
Older checkpoints are deleted only after that. The loader tries checkpoints from the newest to the oldest, verifies
each, and moves damaged checkpoints aside. A checkpoint contains only safetensors and JSON files, so loading never
executes code. A checkpoint also contains copies of the run's small files (`records`) and the number of lines in the
run's logs. The manifest contains the SHA-256 of the other files and the checkpoint's seal. A checkpoint of a different
run or step counts as damaged.

The tensors are in a single file, or in one file for each rank that holds shards (`shards`). Any number of ranks can
load either form.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tintype.errors import DamagedFileError, UserError
from tintype.runtime import fault
from tintype.runtime.dist import ALONE, World
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import (
    damaged,
    flush,
    following_umask,
    read_checked,
    remove_paths,
    set_aside,
    sha256_of,
    write_checked,
)
from tintype.runtime.layout import is_sharded
from tintype.runtime.leases import LostLeaseError
from tintype.train.shards import read_shards, whole_place, write_shards
from tintype.train.state import TrainState
from tintype.wording import again

FORMAT = 1
_TENSORS, _SCALARS, _MANIFEST = "state.safetensors", "state.json", "manifest.json"
_RECORDS = "records.json"
"""File of the records. The manifest only states whether this file exists, since the file has its own checksum."""
_WRITING = ".writing-"


class DamagedError(Exception):
    """Raised for a checkpoint that is damaged or belongs to a different run or step."""


def save(
    folder: Path, state: TrainState, keep: int, world: World = ALONE, records: Mapping[str, Any] | None = None
) -> Path:
    """Commit the state and `records` as `folder/step-N`, and delete all but the newest `keep` checkpoints."""
    return commit(folder, state.step, state.tensors(), state.scalars(), world=world, records=records, keep=keep)


def commit(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
    *,
    what: str = "checkpoint",
    stage: str = "save",
    world: World = ALONE,
    records: Mapping[str, Any] | None = None,
    keep: int | None = None,
    fence: Fence = OPEN,
) -> Path:
    """Write `folder/step-N` atomically, then delete old checkpoints. Every rank must call this function.

    `what` is the checkpoint's name in messages, and `stage` in fault points. The first rank writes all replicated
    tensors and renames the folder, unless `fence` stops it.
    """
    fault.point(f"{stage}.begin")
    target = folder_of(folder, step)
    temporary = folder / f"{_WRITING}{target.name}{fence.suffix}"

    @contextmanager
    def stage_of_all() -> Iterator[None]:
        """Raise an error of any rank on all ranks. After the context, all ranks see the files that one rank wrote."""
        with world.fail_together():
            try:
                yield
            except (OSError, SafetensorError) as error:
                kept = steps(folder)
                intact = f"the {what} of step {kept[-1]} is intact" if kept else f"no {what} was written before"
                raise UserError(
                    f"cannot write the {what} of step {step} to {folder}: {error}; {intact}",
                    f"free some disk space or fix the permissions, then {again()} again to resume",
                ) from error

    try:
        with stage_of_all():
            if world.leads:
                remove_leftovers(folder, fence, fence.suffix)
                temporary.mkdir(parents=True)
        with stage_of_all():
            _write_tensors(temporary, tensors, world)
            fault.point(f"{stage}.state")
            if world.leads:
                content = json.dumps({"format": FORMAT, "scalars": dict(scalars)}, indent=1)
                (temporary / _SCALARS).write_text(content, encoding="utf-8")
        with stage_of_all():
            mine = _flushed_digests(temporary, world)
        digests = {name: digest for some in world.all_gather(mine) for name, digest in some.items()}
        with stage_of_all():
            fault.point(f"{stage}.manifest")
            if world.leads:
                manifest = {"sha256": digests, "records": records is not None}
                write_checked(temporary / _MANIFEST, manifest, FORMAT, place=target / _MANIFEST)
                flush(temporary / _MANIFEST)
                if records is not None:
                    write_checked(temporary / _RECORDS, records, place=target / _RECORDS)
                    flush(temporary / _RECORDS)
                flush(temporary)
                fault.point(f"{stage}.rename")
                fence.check()
                temporary.rename(target)
                flush(folder)
    except (UserError, LostLeaseError):
        if world.leads:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if keep is not None:
        fault.point(f"{stage}.prune")
        for old in steps(folder)[:-keep] if world.leads else ():
            shutil.rmtree(folder_of(folder, old), ignore_errors=True)  # the next save prunes what could not be removed
    return target


def restore(folder: Path, state: TrainState, on_damage: Callable[[Path, str], None], world: World = ALONE) -> bool:
    """Load the newest intact checkpoint into the state; move damaged checkpoints aside and report them."""
    for step in reversed(world.all_gather(steps(folder))[0]):
        path = folder_of(folder, step)
        if damage := _damage(path, world):
            with world.fail_together():
                if world.leads:
                    on_damage(set_aside(path), damage)
            continue
        stored, _ = verify(path, ())
        state.load(_content(path, state), stored["scalars"])
        return True
    return False


def _damage(path: Path, world: World) -> str:
    """Describe the damage of a checkpoint; '' if there is none. Each rank checks its share of the files."""
    found = ""
    with world.fail_together():
        try:
            verify(path, world.shard(sorted(_digests(path))))
        except DamagedError as error:
            found = str(error)
    return next(filter(None, world.all_gather(found)), "")


def read(path: Path, state: TrainState | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the content of a checkpoint after verification.

    With `state`, tensors are sharded like the tensors of `state`, and every rank must call this function.
    """
    stored, _ = verify(path)
    return _content(path, state), stored["scalars"]


def _content(path: Path, state: TrainState | None) -> dict[str, Tensor]:
    if state is None or not any(map(is_sharded, state.parameters)):
        in_one = _TENSORS in _digests(path)
        return load_file(path / _TENSORS) if in_one else read_shards(path, whole_place, alone=True)
    return read_shards(path, state.places(), alone=False)


def describe(path: Path) -> tuple[dict[str, Any], str]:
    """Return the scalars after verification, and the recorded SHA-256 of the tensors. The tensors are not read."""
    stored, wanted = verify(path, [_SCALARS])
    if _TENSORS not in wanted:
        raise DamagedError(f"{_MANIFEST} does not list {_TENSORS}")
    return stored["scalars"], wanted[_TENSORS]


def records(folder: Path, remake: str) -> dict[str, Any]:
    """Return the run's small files and its log lengths from the newest checkpoint; raise if they are damaged."""
    for _, found in _every_records(folder, remake):
        if isinstance(found, DamagedFileError):
            raise found
        return found
    return {}


def whole_records(folder: Path) -> dict[str, Any]:
    """Return the records of the newest checkpoint whose records are intact."""
    every = (found for _, found in _every_records(folder))
    return next((found for found in every if not isinstance(found, DamagedFileError)), {})


def change_records(
    folder: Path, change: Callable[[int, dict[str, Any] | DamagedFileError], dict[str, Any] | None]
) -> None:
    """Replace each checkpoint's records by `change(step, records)`, which gets the damage of damaged records.

    If `change` returns None, the records do not change.
    """
    for step, found in list(_every_records(folder)):
        if (changed := change(step, found)) is not None:
            write_checked(folder_of(folder, step) / _RECORDS, changed)


def _every_records(
    folder: Path, remake: str = "the one before is used"
) -> Iterator[tuple[int, dict[str, Any] | DamagedFileError]]:
    """Yield the step and the records (or their damage) of each checkpoint with an intact manifest, newest first."""
    for step in reversed(steps(folder)):
        path = folder_of(folder, step)
        try:
            if not _manifest(path).get("records"):
                continue
            yield step, read_checked(path / _RECORDS, remake) or damaged(path / _RECORDS, "it is missing", remake)
        except DamagedError:
            continue
        except DamagedFileError as error:
            yield step, error


def newest_manifest(folder: Path) -> list[Path]:
    """Return the manifest of the newest checkpoint; empty if there is no checkpoint."""
    return [folder_of(folder, step) / _MANIFEST for step in steps(folder)[-1:]]


def tensors_file(path: Path) -> Path:
    return path / _TENSORS


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest; raise if it belongs to a different run or step."""
    older = "finish or export the run with the version that wrote it, which environment.json names"
    try:
        if stored := read_checked(path / _MANIFEST, older, FORMAT):
            return stored
    except DamagedFileError as error:
        raise DamagedError(f"{_MANIFEST}: {error.reason}") from error
    raise DamagedError(f"{_MANIFEST} is missing")


def _digests(path: Path) -> dict[str, str]:
    wanted: dict[str, str] = _manifest(path).get("sha256", {})
    names = set(wanted) - {_SCALARS} if isinstance(wanted, dict) else set()
    shards = {name for name in names if Path(name).name == name and fnmatch(name, "shard-*.safetensors")}
    if _SCALARS not in wanted or not names or names - shards - {_TENSORS}:
        raise DamagedError(f"{_MANIFEST} does not list the files")
    return wanted


def verify(path: Path, names: Sequence[str] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Verify the checksums of the named files or of all files; return `state.json` and the recorded checksums."""
    wanted = _digests(path)
    there = {file.name for file in path.glob("*.safetensors")}
    if strangers := there - set(wanted):  # the loader would read these files too
        raise DamagedError(f"the checkpoint has files that {_MANIFEST} does not list: {', '.join(sorted(strangers))}")
    try:
        for name in sorted(wanted) if names is None else names:
            if sha256_of(path / name) != wanted[name]:
                raise DamagedError(f"{name} does not match its checksum")
        stored: dict[str, Any] = json.loads((path / _SCALARS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error
    return stored, wanted


def steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, oldest first."""
    return sorted(int(entry.name.removeprefix("step-")) for entry in folder.glob("step-" + "[0-9]" * 9))


def newest_whole_step(folder: Path, tensors: bool = True) -> int | None:
    """Return the newest checkpoint's step; None if it is damaged. With `tensors`, the tensors are verified too."""
    found = steps(folder)
    try:
        return found[-1] if found and verify(folder_of(folder, found[-1]), None if tensors else [_SCALARS]) else None
    except DamagedError:
        return None


def tidy(folder: Path, world: World, fence: Fence = OPEN) -> int | None:
    """Remove leftovers of killed processes; return the newest checkpoint's step to all ranks (None if damaged)."""
    found = None
    with world.fail_together():
        if world.leads:
            remove_leftovers(folder, fence)
            found = newest_whole_step(folder)
    return world.broadcast(found)  # type: ignore[no-any-return]


def remove_leftovers(folder: Path, fence: Fence = OPEN, suffix: str = "") -> None:
    """Remove unfinished saves of processes that died; with a `suffix`, only the saves of one lease holder."""
    leftovers = list(folder.glob(f"{_WRITING}*{suffix}"))
    fence.check()  # so that files of a later lease holder are not removed
    remove_paths(leftovers)


def remove_after(folder: Path, step: int, fence: Fence = OPEN) -> None:
    """Remove the checkpoints of later steps, after renaming each, so that a kill leaves none partly removed."""
    remove_leftovers(folder, fence, fence.suffix)
    for later in [one for one in steps(folder) if one > step]:
        path = folder_of(folder, later)
        fence.check()
        path.rename(path.with_name(f"{_WRITING}{path.name}{fence.suffix}"))
    remove_leftovers(folder, fence, fence.suffix)


def folder_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}"


def _write_tensors(temporary: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    if any(map(is_sharded, tensors.values())):
        write_shards(temporary, tensors, world.group if world.in_thread else None)
    elif world.leads:
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with following_umask(temporary / _TENSORS):
            save_file(whole, temporary / _TENSORS)


def _flushed_digests(temporary: Path, world: World) -> dict[str, str]:
    """Flush this rank's share of the files to disk, and return the SHA-256 of each file."""
    names = world.shard(sorted(file.name for file in temporary.iterdir()))
    for name in names:
        flush(temporary / name)
    return {name: sha256_of(temporary / name) for name in names}
