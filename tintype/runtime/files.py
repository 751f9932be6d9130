"""Write files atomically: write to a temporary name in the same folder, then rename.

Files that a training or a verdict depends on carry a checksum, which is checked on every read:

- JSON (`write_checked`): the keys `format` and `checksum`, the SHA-256 of all other content.
- JSON lines (`append_line`): each line has its own number and checksum. A read detects lost, changed or swapped lines,
  and the other lines stay usable.
- Text that people may copy and edit (`write_sealed`): the checksum is in a comment on the first line.

A checksum finds damage and careless edits. A checksum is not a signature: anyone who changes a number can also write a
new checksum.

Files of a run also carry a seal: the hash of the run's plan, and the file's path in the run's folder, which includes
the step. Every read compares the seal with the file's location (`seal_of`), so a file copied from another run or
another step is refused. In files of JSON lines the first line has the seal. The seal of plan.yaml decides which run a
folder belongs to, whatever the folder's name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO, TypeAlias

from pydantic import JsonValue
from safetensors import SafetensorError

from tintype.errors import DamagedFileError, UserError
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.host import is_alive, machine, process_name

Json: TypeAlias = JsonValue

PLAN, STUDY = "plan.yaml", "study.yaml"
"""File names of a run's plan and of a study. The plan's seal says which run the folder belongs to."""
SEAL = "seal"
_NUMBER, _CHECKSUM, _FORMAT = "line", "checksum", "format"
_CHECKSUM_AT = -len(f', "{_CHECKSUM}": "0123456789abcdef"}}')
"""Where the checksum begins in a JSON line, after the keys that it covers."""
_FIRST_LINE = re.compile(
    r"# tintype wrote this file(?: as (?P<file>\S+) of the run (?P<run>[0-9a-f]+))?; "
    r"the SHA-256 of (?:that and )?the lines below is (?P<sha256>[0-9a-f]{64})\n"
)
"""Matches words of a sealing comment. They show that a damaged first line once had a seal."""
_WRITING = ".writing-"
"""Separator between a file's name and the name of the writing process, in temporary names."""
_IN_RUN = re.compile(r"(?:(?:checkpoints|snapshots|kept)/step-\d{9}/|evaluation/(?:samples/)?[^/]+/|trackers/)?[^/]+")
_KEPT_DAMAGED = 2
"""Number of damaged files and subfolders that a folder keeps for inspection."""


def finite(value: object) -> float | None:
    """Return `value` as a float; None if it is not a number, not finite, or too large."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return number if math.isfinite(number) else None


@contextmanager
def written_beside(path: Path, *, durable: bool = False, fence: Fence = OPEN) -> Iterator[Path]:
    """Yield a temporary path, and rename the temporary file to `path` at the end. After an error, remove the file.

    If two processes write one file, the later write wins, unless the `fence` stops that write. A `durable` file is
    flushed to the disk before this function returns. A disk error names the file.
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
def following_umask(path: Path) -> Iterator[None]:
    """Give a file written inside the usual mode of new files. safetensors makes files readable by their owner only."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(stat.S_IMODE(mode))


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder for unfinished files. If the process is killed, `remove_unfinished` removes the folder."""
    scratch = folder / f".scratch{_WRITING}{process_name()}"
    _remove(scratch)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        _remove(scratch)


def remove_unfinished(folder: Path, name: str = "*") -> None:
    """Remove the temporary files in a folder that `written_beside` left when this machine's processes were killed."""
    for path in folder.glob(f".{name}{_WRITING}*"):
        where, _, process = path.name.rpartition(_WRITING)[2].rpartition("-")
        if where in ("", machine()) and process.isdigit() and not is_alive(int(process)):
            _remove(path)


def unfinished_in(folder: Path) -> list[Path]:
    """Return the temporary files of any process, in a folder and its subfolders."""
    return list(folder.rglob(f".*{_WRITING}*"))


def remove_paths(paths: Collection[Path]) -> None:
    """Remove files and folders; ignore missing ones."""
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
    """Return the content of a JSON file; empty if the file is missing."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Seal:
    """The run that a file belongs to, and its path in the run's folder."""

    run: str
    """Hash of the run's plan."""
    file: str

    @property
    def content(self) -> dict[str, str]:
        return {"run": self.run, "file": self.file}

    def __str__(self) -> str:
        return f"{self.file} of the run {self.run}"


def seal_of(path: Path) -> Seal | None:
    """Return the seal that a file should have by its location; None outside of a run's folder."""
    folder = _run_folder(path)
    return None if folder is None else Seal(_run_in(folder), path.relative_to(folder).as_posix())


