"""Files are whole or absent, durable ones lie on the disk before anything goes on, and checksums find damage."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import tintype
from tests.full_disk import disk_of
from tintype.errors import DamagedFileError, UserError
from tintype.runtime import files


@pytest.mark.parametrize("wrong", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_goes_wrong_leaves_the_file_as_it_was(tmp_path: Path, wrong: BaseException) -> None:
    file = tmp_path / "file"
    files.write_text(file, "before")
    with pytest.raises(type(wrong)), files.written_beside(file) as temporary:
        temporary.write_text("half of wh")
        raise wrong
    assert file.read_text() == "before" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    file, flush, done = tmp_path / "file", files.flush, []

    def noted(path: Path) -> None:
        flush(path)
        done.append((path == tmp_path, path.read_bytes() if path.is_file() else b"", file.exists()))

    monkeypatch.setattr(files, "flush", noted)
    files.write_bytes(file, b"content", durable=durable)
    assert file.read_bytes() == b"content"
    assert done == ([(False, b"content", False), (True, b"", True)] if durable else [])


def test_an_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with disk_of(100), pytest.raises(OSError, match=r"File too large: '.*/file'"):
        files.write_text(file, "x" * 1000)
    assert not list(tmp_path.iterdir())


RAW_WRITERS = {
    "runtime/files.py": "the one place",
    "train/checkpoint.py": "in a temporary folder; errors name the checkpoint",
    "export/pipeline_folder.py": "in a temporary folder; errors name the target",
    "runtime/locks.py": "locks, which are empty",
    "data/store/writer.py": "the list of refused images; errors name the store",
    "data/recaption/journal.py": "errors name the journal",
    "runtime/segments.py": "errors name the cache",
    "runtime/rows.py": "beside its place; errors name the file",
    "runtime/room.py": "a file that shows whether there is room; it is removed",
    "pretrained/weights.py": "the download; errors name the target",
    "data/store/export.py": "in a temporary folder; errors name the target",
}


def writes_directly(call: ast.Call) -> bool:
    """Whether a call writes a file by itself: `path.write_text(…)`, `path.open("w")`."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in ("write_text", "write_bytes"):
        return True
    modes = [
        word.value for word in (*call.args, *(key.value for key in call.keywords)) if isinstance(word, ast.Constant)
    ]
    return call.func.attr == "open" and any(isinstance(mode, str) and mode[:1] in ("w", "a", "x") for mode in modes)


def test_files_are_written_in_one_place() -> None:
    """Anywhere else an error of a full disk would have no path, and a kill would leave a half-written file."""
    package = Path(tintype.__file__).parent
    found = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and writes_directly(node)
    }
    assert found == set(RAW_WRITERS)


CONTENT = {"scores": [0.5, 1e-9, float("nan")], "text": "größer", "of": {10: 1, 9: None}}


def test_checked_json_is_read_as_it_was_written_and_can_be_read_by_anyone(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    files.write_checked(file, CONTENT)
    found = files.read_checked(file, "make it again")
    assert repr(found) == repr(json.loads(json.dumps(CONTENT)))
    assert json.loads(file.read_text())["text"] == "größer"
    assert files.read_checked(tmp_path / "none.json", "make it again") == {}


def test_every_flipped_bit_of_checked_json_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    files.write_checked(file, CONTENT)
    content, expected = file.read_bytes(), repr(files.read_checked(file, ""))
    noticed = 0
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            try:
                assert repr(files.read_checked(file, "")) == expected
            except UserError:
                noticed += 1
    assert noticed > 7 * len(content), "layout and the case of an exponent are all that may change"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"score": 0.5}, r"file.json is damaged \(it has no checksum\); make it again"),
        ({"score": 0.5, "format": 2}, r"file.json is damaged \(it has no checksum\); make it again"),
        ({"score": 0.5, "format": 3}, "written in format 3; this version of tintype reads format 2; install a newer"),
        ({"score": 0.5, "format": 1}, "written in format 1; this version of tintype reads format 2; make it again"),
    ],
)
def test_a_file_without_a_checksum_or_of_another_format_is_refused(
    tmp_path: Path, content: dict[str, object], message: str
) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        files.read_checked(file, "make it again", format=2)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for step in range(1, 6):
        files.append_line(tmp_path / "log.jsonl", {"step": step})
    return tmp_path / "log.jsonl"


