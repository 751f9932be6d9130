"""Files that are whole or absent: written beside their place, then renamed into it.

Files that a training or a verdict depends on carry a checksum, which is checked on every read:

- JSON (`write_checked`): the keys `format` and `checksum`, the SHA-256 of all other content;
- JSON lines (`append_line`): each line has its number and a checksum of its own, so that lost, changed and exchanged
  lines are noticed and the others stay of use;
- text that people edit copies of (`write_sealed`): a first line that is a comment.

A checksum finds damage and careless edits. It is no signature: a new one beside a changed number is believed. Files of
earlier versions have none; they are read, with a note.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from pydantic import JsonValue
from safetensors import SafetensorError

from tintype.errors import DamagedFileError, UserError
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.host import is_alive, machine, process_name
from tintype.runtime.notes import note_once

Json: TypeAlias = JsonValue
"""A value as JSON holds it."""

_NUMBER, _CHECKSUM, _FORMAT = "line", "checksum", "format"
_SEAL = re.compile(r"# tintype wrote this file; the SHA-256 of the lines below is ([0-9a-f]{64})\n")
_SEAL_WORDS = re.compile("tintype wrote|SHA-256 of")
"""Words of which a damaged first line still has one."""
_WRITING = ".writing-"
"""Between the name of a file and that of the process that writes it."""
_KEPT_DAMAGED = 2
"""Damaged files and folders that are kept aside in one folder, for a look at what happened to them."""


def finite(value: object) -> float | None:
    """Return a number of a file; None for anything else, and for one that is not finite or too large."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # of an integer
        return None
    return number if math.isfinite(number) else None


@contextmanager
def written_beside(path: Path, *, durable: bool = False, fence: Fence = OPEN) -> Iterator[Path]:
    """Yield a path to write a file or folder to, which takes the name `path` at the end. An error leaves nothing.

    Of two processes that write one file, the later wins, unless the `fence` stops it. A `durable` file lies on the disk
    before anything goes on. An error of the disk names the file.
    """
    temporary = path.with_name(f".{path.name}{_WRITING}{process_name()}")
    try:
        _remove(temporary)
        yield temporary
        if durable:
            flush(temporary)
        fence.check()
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
        raise OSError(number or errno.EIO, reason or str(error), str(path)) from error
    finally:
        _remove(temporary)
    if durable:
        flush(path.parent)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder for files that are not whole yet. `remove_unfinished` removes what a kill leaves of it."""
    scratch = folder / f".scratch{_WRITING}{process_name()}"
    _remove(scratch)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        _remove(scratch)


def remove_unfinished(folder: Path, name: str = "*") -> None:
    """Remove what processes of this machine, killed in the middle of `written_beside`, have left in a folder."""
    for path in folder.glob(f".{name}{_WRITING}*"):
        where, _, process = path.name.rpartition(_WRITING)[2].rpartition("-")
        if where in ("", machine()) and process.isdigit() and not is_alive(int(process)):
            _remove(path)


def unfinished_in(folder: Path) -> list[Path]:
    """Return what any process writes, or has left half written, in a folder and those below it."""
    return list(folder.rglob(f".*{_WRITING}*"))


def remove_paths(paths: Collection[Path]) -> None:
    """Remove files and folders that may be gone already."""
    for path in paths:
        with suppress(FileNotFoundError):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, durable: bool = False, fence: Fence = OPEN) -> None:
    with written_beside(path, durable=durable, fence=fence) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, fence: Fence = OPEN) -> None:
    write_bytes(path, text.encode("utf-8"), fence=fence)


def write_json(path: Path, content: Any, fence: Fence = OPEN) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n", fence)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty where there is none."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_checked(path: Path, content: Mapping[str, Any], format: int = 1, fence: Fence = OPEN) -> None:
    """Write JSON with its checksum. The format tells a file whose key `checksum` was damaged from an old file."""
    marked = {_FORMAT: format, **content}
    text = json.dumps({**marked, _CHECKSUM: checksum_of(marked)}, indent=1, ensure_ascii=False)
    write_text(path, text + "\n", fence)


def read_checked(path: Path, remake: str, format: int = 1, earlier: Collection[int | None] = (None,)) -> dict[str, Any]:
    """Return what `write_checked` wrote there, without format and checksum; empty where there is no file.

    `remake` is what to do about a damaged file, as the end of a sentence. Files of `earlier` formats have no checksum.
    """
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = parse_object(path.read_bytes())
    except ValueError as error:
        raise damaged(path, f"it {error}", remake) from None
    wanted, its_format = found.pop(_CHECKSUM, None), found.get(_FORMAT)
    if wanted is None and its_format in earlier:
        note_unchecked(path)
    elif its_format != format and wanted in (None, checksum_of(found)):
        raise UserError(
            f"{path} was written by another version of tintype, in the format {its_format}; this one reads the format "
            f"{format}; {remake}"
        )
    elif wanted != checksum_of(found):
        raise damaged(path, "it does not match its checksum", remake)
    found.pop(_FORMAT, None)
    return found


def parse_object(content: str | bytes) -> dict[str, Json]:
    """Parse a JSON object; raise `ValueError` with what is wrong, which begins with a verb."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("holds no JSON object")
    return found