def _run_folder(path: Path) -> Path | None:
    parts = path.parts
    for depth in range(1, min(4, len(path.parents)) + 1):
        if _IN_RUN.fullmatch("/".join(parts[-depth:])):
            folder = Path(*parts[:-depth])
            if (folder / PLAN).is_file():
                return folder
    return None


def run_of(folder: Path) -> str | None:
    """Return the plan hash of the run that a folder belongs to; None for a folder without plan.yaml."""
    return _run_in(folder) if (folder / PLAN).is_file() else None


def study_of(folder: Path) -> Path | None:
    """Return the study folder that contains a run's folder; None outside of a study."""
    study = folder.parent.parent
    return study if folder.parent.name == "runs" and (study / STUDY).is_file() else None


def run_in_seal(path: Path) -> str | None:
    """Return the run that a JSON file's seal names, wherever the file lies. Return None for a file without a seal."""
    try:
        seal = read_object(path).get(SEAL)
    except ValueError:
        return None
    return str(seal.get("run")) if isinstance(seal, dict) else None


def _run_in(folder: Path) -> str:
    with (folder / PLAN).open("rb") as file:
        line = file.readline(1000).decode("utf-8", errors="replace")
    seal = _FIRST_LINE.match(line)
    if seal is not None and seal["run"]:
        return seal["run"]
    remake = f"`tintype train RECIPE --out {quote(str(folder))}`, with the run's own recipe, writes it again"
    raise damaged(folder / PLAN, "its first line is not the seal of a run" if line else "it is empty", remake)


def check_seal(path: Path, found: object, remake: str) -> None:
    """Raise for a file in a run's folder if its seal is missing, or names another run or another path."""
    if reason := _foreign(seal_of(path), found):
        raise damaged(path, reason, remake)


def _foreign(expected: Seal | None, found: object) -> str:
    if expected is None or found == expected.content:
        return ""
    if not isinstance(found, dict) or not found.get("run"):
        return f"it has no seal, and it lies where {expected} belongs"
    return (
        f"its seal says that it is {found.get('file')} of the run {found['run']}, and it lies where {expected} belongs"
    )


def write_checked(
    path: Path, content: Mapping[str, Any], format: int = 1, fence: Fence = OPEN, place: Path | None = None
) -> None:
    """Write JSON with its checksum and, in a run's folder, its seal.

    `place` is the path that the file will have later, if it differs from `path`.
    """
    write_text(path, checked_text(content, format, seal_of(place or path)), fence)


def checked_text(content: Mapping[str, Any], format: int, seal: Seal | None) -> str:
    marked = {_FORMAT: format, **content, **({SEAL: seal.content} if seal else {})}
    return json.dumps({**marked, _CHECKSUM: checksum_of(marked)}, indent=1, ensure_ascii=False) + "\n"


