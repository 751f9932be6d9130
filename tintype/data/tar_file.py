"""Read the members of foreign tars. Nothing is unpacked to disk."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from tintype.errors import UserError, as_user_error

_BLOCK = 512
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


def members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members except folders, in the order of the file; raise if the tar is incomplete.

    Python's reader alone would accept a tar that is truncated between members, and would stop silently at a damaged
    header.
    """
    size = path.stat().st_size
    explained = as_user_error((tarfile.TarError, OSError), f"{path} cannot be read as a tar file")
    with explained, path.open("rb") as file, tarfile.open(path, "r:") as tar:
        file.seek(max(0, size - _BLOCK))
        if size % _BLOCK or any(file.read()):
            raise UserError(
                f"{path} cannot be read as a tar file: the file is truncated, compressed, or has another format"
            )
        for member in tar:
            if is_plain(member) and member.offset_data + member.size > size:
                raise UserError(f"{path} cannot be read as a tar file: the file is truncated at {member.name}")
            if not member.isdir():
                yield member
        file.seek(tar.offset)
        while block := file.read(1 << 20):
            if any(block):
                raise UserError(
                    f"{path} cannot be read as a tar file: at byte {tar.offset:,} the file has data after the "
                    f"archive's end or after a damaged header",
                    "create the file again; if several tar files were joined into one, give a folder with the "
                    "separate files",
                )


def is_plain(member: tarfile.TarInfo) -> bool:
    """Return whether a member's bytes are in the tar. Links, devices and sparse files are not regular files."""
    return member.type in _PLAIN and not member.issparse()


def content(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)
