"""`tintype sync`: only what is whole is copied, every copy is checked, and nothing at the target is half written."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner

from tests.tiny import tiny_plan
from tintype.cli import app
from tintype.errors import UserError
from tintype.export.mirror import Mirrored, mirror, units_of
from tintype.export.places import INDEX, ObjectStore, open_place
from tintype.runtime.files import write_checked
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.train import checkpoint
from tintype.train.loop import train

STORE = "memory://bucket/mini"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's folder with one run and a score."""
    out = tmp_path_factory.mktemp("study")
    train(tiny_plan(), out / "runs" / "one", Interrupt())
    scores = out / "runs" / "one" / "evaluation" / "step-6"
    scores.mkdir(parents=True)
    (scores / "preview-0.png").write_bytes(b"not an image")
    write_checked(scores / "result.json", {"metrics": {"fd": 1.5}}, format=3)
    (out / "leases" / "one").mkdir(parents=True)
    (out / "leases" / "one" / "000001.json").write_text("{}")
    return out


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "study")
    return tmp_path / "study"


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """The object store of this process, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def copy(source: Path | str, target: Path | str) -> Mirrored:
    return mirror(open_place(str(source)), open_place(str(target)))


def content_of(folder: Path) -> dict[str, bytes]:
    wanted = [path for path in folder.rglob("*") if path.is_file() and "leases" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in wanted if path.name != ".lock"}


def test_a_study_goes_to_a_store_and_back_with_every_byte(study: Path, tmp_path: Path) -> None:
    up = copy(study, STORE)
    down = copy(STORE, f"file://{tmp_path / 'back'}")
    across = copy(STORE, "memory://other/mini")
    assert content_of(study) == content_of(tmp_path / "back")
    assert up.copied == down.copied == across.copied == len(content_of(study))
    assert not (up.there or up.damaged or down.damaged or up.gone)
    run = tmp_path / "back" / "runs" / "one"
    assert checkpoint.newest_whole_step(run / "checkpoints") == 6
    again = [copy(study, STORE), copy(STORE, tmp_path / "back"), copy(study, tmp_path / "back")]
    assert [one.copied for one in again] == [0, 0, 0]
    names = {path.name for path in (tmp_path / "back").rglob("*")}
    assert not {name for name in names if "writing" in name} and "leases" not in names and INDEX not in names


def test_what_is_half_written_stays_where_it_is(study: Path, tmp_path: Path) -> None:
    """A checkpoint without a manifest, names of writers, a link, and the last line of a log that has no end."""
    run = study / "runs" / "one"
    (run / "checkpoints" / "step-000000006" / "manifest.json").unlink()
    (run / ".plan.yaml.writing-x-1").write_text("half")
    (run / "link").symlink_to("/etc/hostname")
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(whole + b'{"step": 7, "lo')
    assert not copy(study, STORE).damaged
    copy(STORE, tmp_path / "back")
    back = tmp_path / "back" / "runs" / "one"
    assert (back / "metrics.jsonl").read_bytes() == whole
    assert checkpoint.steps(back / "checkpoints") == [4]
    assert not (back / "link").exists() and not list(back.rglob(".*writing*"))


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/step-000000006/state.safetensors",
        "checkpoints/step-000000006/manifest.json",
        "checkpoints/step-000000006/records.json",
        "metrics.jsonl",
        "plan.yaml",
        "environment.json",
        "evaluation/step-6/result.json",
    ],
)
def test_a_damaged_file_is_named_and_not_copied(name: str, study: Path, memory: Any) -> None:
    file = study / "runs" / "one" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    counts = copy(study, STORE)
    (unit,) = counts.damaged
    assert f"runs/one/{name}".startswith(unit)
    assert not [path for path in memory.find("/bucket") if unit in path], "nothing of the unit is at the target"
    assert counts.copied


def test_damage_in_the_store_is_noticed_also_of_a_file_without_a_checksum(
    study: Path, memory: Any, tmp_path: Path
) -> None:
    copy(study, STORE)
    memory.pipe_file("/bucket/mini/runs/one/evaluation/step-6/preview-0.png", b"not an imagE")
    memory.pipe_file("/bucket/mini/runs/one/checkpoints/step-000000006/state.json", b"{}")
    counts = copy(STORE, tmp_path / "back")
    assert {Path(name).name for name in counts.damaged} == {"preview-0.png", "step-000000006"}
    assert checkpoint.steps(tmp_path / "back" / "runs" / "one" / "checkpoints") == [4]


def test_an_upload_that_stops_anywhere_leaves_no_half_checkpoint_and_resumes(
    study: Path, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network fails at every upload in turn. What the store then has is whole, and the rest follows."""
    put, total, left = ObjectStore._put, len(content_of(study)), 0

    def fail(self: ObjectStore, source: Path, name: str) -> None:
        nonlocal left
        left -= name != INDEX
        if left < 0:
            raise UserError("the network is gone")
        put(self, source, name)

    for stop in range(1, total):
        memory.store.clear()
        left = stop
        monkeypatch.setattr(ObjectStore, "_put", fail)
        with pytest.raises(UserError, match="network is gone"):
            copy(study, STORE)
        monkeypatch.setattr(ObjectStore, "_put", put)
        if stop >= 4:  # the files of the first checkpoint
            assert not copy(STORE, tmp_path / f"back-{stop}").damaged
        checkpoints = tmp_path / f"back-{stop}" / "runs" / "one" / "checkpoints"
        steps = checkpoint.steps(checkpoints)
        assert steps == [4, 6][: stop // 4]
        assert all(checkpoint.verify(checkpoint.folder_of(checkpoints, step)) for step in steps)
    copy(study, STORE)
    assert copy(STORE, tmp_path / "back").copied == total


def test_a_failed_upload_is_not_begun_anew(study: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file fails: those before it are not uploaded again."""
    put = ObjectStore._put

    def fail(self: ObjectStore, source: Path, name: str) -> None:
        if name.endswith("metrics.jsonl"):
            raise UserError("the network is gone")
        put(self, source, name)

    monkeypatch.setattr(ObjectStore, "_put", fail)
    with pytest.raises(UserError, match="network is gone"):
        copy(study, STORE)
    there = len(units_of(open_place(STORE).sizes()))
    monkeypatch.setattr(ObjectStore, "_put", put)
    rest = copy(study, STORE)
    assert rest.there >= there > 4 and rest.there + rest.copied == len(content_of(study))


def test_a_download_that_stops_leaves_no_half_checkpoint(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(study, STORE)
    fetch = ObjectStore.fetch

    def fail(self: ObjectStore, name: str, path: Path) -> None:
        if name.endswith("step-000000006/state.safetensors"):
            path.write_bytes(b"half")
            raise UserError("the network is gone")
        fetch(self, name, path)

    monkeypatch.setattr(ObjectStore, "fetch", fail)
    back = tmp_path / "back"
    with pytest.raises(UserError, match="network is gone"):
        copy(STORE, back)
    assert checkpoint.steps(back / "runs" / "one" / "checkpoints") == [4]
    assert not list(back.rglob(".*writing*"))
    monkeypatch.setattr(ObjectStore, "fetch", fetch)
    copy(STORE, back)
    assert content_of(back) == content_of(study)


def test_a_checkpoint_that_changed_is_replaced_as_a_whole(study: Path, tmp_path: Path, memory: Any) -> None:
    """Train the same steps with another seed: the checkpoints have the same names and other weights."""
    copy(study, STORE)
    copy(study, tmp_path / "back")
    shutil.rmtree(study / "runs" / "one")
    train(tiny_plan("seed=5"), study / "runs" / "one", Interrupt())
    store, removed, order = open_place(STORE), list[str](), list[str]()
    system: Any = store._system  # type: ignore[attr-defined]
    rm_file, put_file = system.rm_file, system.put_file

    def note_removal(path: str) -> None:
        removed.append(path)
        rm_file(path)

    def note_upload(source: str, path: str) -> None:
        order.append(path)
        put_file(source, path)

    system.rm_file, system.put_file = note_removal, note_upload
    mirror(open_place(str(study)), store)
    copy(STORE, tmp_path / "back")
    assert len(removed) == 2 and all(path.endswith("manifest.json") for path in removed)
    manifests = [place for place, path in enumerate(order) if path.endswith("step-000000006/manifest.json")]
    states = [place for place, path in enumerate(order) if "step-000000006/state" in path]
    assert len(manifests) == 1 and max(states) < manifests[0]
    for name, content in content_of(study / "runs" / "one").items():
        assert (tmp_path / "back" / "runs" / "one" / name).read_bytes() == content


@pytest.mark.parametrize("name", ["runs/../../../out", "../out", "a//b", "a\\b"])
def test_a_name_that_leads_out_is_refused(name: str, study: Path, memory: Any, tmp_path: Path) -> None:
    copy(study, STORE)
    memory.store[f"/bucket/mini/{name}"] = memory.store["/bucket/mini/runs/one/plan.yaml"]
    with pytest.raises(UserError, match="points outside the folder"):
        copy(STORE, tmp_path / "back")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_another_process_works_in_is_left_alone(study: Path, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    with locked(tmp_path / "back"), pytest.raises(UserError, match="another process"):
        copy(study, tmp_path / "back")


def test_no_credential_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    for login in ("AKIA123:verysecret", "AKIA123:very/secret"):
        with pytest.raises(UserError, match="contains a user name or password") as refused:
            open_place(f"s3://{login}@bucket/mini")
        assert "secret" not in str(refused.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-long-secret-value")

    def fail(*given: object, **options: object) -> None:
        raise PermissionError("signed with a-long-secret-value at https://me:pass@host/x")

    store = open_place(STORE)
    store._system.find = fail  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="cannot be used") as raised:
        store.sizes()
    assert "a-long-secret-value" not in str(raised.value) and "me:pass" not in str(raised.value)
    assert raised.value.__cause__ is None and raised.value.__suppress_context__


@pytest.mark.parametrize(("missing", "address"), [("fsspec", STORE), ("s3fs", "s3://bucket/mini")])
def test_a_missing_package_names_its_extra(missing: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=r"pip install 'tintype\[sync\]'"):
        open_place(address)


@pytest.mark.parametrize(
    ("address", "words"),
    [("ftp://host/x", "ftp:// is not supported"), ("s3://", "names no bucket"), (STORE, "has no files to copy")],
)
def test_an_address_that_cannot_be_used_is_refused(address: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        copy(address, tmp_path / "back")


def test_the_command_copies_lists_and_fails_where_something_is_damaged(study: Path) -> None:
    runner = CliRunner()
    copied = json.loads(runner.invoke(app, ["sync", str(study), STORE, "--json"]).stdout)
    listed = json.loads(runner.invoke(app, ["sync", STORE, "--list", "--json"]).stdout)
    assert copied["copied"] == sum(unit["files"] for unit in listed) == len(content_of(study))
    assert {"name": "runs/one/checkpoints/step-000000006", "files": 4} in [
        {"name": unit["name"], "files": unit["files"]} for unit in listed
    ]
    shown = runner.invoke(app, ["sync", STORE, "--list"]).stdout
    assert "runs/one/checkpoints/step-000000006" in shown
    (study / "runs" / "one" / "metrics.jsonl").write_text("{}\nx\n")
    with pytest.raises(UserError, match=r"1 files .* damaged and were not copied"):
        runner.invoke(app, ["sync", str(study), STORE], catch_exceptions=False)
    with pytest.raises(UserError, match="--list"):
        runner.invoke(app, ["sync", str(study)], catch_exceptions=False)