def read_checked(path: Path, remake: str, format: int = 1) -> dict[str, Any]:
    """Return the content that `write_checked` wrote; empty if the file is missing. `remake` is the fix in errors."""
    try:
        found: dict[str, Any] = parse_object(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise damaged(path, f"it {error}", remake) from None
    wanted, its_format = found.pop(_CHECKSUM, None), found.get(_FORMAT)
    intact = wanted == checksum_of_json(found)
    if intact or wanted is None:
        _check_format(path, its_format, format, remake)
    if not intact:
        raise damaged(path, "the file does not match its checksum" if wanted else "it has no checksum", remake)
    check_seal(path, found.pop(SEAL, None), remake)
    found.pop(_FORMAT, None)
    return found


def _check_format(path: Path, found: object, wanted: int, remake: str) -> None:
    if isinstance(found, int) and found != wanted:
        way_out = "install a newer version" if found > wanted else remake
        raise UserError(f"{path} was written in format {found}; this version of tintype reads format {wanted}", way_out)


def parse_object(content: str | bytes) -> dict[str, Json]:
    """Parse a JSON object. The message of the `ValueError` begins with a verb."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")
    return found


def read_object(path: Path) -> dict[str, Json]:
    """Read a file with a JSON object. The message of the `ValueError` begins with a verb."""
    try:
        return parse_object(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None


def checksum_of(content: Any) -> str:
    """Return the SHA-256 of a JSON value, as the value is after a write and a read. White space does not change it."""
    return checksum_of_json(json.loads(json.dumps(content)))


def checksum_of_json(parsed: Any) -> str:
    return hashlib.sha256(json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def damage_in(path: Path) -> str:
    """Describe how a file differs from its own checksums; empty if it matches them or has no checksums."""
    if path.suffix == ".jsonl":
        content = path.read_bytes()
        return _whole_lines(content)[1]
    if path.suffix in (".json", ".yaml", ".txt", ".md"):
        with suppress(UnicodeDecodeError, ValueError):
            text = path.read_bytes().decode("utf-8")
            if (seal := _FIRST_LINE.match(text)) is not None:
                return "" if _sealed_sha256(seal, text) == seal["sha256"] else _OTHER_TEXT
            if path.suffix == ".json":
                found = parse_object(text)
                wanted = found.pop(_CHECKSUM, None)
                if wanted is None or wanted == checksum_of_json(found):
                    return ""
                return "the file does not match its checksum"
            return ""
        return "it cannot be read"
    return ""


def damaged(path: Path, reason: str, remake: str) -> DamagedFileError:
    error = DamagedFileError(f"{path} is damaged ({reason})", remake)
    error.reason = reason
    return error


def check_sha256(path: Path, wanted: str, remake: str) -> None:
    """Refuse a file that is missing, or whose SHA-256 does not begin with `wanted`."""
    if not path.is_file():
        raise damaged(path, "it is missing", remake)
    if not sha256_of(path).startswith(wanted):
        raise damaged(path, "the file does not match its checksum", remake)


def write_sealed(path: Path, text: str, fence: Fence = OPEN, run: str | None = None) -> None:
    """Write text below a comment with its checksum and seal. Give `run` if its folder may have no plan.yaml yet."""
    write_text(path, sealed_text(text, Seal(run, path.name) if run else seal_of(path)), fence)


def sealed_text(text: str, seal: Seal | None) -> str:
    words = (f" as {seal}", "that and ") if seal else ("", "")
    digest = hashlib.sha256(f"{_bound(seal)}{text}".encode()).hexdigest()
    return f"# tintype wrote this file{words[0]}; the SHA-256 of {words[1]}the lines below is {digest}\n{text}"


def _bound(seal: Seal | None) -> str:
    return f"{seal}\n" if seal else ""


def _sealed_sha256(line: re.Match[str], text: str) -> str:
    seal = Seal(line["run"], line["file"]) if line["run"] else None
    return hashlib.sha256(f"{_bound(seal)}{text[line.end() :]}".encode()).hexdigest()


def read_sealed(path: Path, remake: str, run: str | None = None) -> str:
    """Return the text that `write_sealed` wrote, including the comment. `run` is the run that the seal must name."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise damaged(path, "it is missing", remake) from None
    except UnicodeDecodeError as error:
        raise damaged(path, f"the file is not UTF-8 text: {error}", remake) from None
    if not text:
        raise damaged(path, "it is empty", remake)
    line = _FIRST_LINE.match(text)
    if line is None or _sealed_sha256(line, text) != line["sha256"]:
        raise damaged(path, _OTHER_TEXT, remake)
    expected = Seal(run, path.name) if run else seal_of(path)
    if reason := _foreign(expected, {"run": line["run"], "file": line["file"]}):
        raise damaged(path, reason, remake)
    return text


_OTHER_TEXT = "it does not match the checksum in its first line"


def without_seal(text: str) -> str:
    return _FIRST_LINE.sub("", text, count=1)


@dataclass(frozen=True)
class Lines:
    """The intact lines of a file in the order of writing. `damage` describes damage to other lines, or is ''."""

    whole: list[dict[str, Any]]
    damage: str = ""


def append_line(path: Path, line: Mapping[str, Any], fence: Fence = OPEN) -> None:
    """Append a JSON line with its number and checksum.

    First repair the last line, if a kill truncated it: add its newline if only that is missing, otherwise remove the
    line. In a run's folder the first line gets the seal.
    """
    with path.open("a+b") as file:
        number, end = _last_number(file)
        size = file.seek(0, os.SEEK_END)
        file.seek(end)
        rest = file.read(size - end)  # read no more than this: a device such as /dev/zero has no end
        known = _read_line(rest)
        whole = known is not None and known[0] == number + 1
        fence.check()
        if whole:
            file.write(b"\n" + _line(number + 2, line).encode())
            return
        if rest:
            file.truncate(end)
        file.write(_line(number + 1, line, None if number else seal_of(path)).encode())


def write_lines(path: Path, lines: Collection[Mapping[str, Any]], fence: Fence = OPEN) -> None:
    """Write a file of numbered lines, unless the file already has exactly these lines."""
    text = lines_text(lines, seal_of(path))
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text, fence)


def lines_text(lines: Collection[Mapping[str, Any]], seal: Seal | None) -> str:
    return "".join(_line(number, line, seal if number == 1 else None) for number, line in enumerate(lines, 1))


