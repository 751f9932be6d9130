"""Claims that were damaged or forged: no reader ends by them, each run is taken over, and status says which it was."""

from __future__ import annotations

import copy
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from rich.console import Console
from typer.testing import CliRunner

from tests.fault.promises import Promise
from tests.unit.study.test_adaptive import study_with
from tests.unit.study.test_work import work, written
from tests.written_runs import Writer
from tintype import cli
from tintype.runtime import leases as module
from tintype.runtime.files import Json, checksum_of
from tintype.runtime.host import Process
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import BEAT_S, EXPIRY_S, MOST_EXPIRY_S, Claim, Lease, Leases
from tintype.study.admission import Need, crowds_in, with_corrections
from tintype.study.lab import prepare_study
from tintype.study.runner import Message, Task, tasks_of
from tintype.study.status import StatusReader
from tintype.study.study import Study
from tintype.study.worker import Worker, deaths_in, message_of, progress_of
from tintype.terminal.lines import EncodedConsole
from tintype.terminal.status import shown

LIVE: dict[str, Json] = {"state": "training", "share": 0.5, "step": 3, "loss": 0.2, "images_per_s": 10.0, "text": ""}
OVER: dict[str, Json] = {
    "state": "done",
    "text": "",
    "step": 6,
    "training_s": 1.0,
    "scoring_s": 1.0,
    "peak_bytes": 0,
    "gpu_bytes": 0,
    "needs_bytes": 0,
}
ABOUT: dict[str, Json] = {"round": "", "arm": "baseline", "seed": 0, "step": 0, "gpu": ""}
VALUES: list[Any] = [
    "x",
    "²",
    "",
    None,
    True,
    [1],
    {"a": 1},
    [],
    {},
    -1,
    0,
    1,
    1e300,
    -1e300,
    1 << 70,
    0.5,
    float("nan"),
]
VALUES += [float("inf"), "\ud800", "\x1b[2J\x07", "9" * 5000]
NAMES = ["².json", "٣.json", "1.json", "0000001.json", "-00001.json", "999999999999.json", "x.json", ".json", "000009"]
NAMES += [
    "9" * 240 + ".json",
    "000002.json.bak",
    " 00002.json",
    "1e5.json",
    "000002.JSON",
    "\udcff.json",
    "00000\n.json",
]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "_keep", lambda self: None)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    found = study_with(tmp_path, "seeds=[0, 1]", "arms=[]")
    prepare_study(found, tmp_path / "out")
    return found


def content(ended: bool = False) -> dict[str, Any]:
    how = OVER if ended else None
    claim = Claim(1, Process("elsewhere", 7, 9), "host", "worker", EXPIRY_S, 2.0, ABOUT, LIVE, how)
    found: dict[str, Any] = json.loads(claim.dump(1))
    return found


def fields(value: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from fields(inner, (*path, key))


def changed(value: dict[str, Any], path: tuple[str, ...], hostile: Any, sealed: bool) -> bytes:
    """Return the claim with one value replaced; `sealed` with a checksum that fits, as a forger writes it."""
    found = copy.deepcopy(value)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = hostile
    if sealed and path != ("checksum",):
        found.pop("checksum")
        found["checksum"] = checksum_of(found)
    return json.dumps(found).encode()


def cases() -> list[tuple[str, bytes]]:
    """Return a name and the content of each hostile claim: every field with every value, cuts, and what is no claim."""
    found: list[tuple[str, bytes]] = []
    for ended in (False, True):
        whole = content(ended)
        for path in fields(whole):
            for value in VALUES:
                for sealed in (False, True):
                    name = f"{'.'.join(path)} = {str(value)[:20]!r}, {'sealed' if sealed else 'not sealed'}"
                    found.append((name, changed(whole, path, value, sealed)))
        extra = changed(whole, ("more",), 1, sealed=True)
        text = json.dumps(whole).encode()
        found += [("an extra key", extra), *((f"cut at {end}", text[:end]) for end in range(0, len(text), 40))]
    deep = b'{"about":' + 100_000 * b"[" + 100_000 * b"]" + b"}"
    found += [("deep", deep), ("no object", b"[1]"), ("no text", b"\xff\xfe\x00"), ("large", b" " * (2 << 20))]
    return found


def read_all(reader: StatusReader, leases: Leases, task: Task, console: Console) -> None:
    """Read the claims of a run by all that read claims."""
    console.print(shown(reader.read()))
    claims = leases.history(task.plan.hash)
    deaths_in(claims, ABOUT)
    with_corrections(Need(1, 1, ""), crowds_in(claims, 0))
    for claim in claims:
        assert claim.words and claim.expiry_s <= MOST_EXPIRY_S
        if claim.ended is not None and claim.ended["state"] == "done":
            message_of(task, claim)
        progress_of(task, claim)


def try_claim(out: Path, study: Study, put: Callable[[Path], None], reader: StatusReader) -> str:
    """Put something into the folder of a lease, read it, and take the lease over; return what went wrong."""
    task, clock = tasks_of(study, out)[0], [1000.0]
    leases = Leases(out / "leases", "other", clock=lambda: clock[0])
    put(leases.folder / task.plan.hash)
    try:
        read_all(reader, leases, task, EncodedConsole(file=io.StringIO(), width=200))
        if not leases.is_free(task.plan.hash):
            clock[0] += 1.5 * EXPIRY_S + 1
        lease = leases.take(task.plan.hash, {"step": 0})
        if lease is None:
            return "it is never taken over"
        lease.end({"state": "interrupted"})
        read_all(reader, leases, task, EncodedConsole(file=io.StringIO(), width=200))
    except Exception as error:  # a traceback, as a user would see it
        return repr(error)
    finally:
        for path in (leases.folder / task.plan.hash).iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
    return ""


def write(content: bytes) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "000001.json").write_bytes(content)

    return put


