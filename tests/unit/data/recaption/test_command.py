"""The command as a user types it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.caption_server import CaptionServer, caption_server, status
from tests.tiny_store import tiny_store
from tintype.cli import main
from tintype.data.recaption.prompts import PROMPTS
from tintype.data.store.layout import open_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tiny_store(tmp_path, 6)


@pytest.fixture
def server() -> Iterator[CaptionServer]:
    with caption_server() as started:
        yield started


class Shell:
    """Runs commands in this process, as the console script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["tintype", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def test_captions_are_added_and_reported(shell: Shell, store: Path, server: CaptionServer) -> None:
    keys = open_store(store).texts("sha256")
    server.reply = lambda key, body: "I can't." if key == keys[0] else "Caption: A dog."
    prices = ("--price-per-million-input", 1, "--price-per-million-output", 2)
    asked = ("data", "recaption", store, "--column", "vlm", "--server", server.url, "--model", "m", *prices)
    code, out, err = shell(*asked, "--prompt", "short", "--limit", 2)
    assert code == 0 and "a trial" in out and "A dog." in out, err
    code, out, err = shell(*asked, "--prompt", "short")
    assert code == 0, err
    assert "captions vlm added; 6 images" in out and "cost 0.00096" in out
    assert "1 captions are empty (1 refusal)" in out and "5 were cleaned" in out
    assert server.asked[0]["messages"][0]["content"][1]["text"] == PROMPTS["short"]
    assert server.asked[0]["max_tokens"] == 96
    code, out, err = shell("data", "show", store, "--check")
    assert "captions: long, short, vlm" in out and "by m; 1 are empty" in out
    code, out, err = shell(*asked, "--prompt", "short")
    assert code == 0 and "were added before" in out


def test_a_prompt_is_shown(shell: Shell, tmp_path: Path) -> None:
    assert shell("data", "recaption", "--show-prompt", "--prompt", "short")[1] == PROMPTS["short"] + "\n"
    (tmp_path / "own.txt").write_text(" Was ist zu sehen? \n", encoding="utf-8")
    out = shell("data", "recaption", "--show-prompt", "--prompt-file", tmp_path / "own.txt")[1]
    assert out == "Was ist zu sehen?\n"


def test_mistakes_are_reported_with_a_way_out(shell: Shell, store: Path, server: CaptionServer, tmp_path: Path) -> None:
    empty, latin = tmp_path / "empty.txt", tmp_path / "latin.txt"
    empty.write_text(" \n")
    latin.write_bytes("für".encode("latin-1"))
    asked = ("data", "recaption", store, "--column", "vlm", "--server", server.url, "--model", "m")
    server.always = status(404, "The model `m` does not exist.")
    for words, arguments in {
        "--column NAME, --model MODEL is missing": asked[:3],
        "store.json is missing": ("data", "recaption", tmp_path / "none", *asked[3:]),
        "cannot read --prompt-file": (*asked, "--prompt-file", tmp_path / "none.txt"),
        "is empty; write the question": (*asked, "--prompt-file", empty),
        "is not UTF-8": (*asked, "--prompt-file", latin),
        "both set the question": (*asked, "--prompt-file", latin, "--prompt", "long"),
        "did you mean 'short'": (*asked, "--prompt", "shorts"),
        "is not one of 'train', 'eval'": (*asked, "--split", "test"),
        "has imported captions": (*asked, "--column", "long"),
        "has a built-in column 'width'": (*asked, "--column", "width"),
        "The model `m` does not exist.": asked,
        "leave it out if you use --server": (*asked, "--revision", "main"),
        "write it as http://HOST:PORT": (*asked, "--server", "localhost"),
        "the environment variable is missing": (*asked, "--key-variable", "TINTYPE_NO_SUCH_KEY"),
        "no server answers at http://127.0.0.1:9/v1": (*asked, "--server", "http://127.0.0.1:9"),
        "whose content may change; give --revision": (*asked[:5], "--model", "someone/vlm"),
    }.items():
        code, out, err = shell(*arguments)
        assert code == 2 and words in err, (words, out, err)
    assert open_store(store).captions == ["long", "short"]