def read_object(path: Path) -> dict[str, Json]:
    """Read a file that holds a JSON object; raise `ValueError` with what is wrong, which begins with a verb."""
    try:
        return parse_object(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None


def checksum_of(content: Any) -> str:
    """SHA-256 of a JSON value as a reader gets it, however it is laid out."""
    as_read = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def damage_in(path: Path) -> str:
    """Return what the checksums that a file carries say against it; empty for a file that carries none."""
    if path.suffix == ".jsonl":
        return salvage_lines(path).damage
    if path.suffix in (".json", ".yaml", ".txt", ".md"):
        with suppress(UnicodeDecodeError, ValueError):
            text = path.read_bytes().decode("utf-8")
            if (seal := _SEAL.match(text)) is not None:
                sealed = hashlib.sha256(text[seal.end() :].encode()).hexdigest()
                return "" if sealed == seal[1] else "it does not match the checksum in its first line"
            if path.suffix == ".json":
                found = parse_object(text)
                wanted = found.pop(_CHECKSUM, None)
                if wanted is None or wanted == checksum_of(found):
                    return ""
                return "it does not match its checksum"
            return ""
        return "it cannot be read"
    return ""


def damaged(path: Path, reason: str, remake: str) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged ({reason}); {remake}")


def check_sha256(path: Path, wanted: str, remake: str) -> None:
    """Refuse a file that is missing, or whose SHA-256 does not begin as wanted."""
    if not path.is_file():
        raise damaged(path, "it is missing", remake)
    if not sha256_of(path).startswith(wanted):
        raise damaged(path, "it does not match its checksum", remake)


def note_unchecked(path: Path) -> None:
    """Say that damage would not be noticed; of many files the first stands for all."""
    note_once("unchecked", f"{path} is of an earlier version and has no checksum: damage in such files is not noticed")


def write_sealed(path: Path, text: str, fence: Fence = OPEN) -> None:
    """Write text below a comment with its checksum."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_text(path, f"# tintype wrote this file; the SHA-256 of the lines below is {digest}\n{text}", fence)


def read_sealed(path: Path, remake: str) -> str:
    """Return what `write_sealed` wrote there, with the comment."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise damaged(path, "it is missing", remake) from None
    except UnicodeDecodeError as error:
        raise damaged(path, f"it is not UTF-8 text: {error}", remake) from None
    if not text:
        raise damaged(path, "it is empty", remake)
    if (seal := _SEAL.match(text)) is None and not _SEAL_WORDS.search(text.partition("\n")[0]):
        note_unchecked(path)
    elif seal is None or hashlib.sha256(text[seal.end() :].encode()).hexdigest() != seal[1]:
        raise damaged(path, "it does not match the checksum in its first line", remake)
    return text


def without_seal(text: str) -> str:
    return _SEAL.sub("", text, count=1)


@dataclass(frozen=True)
class Lines:
    """The lines of a file that are whole, in the order in which they were written; `damage` is '' or what is wrong."""

    whole: list[dict[str, Any]]
    damage: str = ""


def append_line(path: Path, line: Mapping[str, Any], fence: Fence = OPEN) -> None:
    """Append a JSON line with its number and checksum.

    A last line that a kill cut short is removed first. One that lacks only its newline stays, and gets it.
    """
    with path.open("a+b") as file:
        number, end = _last_number(file)
        size = file.seek(0, os.SEEK_END)
        file.seek(end)
        rest = file.read(size - end)  # no further: a device such as /dev/zero has no end
        known = _read_line(rest)
        whole = known is not None and known[0] == number + 1
        fence.check()
        if whole:
            file.write(b"\n" + _line(number + 2, line).encode())
            return
        if rest:
            file.truncate(end)
        file.write(_line(number + 1, line).encode())


def write_lines(path: Path, lines: Collection[Mapping[str, Any]], fence: Fence = OPEN) -> None:
    """Write a whole file of numbered lines, unless it is just that."""
    text = "".join(_line(number, line) for number, line in enumerate(lines, 1))
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text, fence)


