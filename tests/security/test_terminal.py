"""Text from outside never acts on the terminal: each command prints control characters as their codes."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import tintype
from tests.caption_server import CaptionServer, caption_server, status
from tests.commands import COMMANDS
from tests.fault.promises import Promise
from tests.tiny import TINY, tiny_plan
from tests.tiny_store import image_file, imported, parquet_of
from tintype import cli
from tintype.config.strict import write_yaml
from tintype.data.store.importing import ImportOptions
from tintype.plan import plan_from_yaml
from tintype.runtime import streams
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.printable import acts, visible
from tintype.runtime.streams import VisibleStream
from tintype.study.folder import claim_folder
from tintype.study.study import load_study
from tintype.terminal import answers, lines, progress
from tintype.terminal.lines import EncodedConsole, say
from tintype.terminal.progress import Progress
from tintype.train.loop import train

MARK = "outside"
HOSTILE = f"\x1b]0;title\x07\x1b[2J\x9b31m\u202e{MARK}\u2066\u200b\r\x08\x7f\U000e0041"
"""Sets the title, clears the screen, reverses letters, goes back to the start of the line."""
QUOTED = json.dumps(HOSTILE)
PACKAGE = Path(tintype.__file__).parent


NAMES_NOTHING = {"encoder train", "tokenizer train"}
"""Commands that take no name but that of the folder they write to, and would work."""

Shown = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Run a command and return all that it printed."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["tintype", *map(str, arguments)])
        with pytest.raises(SystemExit):
            cli.main()
        said = capsys.readouterr()
        return said.out + said.err

    return run


def test_what_acts_is_written_out_and_all_else_is_left() -> None:
    assert visible("a\x1b[31mb\x9b\u202e\r") == "a\\x1b[31mb\\x9b\\u202e\\r"
    for text in ("two\n\tlines", "Ünïcödé 漢字 عربي", "👩\u200d👩", "نمی\u200cخواهم", "e\u0301", "[red] \\x1b"):
        assert visible(text) == text and not acts(text)
    for code in (*range(9), *range(11, 32), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), 0xFEFF):
        assert acts(chr(code)) and visible(chr(code)).isascii() and visible(chr(code)).isprintable()


@pytest.mark.promise(27)
def test_no_option_of_any_command_acts_on_the_terminal(promise: Promise, shown: Shown) -> None:
    """Give each command an option whose name is full of escape codes, as a shell does with a file's name."""
    assert len(COMMANDS) > 25
    for name in COMMANDS:
        printed = shown(*name.split(), f"--{HOSTILE}")
        promise.count(MARK in printed and not acts(printed), name)