@pytest.mark.promise(4)
def test_no_value_in_a_claim_ends_a_reader_or_keeps_a_run(
    promise: Promise, study: Study, tmp_path: Path, still: None
) -> None:
    """Put each hostile value into each field of a claim, with and without a checksum that fits; read and take it."""
    reader = StatusReader(tmp_path / "out")
    for name, hostile in promise.choose(cases(), 80):
        problem = try_claim(tmp_path / "out", study, write(hostile), reader)
        promise.count(not problem, f"{name}: {problem}")


@contextmanager
def unchecked() -> Iterator[None]:
    """Read claims without checksum, types and bounds."""

    def parse(cls: type[Claim], number: int, content: bytes) -> Claim:
        known = json.loads(content or b"{}")
        known.pop("checksum", None)
        return cls(number, Process(**known.pop("process", {"machine": "", "pid": 0})), **known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Claim, "parse", classmethod(parse))
        yield


@pytest.mark.promise(4, control="claims are read without checksum, types and bounds")
def test_control_without_types_a_claim_ends_its_readers(
    promise: Promise, study: Study, tmp_path: Path, still: None
) -> None:
    """Put the same values into the same fields."""
    reader = StatusReader(tmp_path / "out")
    with unchecked():
        for name, hostile in promise.choose(cases(), 40):
            promise.count(not try_claim(tmp_path / "out", study, write(hostile), reader), name)


@pytest.mark.promise(4)
def test_no_name_in_the_folder_of_a_lease_ends_a_reader(
    promise: Promise, study: Study, tmp_path: Path, still: None
) -> None:
    """Put files with names that are almost those of claims, folders, pipes and links into the folder of a lease."""
    whole = json.dumps(content()).encode()

    def named(name: str) -> Callable[[Path], None]:
        def put(folder: Path) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(whole)

        return put

    def made(make: Callable[[Path], object]) -> Callable[[Path], None]:
        def put(folder: Path) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            make(folder / "000001.json")

        return put

    puts = {name: named(name) for name in NAMES}
    puts |= {
        "a folder": made(Path.mkdir),
        "a pipe": made(os.mkfifo),
        "a device": made(lambda p: p.symlink_to("/dev/zero")),
    }
    puts["a link to itself"] = made(lambda path: path.symlink_to(path))
    reader = StatusReader(tmp_path / "out")
    for name, put in puts.items():
        problem = try_claim(tmp_path / "out", study, put, reader)
        promise.count(not problem, f"{name!r}: {problem}")


def test_every_field_that_is_checked_is_tried() -> None:
    """A field that is added later is in a claim of these tests too."""

    def names(model: type[BaseModel]) -> set[str]:
        return set(model.model_fields)

    whole = content(ended=True)
    assert whole.keys() - {"checksum"} == names(module._Content)
    assert set(whole["process"]) == names(module._Process) and set(whole["about"]) == names(module._About)
    assert set(whole["now"]) == names(module._Now) - {"died"} and set(whole["ended"]) == names(module._Ended)


def test_the_last_possible_claim_is_refused_in_words(study: Study, tmp_path: Path, still: None) -> None:
    task = tasks_of(study, tmp_path / "out")[0]
    folder = tmp_path / "out" / "leases" / task.plan.hash
    folder.mkdir(parents=True)
    last = Claim(999_999, Process("elsewhere", 7, 9), ended={"state": "interrupted"})
    (folder / "999999.json").write_bytes(last.dump(0))
    shown = CliRunner().invoke(cli.app, ["work", str(tmp_path / "out"), "--no-wait"])
    assert "stop all workers and remove" in str(shown.exception)


@pytest.mark.parametrize(
    ("path", "value"), [(("expiry_s",), "x"), (("ended",), [1]), (("about",), "x"), (("expiry_s",), 1e300)], ids=str
)
def test_the_commands_name_a_claim_that_cannot_be_read(
    path: tuple[str, ...], value: object, study: Study, tmp_path: Path
) -> None:
    """A damaged claim of a finished run changes nothing but a line of the status."""
    out = tmp_path / "out"
    work(out, Writer())
    task = tasks_of(study, out)[0]
    claim = out / "leases" / task.plan.hash / "000001.json"
    claim.write_bytes(changed(content(), path, value, sealed=True))
    shown = CliRunner().invoke(cli.app, ["status", str(out)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and "2 runs: 2 done" in shown.stdout
    assert f"leases/{task.plan.hash}/000001.json cannot be read: {path[0]}" in shown.stdout.replace("\n", "")
    worked = CliRunner().invoke(cli.app, ["work", str(out)])
    assert worked.exit_code == 0 and "nothing is left" in worked.stdout


def test_a_damaged_claim_of_a_finished_run_holds_up_a_command_for_two_heartbeats(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new command goes through finished runs too."""
    out, now_s = tmp_path / "out", [1000.0]
    work(out, Writer())
    tasks = tasks_of(study, out)
    (out / "leases" / tasks[0].plan.hash / "000001.json").write_bytes(b"{")
    sent: list[Message] = []
    worker = Worker(out / "leases", study.settings.evaluation, Interrupt(), sent.append, "round")
    worker._leases.clock = lambda: now_s[0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(worker, "_sleep", sleep)
    with written(Writer()):
        worker.work(tasks)
    assert sorted(message.key for message in sent) == sorted(task.key for task in tasks)
    assert 2 * BEAT_S <= now_s[0] - 1000.0 < 4 * BEAT_S
    assert "cannot be read" in Leases(out / "leases").history(tasks[0].plan.hash)[0].words
