from __future__ import annotations

import io
import pickle
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session, constants
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests.fake_hub import ACCOUNT, TOKEN, FakeHub, fake_hub
from tintype.cli import app
from tintype.errors import UserError
from tintype.export.push import Destination, Pushed, Upload, collect, push

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own, in LFS
REPO = f"{ACCOUNT}/model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Xet is off: its storage has a protocol of its own. The other way to the hub is LFS."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with fake_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        yield running
        close_session()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "transformer").mkdir(parents=True)
    (made / "samples").mkdir()
    (made / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# a model — naïve\n", encoding="utf-8")
    (made / "samples" / "sample-1.png").write_bytes(bytes(range(256)))
    weights = {"w": torch.arange(200_000, dtype=torch.float32)}
    save_file(weights, made / "transformer" / "diffusion_pytorch_model.safetensors")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def send(folder: Path, private: bool = False) -> Pushed | None:
    return push(folder, REPO, lambda *_: True, private=private)


def test_every_file_arrives_byte_for_byte_in_one_commit(hub: FakeHub, folder: Path) -> None:
    pushed = send(folder)

    assert pushed is not None and pushed.url == f"{hub.url}/{REPO}" and pushed.changed
    assert hub.repos[REPO] == contents(folder)
    assert len(hub.stored) == 1 and hub.commits == 1
    assert hub.private[REPO] is False


def test_the_token_goes_to_the_hub_alone(hub: FakeHub, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    send(folder)

    assert len(hub.storage_headers) == 1
    assert all(TOKEN not in str(headers) for headers in hub.storage_headers)
    said = capfd.readouterr()
    assert TOKEN not in said.out + said.err


def test_a_second_push_sends_nothing_and_a_change_sends_the_change(hub: FakeHub, folder: Path) -> None:
    send(folder)
    again = send(folder)
    assert again is not None and not again.changed
    assert hub.commits == 1 and len(hub.storage_headers) == 1

    (folder / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    third = send(folder)
    assert third is not None and third.changed
    assert hub.repos[REPO] == contents(folder) and len(hub.storage_headers) == 1


def test_an_upload_that_broke_off_is_finished_by_the_next(hub: FakeHub, folder: Path) -> None:
    hub.failures = {"commit/main": 403}
    with pytest.raises(UserError, match="may not write"):
        send(folder)
    assert hub.repos[REPO] == {} and len(hub.stored) == 1

    hub.failures = {}
    send(folder)
    assert hub.repos[REPO] == contents(folder)
    assert len(hub.storage_headers) == 1, "the weights were there already"


def test_a_storage_that_refuses_is_one_message(hub: FakeHub, folder: Path) -> None:
    hub.failures = {"PUT": 403}
    with pytest.raises(UserError, match=r"pushing to .*may the token write"):
        send(folder)


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        ("whoami", 401, "does not accept the token .*; log in with `hf auth login`"),
        ("repos/create", 403, f"is '{ACCOUNT}' yours"),
        ("commit/main", 404, "no such repository"),
        ("commit/main", 409, "somebody else changed"),
        ("commit/main", 412, "somebody else changed"),
        ("whoami", 429, "fewer requests"),
        ("repos/create", 500, r"problem of its own \(500\)"),
        ("repos/create", 418, "the hub answered 418"),
    ],
)
def test_errors_of_the_hub_are_one_message_without_the_token(
    hub: FakeHub, folder: Path, where: str, status: int, words: str
) -> None:
    hub.failures = {where: status}
    with pytest.raises(UserError, match=words) as raised:
        send(folder)
    assert TOKEN not in str(raised.value) and "\n" not in str(raised.value)


def test_a_wrong_token_is_refused_before_anything_is_sent(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="does not accept the token"):
        send(folder)
    assert hub.asked == ["GET /api/whoami-v2"]


def test_a_hub_that_is_not_there(hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(UserError, match=r"cannot be reached or broke off .*; check the connection"):
            send(folder)


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_nothing_is_asked(
    hub: FakeHub, folder: Path, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tintype.export.push.get_token", lambda: token)
    with pytest.raises(UserError, match="hf auth login"):
        send(folder)
    assert not hub.asked


def test_without_consent_nothing_is_made_or_sent(hub: FakeHub, folder: Path) -> None:
    shown: list[tuple[Upload, Destination]] = []

    def refuse(upload: Upload, destination: Destination) -> bool:
        shown.append((upload, destination))
        return False

    assert push(folder, REPO, refuse, private=True) is None
    ((upload, destination),) = shown
    assert set(upload.files) == set(contents(folder))
    assert destination == Destination(f"{hub.url}/{REPO}", ACCOUNT, exists=False, private=True)
    assert not hub.repos and not any(asked.startswith("POST") for asked in hub.asked)


def test_private_is_kept(hub: FakeHub, folder: Path) -> None:
    send(folder, private=True)
    assert hub.private[REPO] is True

    hub.private[REPO] = False
    (folder / "README.md").write_text("changed", encoding="utf-8")
    with pytest.raises(UserError, match="public, but --private was given"):
        send(folder, private=True)
    assert hub.commits == 1


def test_a_file_that_the_repository_ignores_is_told(hub: FakeHub, folder: Path) -> None:
    hub.ignored = {"samples/sample-1.png"}
    with pytest.raises(UserError, match=r"does not have the uploaded content of samples/sample-1\.png"):
        send(folder)


def _archive(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("weights.bin", b"anything"),
        ("weights.PT", b"anything"),
        ("weights.safetensors", pickle.dumps({"a": 1}, protocol=2)),
        ("harmless.txt", _archive("archive/data.pkl")),
    ],
)
def test_pickles_are_refused(folder: Path, name: str, content: bytes) -> None:
    collect(folder)
    (folder / "transformer" / name).write_bytes(content)
    with pytest.raises(UserError, match="pickle"):
        collect(folder)


def test_other_archives_are_no_pickles(folder: Path) -> None:
    (folder / "harmless.zip").write_bytes(_archive("words.txt"))
    assert "harmless.zip" in collect(folder).files


def test_a_folder_without_a_card_a_run_and_a_link_are_refused_and_hidden_files_stay(folder: Path) -> None:
    (folder / ".env").write_text("secret")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    upload = collect(folder)
    assert not any(name.startswith(".") for name in upload.files)
    assert {".env", ".git/config"} <= set(upload.left_out)

    link = folder / "link.txt"
    link.symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is a link"):
        collect(folder)
    link.unlink()

    (folder / "checkpoints").mkdir()
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="is the folder of a run"):
        collect(folder)
    (folder / "metrics.jsonl").unlink()

    (folder / "README.md").unlink()
    with pytest.raises(UserError, match="has no model card"):
        collect(folder)
    with pytest.raises(UserError, match="does not exist"):
        collect(folder / "nowhere")


@pytest.mark.parametrize("repo", ["model", "a/b/c", "../x", "a/..", "a b/c", "https://x/y"])
def test_names_that_are_no_repository(folder: Path, repo: str) -> None:
    with pytest.raises(UserError, match="OWNER/NAME"):
        push(folder, repo, lambda *_: True)


def test_the_command_refuses_without_a_terminal_and_shows_what_it_sends(hub: FakeHub, folder: Path) -> None:
    runner = CliRunner()
    refused = runner.invoke(app, ["push", str(folder), "--repo", REPO])
    assert isinstance(refused.exception, UserError) and "--yes" in str(refused.exception)
    assert not hub.asked

    done = runner.invoke(app, ["push", str(folder), "--repo", REPO, "--yes"])
    assert done.exit_code == 0, done.output
    for words in ("README.md", "3 files", "a new public repository", ACCOUNT, "sent as commit"):
        assert words in " ".join(done.output.split())
    assert TOKEN not in done.output
    assert hub.repos[REPO] == contents(folder)