@pytest.mark.promise(27)
def test_no_name_given_to_any_command_acts_on_the_terminal(
    promise: Promise, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each command a file, folder or name that is full of escape codes, in all arguments that it needs."""
    monkeypatch.chdir(tmp_path)
    also = {"push": ["--yes"], "sample": ["a prompt"]}
    for name, command in COMMANDS.items():
        needed = [one for one in command.params if one.required]
        if not needed or name in NAMES_NOTHING:
            continue
        given = [one for one in needed if one.param_type_name == "option"]
        words = [HOSTILE for one in needed if one.param_type_name == "argument"]
        words += [word for one in given for word in (one.opts[0], HOSTILE)]
        printed = shown(*name.split(), *words, *also.get(name, []))
        promise.count(MARK in printed and not acts(printed), f"{name}: {printed}")
    assert promise.tries > 15


STUDY = "question: Q\nrecipe: {plan}\nseeds: [0, 1]\narms: [{{name: N, techniques: [ema]}}]\n"


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a study, a run, a store and images whose names and texts are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "plan.yaml").write_text(TINY)
    hostile = yaml.safe_dump({"data": {"kind": "store", "path": HOSTILE, "size_px": 16}})
    (folder / "hostile.yaml").write_text(re.sub("data:.*\n", lambda _: hostile, TINY))
    (folder / "keys.yaml").write_text(f"{QUOTED}: 1\nmodel: {{{QUOTED}: 2}}\nobjective: {{kind: {QUOTED}}}\n")
    (folder / "value.yaml").write_text(f"seed: {QUOTED}\n")
    (folder / "broken.yaml").write_text(f"a: [\u202e{MARK}]]")  # of escapes YAML says the code
    (folder / "tag.yaml").write_text("a: !<%1B[2J" + MARK + "> 1\n")
    study = STUDY.format(plan=folder / "plan.yaml").replace("Q\n", f"{QUOTED}\n").replace("N,", f"{QUOTED},")
    (folder / "study.yaml").write_text(study)
    (folder / "study").mkdir()
    claim_folder(load_study(str(folder / "study.yaml")), folder / "study")
    train(tiny_plan("train.steps=1"), folder / "run", Interrupt())
    names = {HOSTILE: [HOSTILE] * 12, "words": [f"{HOSTILE} {index}" for index in range(12)]}
    source = parquet_of(folder / "source.parquet", [image_file(index) for index in range(12)], **names)
    imported(source, folder / "store", ImportOptions(captions={"long": "words"}, eval_share=0.4))
    (folder / "images").mkdir()
    for index in range(4):
        (folder / "images" / f"{index}{HOSTILE}.png").write_bytes(image_file(index) if index else b"no image")
        (folder / "images" / f"{index}{HOSTILE}.txt").write_text(HOSTILE)
    return folder


CASES: dict[str, Callable[[Path, Path, CaptionServer], list[object]]] = {
    "the arms of a study": lambda the, out, _: ["ablate", the / "study.yaml", "--dry-run", "--out", out],
    "an unknown arm": lambda the, out, _: ["ablate", the / "study.yaml", "--dry-run", "--out", out, "--arm", "x"],
    "a key of a study": lambda the, out, _: ["ablate", the / "keys.yaml", "--dry-run", "--out", out],
    "a study's report": lambda the, out, _: ["report", Path(shutil.copytree(the / "study", out / "study"))],
    "runs of a study": lambda the, out, _: ["sample", the / "study", "a ball"],
    "arms to compare": lambda the, out, _: ["plan", "diff", the / "study"],
    "an unknown arm of a folder": lambda the, out, _: ["plan", "show", the / "study", "--arm", "x"],
    "keys of a plan": lambda the, out, _: ["train", the / "keys.yaml", "--out", out],
    "a value of a plan": lambda the, out, _: ["train", the / "value.yaml", "--out", out],
    "a plan that is no YAML": lambda the, out, _: ["train", the / "broken.yaml", "--out", out],
    "a tag of a plan": lambda the, out, _: ["train", the / "tag.yaml", "--out", out],
    "a plan's folder of data": lambda the, out, _: ["train", the / "hostile.yaml", "--out", out],
    "a plan": lambda the, out, _: ["plan", "show", the / "hostile.yaml"],
    "the difference of plans": lambda the, out, _: ["plan", "diff", the / "plan.yaml", the / "hostile.yaml"],
    "an override": lambda the, out, _: ["train", the / "plan.yaml", "--out", out, "--set", f"seed=\u202e{MARK}"],
    "columns of a table": lambda the, out, _: ["data", "import", the / "source.parquet", "--out", out / "s"],
    "names of images": lambda the, out, _: ["data", "import", the / "images", "--out", out / HOSTILE],
    "a store": lambda the, out, _: ["data", "show", the / "store", "--where", f"{MARK} > \x1b1"],
    "a page of a store": lambda the, out, _: ["data", "inspect", the / "store", "--out", out / f"{HOSTILE}.html"],
    "a store as JSON": lambda the, out, _: ["data", "inspect", the / "store", "--json"],
    "a prompt": lambda the, out, _: ["data", "recaption", "--show-prompt", "--prompt-file", write(out / "p", HOSTILE)],
    "answers of a server": lambda the, out, server: [
        *("data", "recaption", Path(shutil.copytree(the / "store", out / "s")), "--column", "new"),
        *("--server", server.url, "--model", "m", "--limit", 3),
    ],
    "a card": lambda the, out, _: ["card", the / "run", "--name", HOSTILE],
    "samples": lambda the, out, _: ["sample", the / "run", HOSTILE, "--steps", 1, "--out", out / HOSTILE],
    "images to score": lambda the, out, _: [
        *("evaluate", "--images", the / "images", "--reference", the / "images", "--set", "metrics=[fd]"),
    ],
}


def write(path: Path, text: str) -> Path:
    path.write_text(text, newline="")
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[CaptionServer]:
    with caption_server() as started:
        yield started


@pytest.mark.promise(27)
@pytest.mark.parametrize("name", CASES)
def test_text_from_outside_is_shown_and_does_not_act(
    promise: Promise, name: str, things: Path, tmp_path: Path, shown: Shown, server: CaptionServer
) -> None:
    """Print hostile names, captions, prompts, plans, study files and answers of servers by each command that does."""
    server.always, server.reply = None, lambda key, body: f"A caption {HOSTILE} of some words."
    printed = shown(*CASES[name](things, tmp_path, server))
    promise.count(MARK in printed and not acts(printed), f"{name}: {printed!r}")


@pytest.mark.promise(27)
def test_an_error_of_a_server_does_not_act(
    promise: Promise, things: Path, tmp_path: Path, shown: Shown, server: CaptionServer
) -> None:
    """Let a caption server refuse with a hostile message."""
    server.always = status(400, HOSTILE)
    store = Path(shutil.copytree(things / "store", tmp_path / "s"))
    printed = shown("data", "recaption", store, "--column", "new", "--server", server.url, "--model", "m")
    promise.count(MARK in printed and not acts(printed), printed)


@pytest.mark.promise(27, control="control characters are not written out")
def test_control_without_the_check_text_acts(
    promise: Promise, things: Path, tmp_path: Path, shown: Shown, server: CaptionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Print hostile arms, keys, plans and file names without the check."""
    for module in (lines, streams, progress):
        monkeypatch.setattr(module, "visible", lambda text: text)
    for name in ("the arms of a study", "keys of a plan", "the difference of plans", "names of images"):
        promise.count(not acts(shown(*CASES[name](things, tmp_path, server))), name)
    assert promise.tries == len(promise.broken)


def test_a_plan_that_is_shown_can_be_read_again(things: Path, shown: Shown) -> None:
    printed = shown("plan", "show", things / "hostile.yaml")
    data: Any = plan_from_yaml(printed, "printed").data
    assert data.path == HOSTILE
    assert yaml.safe_load(write_yaml({"ü": HOSTILE})) == {"ü": HOSTILE}


def test_json_stays_json(shown: Shown, things: Path) -> None:
    found = json.loads(shown("data", "show", things / "store", "--json"))
    assert found["captions"] == ["long"]
    answers.put({"a": HOSTILE})


def test_a_table_on_a_terminal_has_colours_of_its_own_only() -> None:
    file = io.StringIO()
    console = EncodedConsole(file=file, force_terminal=True, color_system="standard", width=300)
    table = Table("a", title=escape(HOSTILE))
    table.add_row(escape(HOSTILE), style="green")
    console.print(table)
    say(console, HOSTILE, "red")
    own = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert "\x1b[31m" in file.getvalue() and own.count(MARK) == 3 and not acts(own)


def test_bars_and_lines_of_progress_do_not_act(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        with Progress(f"reading {HOSTILE}", 4, "steps", console=EncodedConsole(file=terminal, width=300)) as bars:
            bars.show(None, 2, note=HOSTILE)
            bars.show(None, 0.5, 1.0, HOSTILE, row=HOSTILE)
            sys.stderr.write(f"note: {HOSTILE}\n")  # by a library, while bars are drawn
            bars._drawn.refresh()
        printed = ""
        while "\x1b[?25h" not in printed and select.select([mine], [], [], 5)[0]:
            printed += os.read(mine, 1 << 16).decode()
    os.close(mine)
    assert printed.count(MARK) >= 4
    own = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.replace("\r", ""))
    assert not acts(own), "the title, and letters that turn others round"
    assert "\x1b[2J" not in printed and "\x1b[31m\u202e" not in printed
    log = io.StringIO()
    with Progress(HOSTILE, console=Console(file=log)) as bars:
        bars.show(None, 1, 3, HOSTILE, row=HOSTILE)
    assert MARK in log.getvalue() and not acts(log.getvalue())


def test_bars_of_other_libraries_are_left_as_they_are() -> None:
    """Leave the codes by which tqdm goes to the start of a line or up by lines, where it writes them alone."""
    file = io.StringIO()
    stream = VisibleStream(file)
    for text in ("\rfile: 50%", "\n\n\x1b[A\x1b[A", "\r", "\r      \r"):
        assert stream.write(text) == len(text)
    assert file.getvalue() == "\rfile: 50%\n\n\x1b[A\x1b[A\r\r      \r"
    stream.write("\x1b[Aover the line above")
    assert file.getvalue().endswith("\\x1b[Aover the line above")
    assert not hasattr(stream, "buffer"), "by which one writes past it"


def test_nothing_else_writes_to_the_terminal() -> None:
    """A console of rich's own, and text that goes past `render_str`, would not write control characters out."""
    allowed = {
        "terminal/progress.py": {"Text"},  # of bars, whose words are written out
        "terminal/serving.py": {"Console"},  # a quiet one
        "terminal/status.py": {"Live"},  # which `start_live` starts
        "runtime/signals.py": {"os.write"},
    }
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text()
        assert not re.search(r"sys\.__std|(stdout|stderr)\.buffer", text), file
        if not re.search(r"Console\(|Live\(|Text(Column)?\(|from_ansi|os\.write|echo\(", text):
            continue
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
        found = calls & {
            "Console",
            "Live",
            "Text",
            "TextColumn",
            "Text.from_ansi",
            "os.write",
            "typer.echo",
            "click.echo",
        }
        assert found <= allowed.get(file.relative_to(PACKAGE).as_posix(), set()), file