def read_lines(path: Path, remake: str = "remove it to do without", vouched: int = 0) -> list[dict[str, Any]]:
    """Return the lines that `append_line` wrote, without a last line that a kill truncated.

    `vouched` is the number of lines that another record says were written.
    """
    found = salvage_lines(path, vouched)
    if found.damage:
        raise damaged(path, found.damage, remake)
    return found.whole


def salvage_lines(path: Path, vouched: int = 0) -> Lines:
    """Return a file's intact lines and a description of the damage. A file with another run's seal gives no lines."""
    content = path.read_bytes() if path.is_file() else b""
    found, damage = _whole_lines(content, vouched)
    if 1 in found and (reason := _foreign(seal_of(path), found[1].pop(SEAL, None))):
        return Lines([], reason)
    return Lines([found[number] for number in sorted(found)], damage)


def _whole_lines(content: bytes, vouched: int = 0) -> tuple[dict[int, dict[str, Any]], str]:
    """Return the intact lines by number, and a description of the damage to the other lines."""
    *ended, last = content.split(b"\n")
    found: dict[int, dict[str, Any]] = {}
    wrong_order = False
    number = unreadable = 0
    for text in ended:
        known = _read_line(text)
        if known is None:
            unreadable += 1
            continue
        number_before, number = number, known[0]
        wrong_order = wrong_order or number <= number_before
        found[number] = known[1]
    if last and (known := _read_line(last)) is not None and known[0] == len(ended) + 1:  # only its newline is missing
        found[known[0]] = known[1]
    end = max([vouched, *found]) + 1
    lost = sorted(set(range(1, end)) - set(found))
    lost += range(end, end + unreadable - len(lost))
    reasons = [f"{len(lost)} of its lines are lost, the first is line {lost[0]}"] if lost else []
    reasons += ["its lines are not in the order in which they were written"] if wrong_order else []
    return found, " and ".join(reasons)


def check_first_line(path: Path, remake: str) -> None:
    """Raise if the seal in a log's first line names another run. The log's readers report a damaged first line."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        text = file.readline()
    if (known := _read_line(text)) is not None and known[0] == 1:
        check_seal(path, known[1].get(SEAL), remake)


def _line(number: int, line: Mapping[str, Any], seal: Seal | None = None) -> str:
    numbered = {**line, **({SEAL: seal.content} if seal else {}), _NUMBER: number}
    as_read = json.loads(json.dumps(numbered))
    return f'{json.dumps(as_read, sort_keys=True)[:-1]}, "{_CHECKSUM}": "{checksum_of_json(as_read)[:16]}"}}\n'


def _read_line(text: bytes) -> tuple[int, dict[str, Any]] | None:
    """Return a line's number and content; None for a damaged line.

    A line has its keys in the order in which the checksum covers them. So the SHA-256 of the line's text without spaces
    usually matches. If not (spaces inside words, another layout), serialize the content again, which takes three times
    as long.
    """
    try:
        line: dict[str, Any] = parse_object(text)
    except ValueError:
        return None
    wanted, number = line.pop(_CHECKSUM, None), line.get(_NUMBER)
    close = text[:_CHECKSUM_AT].replace(b", ", b",").replace(b": ", b":") + b"}"
    if wanted != hashlib.sha256(close).hexdigest()[:16] and wanted != checksum_of_json(line)[:16]:
        return None
    if type(number) is not int or number < 1:
        return None
    del line[_NUMBER]
    return number, line


def count_lines(path: Path) -> int:
    """Return the number of the last intact line."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return _last_number(file)[0]


def _last_number(file: BinaryIO) -> tuple[int, int]:
    """Return the number of the last intact line, and its end in bytes. Read from the end, since a log can be long."""
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
    if known is not None:
        return known[0], start + end
    file.seek(0)
    return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")), start + end


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder to `damaged-N-NAME`. The folder keeps only the newest two of them."""
    numbers = {int(found[1]): one for one in path.parent.iterdir() if (found := _DAMAGED.match(one.name))}
    target = path.with_name(f"damaged-{max(numbers, default=-1) + 1}-{path.name}")
    path.rename(target)
    for number in sorted(numbers)[: max(0, len(numbers) + 1 - _KEPT_DAMAGED)]:
        with suppress(OSError):  # the next call removes what could not be removed now
            _remove(numbers[number])
    return target


_DAMAGED = re.compile(r"damaged-(\d+)-")


def flush(path: Path) -> None:
    """Flush a file, or the list of names in a folder, to the disk."""
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
