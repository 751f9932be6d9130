"""Read WebDataset tars. Members whose names are equal up to the first dot form a record.

Records are in the order of their first members. The part of the name after this dot gives a member's role. An image
suffix marks the image. `txt` or `NAME.txt` is the column `txt` or `NAME`. `json` is an object whose keys are columns,
and its strings can be captions. Nothing is unpacked to disk. Links, devices, paths that lead out of the tar, and
records without an image become items with a problem.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from tintype.data import tar_file
from tintype.data.folders import files_in, leads_out
from tintype.data.importers.beside import Member, Sample, SideImporter
from tintype.data.importers.importer import Reading


def open_webdataset(path: Path, reading: Reading) -> SideImporter | None:
    """Open a tar, or a folder with tars at any depth, sorted by name."""
    files = files_in(path, (".tar",), reading.follow_links)
    samples = [sample for file in files for sample in _index(file)]
    return SideImporter(files[0], files, samples, reading.limits.bytes) if files else None


def _index(path: Path) -> list[Sample]:
    """Group a tar's members into records. Only the tar's headers are read."""
    samples: dict[str, Sample] = {}
    refused: list[Sample] = []
    for member in tar_file.members(path):
        if reason := _refusal(member):
            refused.append(Sample(f"{path.name}:{member.name}", problem=reason))
        elif not any(part.startswith(".") and part != "." for part in member.name.split("/")):
            _take(samples, path, member)
    for sample in samples.values():
        if sample.image and not sample.problem:
            sample.source += f".{sample.image}"
    return [*samples.values(), *refused]


def _take(samples: dict[str, Sample], path: Path, member: tarfile.TarInfo) -> None:
    name = member.name.removeprefix("./")
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    key, ending = f"{folder}{slash}{stem}", ending.lower()
    sample = samples.setdefault(key, Sample(f"{path.name}:{key}"))
    if ending in sample.members:
        sample.problem = f"the sample has two members .{ending}"
    sample.members[ending] = Member(ending, path, member.offset_data, member.size)


def _refusal(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"the member is a link to {member.linkname}, and links are not followed"
    if not tar_file.is_plain(member):
        return "the member is not a regular file (but a device, a pipe, or sparse)"
    return "the path of the member leads out of the tar file" if leads_out(member.name) else ""