def steps_of(lines: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in lines]


@pytest.mark.parametrize(
    ("order", "kept", "damage"),
    [
        ([0, 1, 3, 4], [1, 2, 4, 5], "1 of its lines are lost, the first is line 3"),
        ([0, 1, 2], [1, 2, 3], "2 of its lines are lost, the first is line 4"),
        ([], [], "5 of its lines are lost, the first is line 1"),
        ([0, 3, 2, 1, 4], [1, 2, 3, 4, 5], "its lines are not in the order in which they were written"),
        ([0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5], "its lines are not in the order in which they were written"),
    ],
)
def test_lost_exchanged_and_repeated_lines_are_noticed(
    log: Path, order: list[int], kept: list[int], damage: str
) -> None:
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[index] for index in order))
    found = files.salvage_lines(log, vouched=5)
    assert (steps_of(found.whole), found.damage) == (kept, damage)
    with pytest.raises(DamagedFileError, match=r"log.jsonl is damaged"):
        files.read_lines(log, vouched=5)


def test_a_changed_line_is_lost_and_the_others_are_kept(log: Path) -> None:
    log.write_text(log.read_text().replace('"step": 2', '"step": 9'))
    found = files.salvage_lines(log)
    assert steps_of(found.whole) == [1, 3, 4, 5] and "the first is line 2" in found.damage


