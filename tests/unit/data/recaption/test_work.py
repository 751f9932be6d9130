"""New captions for a store: from the questions to the column, with a real server on the loopback."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch

from tests.caption_server import CaptionServer, caption_server, status
from tests.tiny_store import image_file, rewrite_about, tiny_store
from tintype.data.arrow_file import file_of
from tintype.data.recaption.asking import Asking
from tintype.data.recaption.server import Patience, Server, read_place
from tintype.data.recaption.work import Progress, Recaptioned, Task, recaption
from tintype.data.store import changes, writer
from tintype.data.store.changes import add_column
from tintype.data.store.export import export_store
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import Store, added_schema, open_store
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.errors import UserError
from tintype.runtime import files
from tintype.runtime.interrupt import Interrupt

ASKING = Asking("Describe it.", 50)
TASK = Task("vlm", ASKING)
FAST = Patience(timeout_s=5.0, tries=3, first_wait_s=0.001)
COUNT = 12


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tiny_store(tmp_path, COUNT)


@pytest.fixture
def server() -> Iterator[CaptionServer]:
    with caption_server() as started:
        yield started


def to(server: CaptionServer, **changes: Any) -> Server:
    return replace(Server(read_place(server.url), "m", ASKING, 3, FAST), **changes)


def added(store: Path, name: str = "vlm") -> dict[str, Any]:
    found = open_store(store).about.find_added(name)
    assert found is not None
    return found.made_by


def captions(store: Path, name: str = "vlm") -> list[str]:
    return open_store(store).texts(f"caption:{name}")


def stopping_after(count: int, interrupt: Interrupt) -> Any:
    def on_progress(progress: Progress) -> None:
        if progress.new >= count:
            interrupt.signal = signal.SIGINT

    return on_progress


def test_the_new_captions_are_like_all_others(store: Path, server: CaptionServer, tmp_path: Path) -> None:
    before = Store(store)
    shards = {file.name: file.stat().st_ino for file in store.glob("shard-*")}
    outcome = recaption(store, TASK, to(server), Interrupt())
    after = open_store(store)
    assert outcome.about == after.about and after.captions == ["long", "short", "vlm"]
    for row in range(COUNT):
        here = after.captions_of(row)
        assert here == {**before.captions_of(row), "vlm": f"A picture {after.texts('sha256')[row][:8]}."}
    assert after.identity != before.identity
    after.check()
    assert {file.name: file.stat().st_ino for file in store.glob("shard-*")} == shards
    assert not [file.name for file in store.iterdir() if file.name.startswith(".") and file.name != ".lock"]
    source = StoreSource(StoreSettings(path=str(store), size_px=16), "train", torch.device("cpu"))
    assert source.columns == {"long", "short", "vlm"}
    assert source.records([0])[0].captions["vlm"].startswith("A picture")

    from tests.tiny_store import imported

    export_store(after, "parquet", tmp_path / "out", None, Interrupt())
    kinds = {name: f"caption_{name}" for name in after.captions}
    again = imported(tmp_path / "out", tmp_path / "again", ImportOptions(captions=kinds, split_column="split"))
    assert again.identity == after.identity


def test_captions_lie_beside_each_shard(tmp_path: Path, server: CaptionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SHARD_ROWS", 5)
    store = tiny_store(tmp_path, COUNT)
    recaption(store, TASK, to(server), Interrupt())
    opened = open_store(store)
    assert [shard.rows for shard in opened.about.shards] == [5, 5, 2] and len(opened.about.added[0].parts) == 3
    assert captions(store) == [f"A picture {key[:8]}." for key in opened.texts("sha256")]
    opened.check()


def test_the_manifest_says_who_wrote_them(store: Path, server: CaptionServer) -> None:
    recaption(store, replace(TASK, price_input=2.0, price_output=10.0), to(server), Interrupt())
    made_by = added(store)
    assert made_by["settings"]["model"] == "m" and made_by["settings"]["prompt"] == "Describe it."
    assert made_by["where"] == f"{server.url}/v1"
    assert made_by["counts"]["pictures"] == COUNT and made_by["counts"]["input_tokens"] == 100 * COUNT
    assert made_by["cost"] == pytest.approx(COUNT * (100 * 2 + 10 * 10) / 1e6)
    assert made_by["empty_captions"] == 0 and made_by["date"].startswith("20")


def test_empty_answers_and_refusals_are_asked_again_and_then_set_aside(store: Path, server: CaptionServer) -> None:
    keys = open_store(store).texts("sha256")
    tries: dict[str, int] = {}

    def reply(key: str, body: dict[str, Any]) -> str:
        tries[key] = tries.get(key, 0) + 1
        if key == keys[0]:
            return ""
        if key == keys[1]:
            return "I'm sorry, I can't help with that."
        if key == keys[2] and tries[key] < 3:
            return "As an AI, I cannot."
        return '**Caption:** "A dog."'

    server.reply = reply
    outcome = recaption(store, TASK, to(server), Interrupt())
    assert captions(store) == ["", "", *["A dog."] * (COUNT - 2)]
    assert [tries[key] for key in keys[:4]] == [3, 3, 3, 1]
    made_by = added(store)
    assert made_by["set_aside"] == {"empty": 1, "refusal": 1} and made_by["empty_captions"] == 2
    counts = made_by["counts"]
    assert (counts["empty"], counts["refusals"], counts["retried"], counts["cleaned"]) == (3, 5, 3, COUNT - 2)
    assert counts["input_tokens"] == 100 * (COUNT + 6)  # all tries cost
    assert outcome.counts["set_aside"] == 2
    asked = [body for body in server.asked if keys[0] in _key_of(body)]
    assert [body["seed"] for body in asked] == [0, 1, 2]
    assert [body["temperature"] for body in asked] == [0.0, 0.4, 0.8]
    journal = store / str(open_store(store).about.added[0].journal)
    lines = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    reasons = {line["key"]: line.get("aside") for line in lines}
    assert (reasons[keys[0]], reasons[keys[1]], reasons[keys[2]]) == ("empty", "refusal", None)
    assert next(line["answer"] for line in lines if line["key"] == keys[1]).startswith("I'm sorry")


def _key_of(body: dict[str, Any]) -> str:
    import base64
    import hashlib

    url: str = body["messages"][0]["content"][0]["image_url"]["url"]
    return hashlib.sha256(base64.b64decode(url.partition("base64,")[2])).hexdigest()


def test_answers_that_were_cut_off_are_shortened_and_counted(store: Path, server: CaptionServer) -> None:
    server.finish, server.reply = "length", lambda key, body: "A dog. It is bro"
    recaption(store, TASK, to(server), Interrupt())
    assert set(captions(store)) == {"A dog."} and added(store)["counts"]["shortened"] == COUNT


def test_a_signal_stops_it_and_the_same_command_resumes(store: Path, server: CaptionServer) -> None:
    interrupt = Interrupt()
    first = recaption(store, TASK, to(server), interrupt, stopping_after(4, interrupt))
    assert first.about is None and 4 <= first.done < COUNT
    assert Store(store).captions == ["long", "short"]  # a part of a column is not seen
    second = recaption(store, TASK, to(server), Interrupt())
    assert second.about is not None and second.new == COUNT - first.done
    assert set(server.images.values()) == {1}


def test_a_signal_does_not_wait_for_the_patience_of_a_busy_server(store: Path, server: CaptionServer) -> None:
    server.always = status(429, Retry_After="300")
    interrupt = Interrupt()
    threading.Timer(0.3, lambda: setattr(interrupt, "signal", signal.SIGINT)).start()
    began = time.monotonic()
    assert recaption(store, TASK, to(server), interrupt).about is None
    assert time.monotonic() - began < 150, "half of what the server asks for"


CHILD = """
import sys
from pathlib import Path
from tintype.data.recaption.asking import Asking
from tintype.data.recaption.server import Server, read_place
from tintype.data.recaption.work import Task, recaption
from tintype.runtime.interrupt import Interrupt
asking = Asking("Describe it.", 50)
recaption(Path(sys.argv[1]), Task("vlm", asking), Server(read_place(sys.argv[2]), "m", asking, 3), Interrupt())
"""


def test_after_a_kill_only_what_was_in_flight_is_asked_twice(store: Path, server: CaptionServer) -> None:
    hold = threading.Event()
    answered: list[str] = []

    def reply(key: str, body: dict[str, Any]) -> str:
        if len(answered) >= 5 and not hold.is_set():
            time.sleep(30)
        answered.append(key)
        return f"A picture {key[:8]}."

    server.reply = reply
    journal = store / ".recaption-vlm" / "journal.jsonl"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(store), server.url], env=environment)
    try:
        _wait_for(
            lambda: len(answered) >= 5 and _lines(journal) == len(answered) + 1 and sum(server.images.values()) >= 8
        )
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    written = {json.loads(line)["key"] for line in journal.read_text().splitlines()[1:]}
    with journal.open("ab") as file:
        file.write(b'{"key": "torn')  # a line that the kill cut short
    hold.set()
    assert written == set(answered)
    assert recaption(store, TASK, to(server), Interrupt()).about is not None
    assert {key for key, count in server.images.items() if count > 1} <= set(server.images) - written
    assert sum(count > 1 for count in server.images.values()) == 3  # as many as were asked at a time
    keys = open_store(store).texts("sha256")
    assert captions(store) == [f"A picture {key[:8]}." for key in keys]
    kept = (store / str(open_store(store).about.added[0].journal)).read_text().splitlines()[1:]
    assert sorted(json.loads(line)["key"] for line in kept) == sorted(keys)  # the torn line is gone


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _half(store: Path, server: CaptionServer) -> None:
    interrupt = Interrupt()
    recaption(store, TASK, to(server), interrupt, stopping_after(4, interrupt))


def test_answers_to_another_question_are_not_mixed_in(store: Path, server: CaptionServer) -> None:
    _half(store, server)
    other = replace(ASKING, prompt="What is it?")
    with pytest.raises(UserError, match=r"prompt: Describe it. there, What is it\? here.*--anew"):
        recaption(store, replace(TASK, asking=other), to(server, asking=other), Interrupt())
    with pytest.raises(UserError, match="model: m there, n here"):
        recaption(store, TASK, to(server, model="n"), Interrupt())
    server.images.clear()
    recaption(store, replace(TASK, asking=other, anew=True), to(server, asking=other), Interrupt())
    assert len(server.images) == COUNT and added(store)["settings"]["prompt"] == "What is it?"


def test_a_damaged_journal_is_not_read_past(store: Path, server: CaptionServer) -> None:
    _half(store, server)
    journal = store / ".recaption-vlm" / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[2] = lines[2][:20]
    journal.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=r"damaged in line 3.*--anew"):
        recaption(store, TASK, to(server), Interrupt())


def test_a_try_without_any_answer_is_in_nobodys_way(store: Path, server: CaptionServer) -> None:
    server.always = status(400, "no")
    with pytest.raises(UserError):
        recaption(store, TASK, to(server, model="wrong"), Interrupt())
    server.always = None
    assert recaption(store, TASK, to(server), Interrupt()).about is not None


def test_two_processes_do_not_write_the_same_column(store: Path, server: CaptionServer) -> None:
    failures: list[str] = []

    def on_progress(progress: Progress) -> None:
        if not failures:
            with pytest.raises(UserError) as raised:
                recaption(store, TASK, to(server), Interrupt())
            failures.append(str(raised.value))

    recaption(store, TASK, to(server), Interrupt(), on_progress)
    assert "another process (" in failures[0] and "another --column" in failures[0]


def test_two_columns_can_be_written_at_the_same_time(store: Path, server: CaptionServer) -> None:
    outcomes: list[Recaptioned] = []

    def on_progress(progress: Progress) -> None:
        if not outcomes:
            outcomes.append(recaption(store, replace(TASK, column="other"), to(server), Interrupt()))

    recaption(store, TASK, to(server), Interrupt(), on_progress)
    assert open_store(store).captions == ["long", "short", "other", "vlm"]
    open_store(store).check()


def test_a_column_is_replaced_only_when_that_is_asked(store: Path, server: CaptionServer) -> None:
    recaption(store, TASK, to(server), Interrupt())
    files = {file.name for file in store.glob("captions-*")}
    server.images.clear()
    assert recaption(store, TASK, to(server), Interrupt()).already_done and not server.images
    with pytest.raises(UserError, match=r"written by m on 20.*--overwrite"):
        recaption(store, TASK, to(server, model="n"), Interrupt())
    with pytest.raises(UserError, match="--overwrite"):
        recaption(store, replace(TASK, anew=True), to(server), Interrupt())
    with pytest.raises(UserError, match="has imported captions"):
        recaption(store, replace(TASK, column="long", overwrite=True), to(server), Interrupt())
    server.reply = lambda key, body: "Another."
    recaption(store, replace(TASK, overwrite=True), to(server, model="n"), Interrupt())
    assert set(captions(store)) == {"Another."} and len(open_store(store).about.added) == 1
    open_store(store).check()
    assert not files & {file.name for file in store.glob("captions-*")}


def test_a_column_that_cannot_be_written_leaves_the_store_as_it_was(
    store: Path, server: CaptionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write_bytes

    def full(path: Path, content: bytes, *, durable: bool) -> None:
        if path.name == "store.json":
            raise OSError(28, "No space left on device")
        write(path, content, durable=durable)

    before = (store / "store.json").read_bytes()
    monkeypatch.setattr(changes, "write_bytes", full)
    with pytest.raises(UserError, match="No space left"):
        recaption(store, TASK, to(server), Interrupt())
    assert (store / "store.json").read_bytes() == before
    monkeypatch.undo()
    assert recaption(store, TASK, to(server), Interrupt()).about is not None
    assert set(server.images.values()) == {1}


def test_a_trial_shows_answers_and_is_resumed(store: Path, server: CaptionServer) -> None:
    trial = recaption(store, replace(TASK, limit=2), to(server), Interrupt())
    assert trial.about is None and trial.done == 2 and len(trial.examples) == 2
    assert Store(store).captions == ["long", "short"] and len(server.images) == 2
    assert recaption(store, TASK, to(server), Interrupt()).about is not None
    assert set(server.images.values()) == {1}


def test_of_one_split_the_others_are_empty_and_reported(store: Path, server: CaptionServer) -> None:
    recaption(store, replace(TASK, split="train"), to(server), Interrupt())
    opened = open_store(store)
    train = set(opened.rows("train").tolist())
    assert 0 < len(train) < COUNT
    assert [bool(text) for text in captions(store)] == [row in train for row in range(COUNT)]
    assert added(store)["not_asked"] == added(store)["empty_captions"] == COUNT - len(train)


def test_only_what_is_empty_is_asked_about(store: Path, server: CaptionServer) -> None:
    add_column(store, "gaps", ["" if row in (1, 5) else f"kept {row}" for row in range(COUNT)], {})
    recaption(store, replace(TASK, only_empty="gaps"), to(server), Interrupt())
    assert len(server.images) == 2
    assert [text.startswith("A picture") for text in captions(store)] == [row in (1, 5) for row in range(COUNT)]
    assert captions(store)[0] == "kept 0"
    with pytest.raises(UserError, match="no caption column with this name"):
        recaption(store, Task("b", ASKING, only_empty="none"), to(server), Interrupt())
    with pytest.raises(UserError, match="no images to caption"):
        recaption(store, Task("b", ASKING, only_empty="long"), to(server), Interrupt())


def test_copies_are_asked_about_once(tmp_path: Path, server: CaptionServer) -> None:
    from tests.tiny_store import imported, parquet_of

    source = parquet_of(tmp_path / "a.parquet", [image_file(0), image_file(1), image_file(0)], caption=["a", "b", "c"])
    imported(source, tmp_path / "store")
    recaption(tmp_path / "store", TASK, to(server), Interrupt())
    assert set(server.images.values()) == {1}
    first, second, third = captions(tmp_path / "store")
    assert first == third != second


def test_an_image_that_the_server_always_fails_at_is_set_aside(store: Path, server: CaptionServer) -> None:
    key = open_store(store).texts("sha256")[3]

    def reply(asked: str, body: dict[str, Any]) -> str:
        if asked == key:
            raise RuntimeError("the server's handler ends, and with it the connection")
        return "A dog."

    server.reply = reply
    recaption(store, TASK, to(server), Interrupt())
    assert server.images[key] == FAST.tries
    assert captions(store)[3] == "" and added(store)["set_aside"] == {"failed": 1}


def test_a_server_that_fails_at_all_images_is_not_the_images_fault(store: Path, server: CaptionServer) -> None:
    server.always = status(500, "out of memory")
    with pytest.raises(UserError, match=r"10 images in a row.*are kept"):
        recaption(store, TASK, to(server), Interrupt())
    server.always = None
    recaption(store, TASK, to(server), Interrupt())
    assert all(captions(store))


def test_answers_in_flight_are_kept_when_another_question_is_fatal(store: Path, server: CaptionServer) -> None:
    server.script = [status(400, "bad")]
    server.reply = lambda key, body: time.sleep(0.2) or "A dog."  # type: ignore[func-returns-value]
    with pytest.raises(UserError, match="bad"):
        recaption(store, TASK, to(server), Interrupt())
    assert _lines(store / ".recaption-vlm" / "journal.jsonl") == 1 + 2


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b", "ä", "a" * 65])
def test_a_name_that_cannot_be_one_is_refused(store: Path, server: CaptionServer, name: str) -> None:
    with pytest.raises(UserError, match="letters, digits"):
        recaption(store, replace(TASK, column=name), to(server), Interrupt())


def test_damage_to_added_captions_is_found(store: Path) -> None:
    add_column(store, "vlm", [f"caption {row}" for row in range(COUNT)], {})
    (file,) = store.glob("captions-vlm-*.arrow")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"caption 3", b"caption 4"))
    with pytest.raises(UserError, match=r"is damaged: .*`tintype data recaption .* --column vlm --overwrite`"):
        Store(store)
    file.write_bytes(content[:-1])
    with pytest.raises(UserError, match="copy the store again"):
        Store(store)
    file.unlink()
    with pytest.raises(UserError, match="is missing"):
        Store(store)


def test_added_captions_of_other_images_are_refused(store: Path) -> None:
    opened = Store(store)
    keys = opened.texts("sha256")
    add_column(store, "vlm", [f"caption {row}" for row in range(COUNT)], {})
    (file,) = store.glob("captions-vlm-*.arrow")
    values = [
        pyarrow.array(some, pyarrow.string()) for some in (keys[::-1], [f"caption {row}" for row in range(COUNT)])
    ]
    content = file_of(pyarrow.RecordBatch.from_arrays(values, schema=added_schema("vlm")))
    file.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    rewrite_about(store, lambda about: about["added"][0]["parts"][0].update(bytes=len(content), sha256=sha256))
    with pytest.raises(UserError, match="captions for other images"):
        Store(store)


def test_a_store_without_added_captions_is_written_as_it_always_was(store: Path) -> None:
    assert "added" not in json.loads((store / "store.json").read_text())


def test_a_last_image_that_fails_is_set_aside_only_if_the_server_is_there(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 1, eval_share=0.0)
    with caption_server() as server:
        server.always = status(500)
        server.models_status = 503
        with pytest.raises(UserError, match="1 images in a row"):
            recaption(store, TASK, to(server), Interrupt())
        server.models_status = 200
        recaption(store, TASK, to(server), Interrupt())
    assert added(store)["set_aside"] == {"failed": 1} and captions(store) == [""]