def read_lines(path: Path, remake: str = "remove it to do without", vouched: int = 0) -> list[dict[str, Any]]:
    """Return the lines that `append_line` wrote; a last one that a kill cut short is left out.

    `vouched` is the number of lines that are known to have been written.
    """
    found = salvage_lines(path, vouched)
    if found.damage:
        raise damaged(path, found.damage, remake)
    return found.whole


def salvage_lines(path: Path, vouched: int = 0) -> Lines:
    """Read what is whole of a file of lines, and say what is not."""
    content = path.read_bytes() if path.is_file() else b""
    *ended, last = content.split(b"\n")
    found: dict[int, dict[str, Any]] = {}
    checked = wrong_order = False
    number = unreadable = 0
    for place, text in enumerate(ended, 1):
        known = _read_line(text)
        if known is None or (known[0] is None and checked):
            unreadable += 1
            continue
        number_before, number = number, known[0] or place
        checked = checked or known[0] is not None
        wrong_order = wrong_order or number <= number_before
        found[number] = known[1]
    if last and (known := _read_line(last)) is not None and known[0] == len(ended) + 1:  # it lacks its end alone
        found[known[0]] = known[1]
    if found and not checked:
        note_unchecked(path)
    end = max([vouched, *found]) + 1
    lost = sorted(set(range(1, end)) - set(found))
    lost += range(end, end + unreadable - len(lost))
    reasons = [f"{len(lost)} of its lines are lost, the first is line {lost[0]}"] if lost else []
    reasons += ["its lines are not in the order in which they were written"] if wrong_order else []
    return Lines([found[number] for number in sorted(found)], " and ".join(reasons))


def _line(number: int, line: Mapping[str, Any]) -> str:
    numbered = {**line, _NUMBER: number}
    return json.dumps({**numbered, _CHECKSUM: checksum_of(numbered)[:16]}) + "\n"


def _read_line(text: bytes) -> tuple[int | None, dict[str, Any]] | None:
    """A line's number, None if an earlier version wrote it, and its content; None for what is no whole line."""
    try:
        line: dict[str, Any] = parse_object(text)
    except ValueError:
        return None
    wanted, number = line.pop(_CHECKSUM, None), line.get(_NUMBER)
    if wanted is None and number is None:
        return None, line
    if wanted != checksum_of(line)[:16] or type(number) is not int or number < 1:
        return None
    del line[_NUMBER]
    return number, line


def count_lines(path: Path) -> int:
    """The number of the last line that was written whole."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return _last_number(file)[0]


def _last_number(file: BinaryIO) -> tuple[int, int]:
    """The number of the last whole line, and where it ends. It is read from the end: a log can be long."""
    size, window = file.seek(0, os.SEEK_END), 4096
    while True:
        start = max(0, size - window)
        file.seek(start)
        tail = file.read(size - start)
        end = tail.rfind(b"\n") + 1
        before = tail.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if start == 0 or before:
            break
        window *= 2
    if not end:
        return 0, 0
    known = _read_line(tail[before : end - 1])
    if known is not None and known[0] is not None:
        return known[0], start + end
    file.seek(0)
    return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")), start + end


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder to `damaged-N-NAME`, and remove all but the newest two such of its folder."""
    numbers = {int(found[1]): one for one in path.parent.iterdir() if (found := _DAMAGED.match(one.name))}
    target = path.with_name(f"damaged-{max(numbers, default=-1) + 1}-{path.name}")
    path.rename(target)
    for number in sorted(numbers)[: max(0, len(numbers) + 1 - _KEPT_DAMAGED)]:
        with suppress(OSError):  # what stays is removed the next time
            _remove(numbers[number])
    return target


_DAMAGED = re.compile(r"damaged-(\d+)-")


def flush(path: Path) -> None:
    """Returns when the file, or the list of the names in the folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