def test_a_line_is_checked_as_it_stands_and_in_any_other_layout(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To write its content again takes three times as long, and a study has hundreds of thousands of lines."""
    files.append_line(log, {"step": 6, "words": "one, two: three"})
    first, *others = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(f"{json.dumps(one, indent=None)}\n" for one in (dict(sorted(first.items())), *others)))
    written, usual = list[int](), files.checksum_of_json

    def noted(parsed: dict[str, Any]) -> str:
        written.append(parsed["step"])
        return usual(parsed)

    monkeypatch.setattr(files, "checksum_of_json", noted)
    assert steps_of(files.read_lines(log)) == [1, 2, 3, 4, 5, 6]
    assert written == [1, 6], "keys in another order, spaces in words"


@pytest.mark.parametrize("torn", ['{"step": 6, "lo', "x" * 9000])
def test_a_line_cut_short_by_a_kill_is_no_damage(log: Path, torn: str) -> None:
    with log.open("a") as file:
        file.write(torn)
    assert steps_of(files.read_lines(log)) == [1, 2, 3, 4, 5]
    files.append_line(log, {"step": 6})
    assert steps_of(files.read_lines(log, vouched=6)) == [1, 2, 3, 4, 5, 6] and files.count_lines(log) == 6


def test_a_last_line_that_lacks_its_end_alone_is_kept(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-1])
    assert steps_of(files.read_lines(log)) == [1, 2, 3, 4, 5]
    files.append_line(log, {"step": 6})
    files.append_line(log, {"step": 7})
    assert steps_of(files.read_lines(log, vouched=7)) == [1, 2, 3, 4, 5, 6, 7] and files.count_lines(log) == 7


def test_a_first_line_that_lacks_its_end_alone_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    files.append_line(log, {"step": 1})
    log.write_bytes(log.read_bytes()[:-1])
    files.append_line(log, {"step": 2})
    assert steps_of(files.read_lines(log, vouched=2)) == [1, 2]


def test_lines_without_checksums_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1}\n{"step": 2}\n')
    with pytest.raises(DamagedFileError, match=r"log.jsonl is damaged \(2 of its lines are lost"):
        files.read_lines(log)
    log.write_text("")
    files.append_line(log, {"step": 1})
    with log.open("a") as file:
        file.write('{"step": 2}\n')
    with pytest.raises(DamagedFileError):
        files.read_lines(log)


RUN = "0123456789abcdef"
PLACES = {
    "environment.json": "environment.json",
    "checkpoints/step-000000002/manifest.json": "checkpoints/step-000000004/manifest.json",
    "evaluation/0a1b-step-000000002/result.json": "evaluation/0a1b-step-000000004/result.json",
    "evaluation/samples/0a1b-step-000000002/samples.json": "evaluation/samples/0a1b-step-000000004/samples.json",
    "trackers/wandb.json": "trackers/mlflow.json",
}
"""Files of a run, and files of another step or name that can lie in their place."""


def begin_run(folder: Path, run: str = RUN) -> Path:
    folder.mkdir(parents=True)
    files.write_sealed(folder / "plan.yaml", "seed: 0\n", run=run)
    return folder


@pytest.mark.parametrize("name", PLACES)
def test_a_file_belongs_to_its_run_and_its_place_wherever_the_run_lies(tmp_path: Path, name: str) -> None:
    mine, other = begin_run(tmp_path / "mine"), begin_run(tmp_path / "other", "f" * 16)
    for file in (mine / name, mine / PLACES[name], other / name):
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_checked(file, {"of": str(file)})
    moved = mine.rename(tmp_path / "evaluation")  # as a folder inside a run is called
    assert files.read_checked(moved / name, "") == {"of": str(mine / name)}
    (moved / name).write_bytes((other / name).read_bytes())
    with pytest.raises(
        DamagedFileError, match=rf"{name} of the run f{{16}}, and it lies where {name} of the run {RUN}"
    ):
        files.read_checked(moved / name, "")
    if name != PLACES[name]:
        (moved / name).write_bytes((moved / PLACES[name]).read_bytes())
        with pytest.raises(DamagedFileError, match=f"{PLACES[name]} of the run {RUN}, and it lies where {name} of"):
            files.read_checked(moved / name, "")


def test_a_log_has_its_seal_in_the_first_line(tmp_path: Path) -> None:
    mine, other = begin_run(tmp_path / "mine"), begin_run(tmp_path / "other", "f" * 16)
    for run in (mine, other):
        for step in (1, 2):
            files.append_line(run / "metrics.jsonl", {"step": step})
    first, second = map(json.loads, (mine / "metrics.jsonl").read_text().splitlines())
    assert first["seal"] == {"run": RUN, "file": "metrics.jsonl"} and "seal" not in second
    assert files.read_lines(mine / "metrics.jsonl") == [{"step": 1}, {"step": 2}]
    files.write_lines(mine / "metrics.jsonl", [{"step": 1}])
    assert files.read_lines(mine / "metrics.jsonl") == [{"step": 1}]
    for name in ("metrics.jsonl", "events.jsonl"):
        (mine / name).write_bytes((other / "metrics.jsonl").read_bytes())
        with pytest.raises(DamagedFileError, match=f"it lies where {name} of the run {RUN} belongs"):
            files.read_lines(mine / name)
        with pytest.raises(DamagedFileError, match=f"it lies where {name} of the run {RUN} belongs"):
            files.check_first_line(mine / name, "")
        assert not files.salvage_lines(mine / name).whole


def test_a_file_of_a_run_without_a_seal_is_damaged(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "study" / "runs" / RUN)
    files.write_checked(tmp_path / "environment.json", {"parameters": 1})
    files.append_line(tmp_path / "metrics.jsonl", {"step": 1})
    for name in ("environment.json", "metrics.jsonl"):
        (run / name).write_bytes((tmp_path / name).read_bytes())
    with pytest.raises(DamagedFileError, match=r"environment.json is damaged \(it has no seal"):
        files.read_checked(run / "environment.json", "")
    with pytest.raises(DamagedFileError, match=r"metrics.jsonl is damaged \(it has no seal"):
        files.read_lines(run / "metrics.jsonl")
    assert not files.salvage_lines(run / "metrics.jsonl").whole
    (run / "plan.yaml").write_text("seed: 0\n")
    with pytest.raises(DamagedFileError, match=r"plan.yaml is damaged \(its first line is not the seal"):
        files.read_checked(run / "environment.json", "")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_file_of_tensors_follows_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with files.following_umask(tmp_path / "state.safetensors"):
            save_file({"one": torch.ones(1)}, tmp_path / "state.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "state.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_sealed_text_is_read_with_its_comment(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    files.write_sealed(file, "seed: 0\n", run=RUN)
    text = files.read_sealed(file, "make it again")
    assert text.startswith("# ") and files.without_seal(text) == "seed: 0\n"
    content = file.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            with pytest.raises(DamagedFileError, match=r"plan.yaml is damaged .*; make it again"):
                files.read_sealed(file, "make it again")
