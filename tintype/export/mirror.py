"""Mirror a study or a run between folders and object stores. Only complete files are copied, and every copy is checked.

A checkpoint is complete if all its files have the SHA-256 in its manifest. Other files are compared with the checksums
inside them, and with the SHA-256 that was recorded when they were stored. If a process is still writing a log, only the
log's complete lines are copied. Leases, locks and half-written files are not copied, since they belong to processes
that work in the folder.

Files that the target already has are not copied again, so a stopped mirror resumes. No file is removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tintype.errors import DamagedFileError, UserError
from tintype.export.places import Place
from tintype.runtime.files import damage_in, parse_object, sha256_of

MANIFEST = "manifest.json"
_LAST = ("result.json", "results.json")
"""Files that are copied last, since their content depends on other files."""
_STEP = re.compile(r"step-\d{9}")


@dataclass(frozen=True)
class Unit:
    """The smallest unit that is copied, which is a checkpoint with all its files, or one other file."""

    names: tuple[str, ...]
    bytes: int
    folder: str = ""
    """The checkpoint's folder; empty if the unit is a single file."""

    @property
    def name(self) -> str:
        return self.folder or self.names[0]


@dataclass
class Mirrored:
    """Counts of the files that a call of `mirror` copied, found in the target, or left out."""

    copied: int = 0
    copied_bytes: int = 0
    there: int = 0
    gone: int = 0
    """Number of units that vanished from the source during the copy. For example, training removes old checkpoints."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Units that were not copied, each with the reason."""


def units_of(sizes: Mapping[str, int]) -> list[Unit]:
    """Return the units to copy, in order.

    Logs come after checkpoints, which record the number of log lines. A checkpoint without a manifest is left out.
    """
    folders = {_parent(name) for name in sizes if name.endswith(f"/{MANIFEST}")}
    found = []
    for folder in sorted(folders):
        names = [name for name in sizes if _parent(name) == folder and name != f"{folder}/{MANIFEST}"]
        names = [*sorted(names), f"{folder}/{MANIFEST}"]
        found.append(Unit(tuple(names), sum(sizes[name] for name in names), folder))
    loose = [name for name in sizes if _parent(name) not in folders and not _is_in_checkpoint(name)]
    loose.sort(key=lambda name: (Path(name).name in _LAST, -name.count("/"), name))
    return found + [Unit((name,), sizes[name]) for name in loose]


def mirror(source: Place, target: Place, on_files: Callable[[int, int], None] = lambda done, total: None) -> Mirrored:
    """Copy the files that the target lacks. `on_files` gets the number of finished files, and of all files."""
    units = units_of(source.sizes())
    if not units:
        raise UserError(f"{source.address} has no files to copy", "give the folder of a study or a run")
    counts, done, total = Mirrored(), 0, sum(len(unit.names) for unit in units)
    with target.writing() as scratch:
        target.sizes()  # an object store then reads its index
        for unit in units:
            on_files(done, total)
            with TemporaryDirectory(dir=scratch) as place:
                try:
                    _copy(unit, source, target, Path(place), counts)
                except FileNotFoundError:
                    counts.gone += 1
                except DamagedFileError as error:
                    counts.damaged[unit.name] = str(error)
            done += len(unit.names)
        on_files(done, total)
    return counts


def _copy(unit: Unit, source: Place, target: Place, scratch: Path, counts: Mirrored) -> None:
    """Copy a unit's missing files, after all of them were fetched and checked."""
    wanted = {name: source.recorded(name) for name in unit.names} | _named(unit, source, scratch)
    content: dict[str, tuple[Path, str]] = {}
    for name in unit.names:
        there = target.present(name)
        if there and there == wanted[name]:
            continue
        path, digest = _fetch(name, wanted[name], source, target, unit, scratch)
        if there != digest:
            content[name] = path, digest
    anew = unit.folder if f"{unit.folder}/{MANIFEST}" in content else ""
    if anew and target.moves:  # a checkpoint's folder is renamed as a whole, so it needs all files
        content = {
            name: content.get(name) or _fetch(name, wanted[name], source, target, unit, scratch) for name in unit.names
        }
    counts.copied += len(content)
    counts.copied_bytes += sum(path.stat().st_size for path, _ in content.values())
    counts.there += len(unit.names) - len(content)
    if content:
        target.write(content, anew)


def _named(unit: Unit, source: Place, scratch: Path) -> dict[str, str]:
    if not unit.folder:
        return {}
    copy = scratch / "named"
    source.fetch(f"{unit.folder}/{MANIFEST}", copy)
    try:
        named: Any = parse_object(copy.read_bytes())["sha256"]
        found = {f"{unit.folder}/{name}": str(digest) for name, digest in named.items()}
    except (ValueError, KeyError, AttributeError):
        raise DamagedFileError(f"{MANIFEST} does not list the files") from None
    if missing := sorted(set(found) - set(unit.names)):
        raise DamagedFileError(f"{Path(missing[0]).name} is missing")
    return found


def _fetch(name: str, wanted: str, source: Place, target: Place, unit: Unit, scratch: Path) -> tuple[Path, str]:
    """Return the path of a checked local copy of a file, and its SHA-256.

    A local checkpoint file is used in place, since files of a checkpoint never change.
    """
    path = source.in_place(name) if unit.folder and not target.moves else None
    if path is None:
        path = scratch / Path(name).name
        source.fetch(name, path)
        if path.suffix == ".jsonl":
            _cut_last_line(path)
    digest = sha256_of(path)
    if wanted and digest != wanted:
        raise DamagedFileError(f"{path.name} does not match its recorded SHA-256")
    if damage := damage_in(path):
        raise DamagedFileError(f"{path.name}: {damage}")
    return path, digest


def _cut_last_line(path: Path) -> None:
    """Remove the last line if it is incomplete, since a process may still be writing it."""
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _is_in_checkpoint(name: str) -> bool:
    return _STEP.fullmatch(_parent(name).rpartition("/")[2]) is not None
