"""Every long command shows progress in a log, and says what is kept when a signal stops it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.caption_server import caption_server
from tests.commands import COMMANDS as LISTED
from tests.screen import on_a_terminal
from tests.slow import third
from tests.tiny import TINY, tiny_plan
from tests.tiny_export import pixel_plan, text_settings, write_run
from tests.tiny_store import captioned, tiny_store
from tests.tiny_tuning import NO_PERCEPTUAL, tuned_plan
from tests.tiny_vae import write_tiny_vae
from tintype import __main__ as program
from tintype import cli
from tintype.bench import metrics as bench_metrics
from tintype.bench import run as bench
from tintype.cli.schemas import document_type
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import draw_batch
from tintype.evaluation import train_scene_encoder
from tintype.library import studies
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.sample import save_png
from tintype.study.folder import claim_folder
from tintype.study.study import load_study
from tintype.terminal.interrupts import begin_work
from tintype.terminal.lines import progress_console
from tintype.terminal.progress import Progress
from tintype.tokenizer_lab import report as tokenizer_report
from tintype.train.loop import train

AT_ONCE = {
    "card",
    "compare",
    "data presets",
    "data shapes",
    "judge",
    "pool",
    "launch",
    "new technique",
    "plan cost",
    "plan diff",
    "plan schema",
    "plan show",
    "power",
    "recipes",
    "schema",
    "status",
    "studies",
    "techniques",
}
"""Commands that only read a few small files."""


@dataclass(frozen=True)
class Things:
    """Files that commands work on. `out` is a folder of the test's own; the rest is shared by all tests."""

    shared: Path
    out: Path
    server: str = ""

    def __truediv__(self, name: str) -> Path:
        return self.shared / name


@dataclass(frozen=True)
class Long:
    """A long command: its arguments, a pattern of one of its lines in a log, and what an interrupted one says."""

    arguments: Callable[[Things], list[Any]]
    line: str
    kept: str
    raises: str = ""
    """A function that the command calls under way, where the signal comes if no progress is reported."""
    at: int = 1
    """The report of progress at which the signal comes."""


SMALL = ["--set", "count=8", "--set", "also=[]", "--set", "reference_count=8", "--set", "validation_count=4"]
SMALL += ["--set", "metrics=[fd]", "--set", "sampler.steps=2", "--set", "sampler.batch=4"]
VAE = ["size_px=16", "vae.width=8", "vae.blocks=1", "vae.stride_px=4", "vae.channels=2", "scenes.count=8"]
VAE = [word for one in [*VAE, "held_out=4", "steps=3", "batch=4"] for word in ("--set", one)]
IMAGES = ["--set", "encoders=[scenes]", "--set", "metrics=[fd]"]
RESUME = "run the same command to resume"
AGAIN = "run the same command again"


COMMANDS: dict[str, Long] = {
    "train": Long(
        lambda the: ["train", the / "plan.yaml", "--out", the.out / "run"],
        r"training: 3 of 6 steps \(50%\) · loss \d\.\d+ · [\d.,]+ images/s · .*\d+ s left",
        rf"saved at step 2; {RESUME}",
        at=4,
    ),
    "sample": Long(
        lambda the: ["sample", the / "run", "a red ball", "--out", the.out, "--count", 4, "--steps", 2, "--batch", 2],
        r"sampling: 3 of 4 images \(75%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"images of whole batches are in .*; {AGAIN}",
    ),
    "evaluate": Long(
        lambda the: ["evaluate", the / "run", *SMALL, "--json"],
        r"sampling: 6 of 8 images \(75%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"whole shards of sampled images are in .*evaluation; {RESUME}",
        at=3,
    ),
    "evaluate --images": Long(
        lambda the: ["evaluate", "--images", the / "a", "--reference", the / "b", *IMAGES, "--json"],
        r"encoding .*/a with scenes: 10 of 10 images \(100%\)",
        rf"features of the reference are cached once they are whole; {AGAIN}",
    ),
    "ema": Long(
        lambda the: ["ema", the / "run", "--lengths", "0.1,0.15", *SMALL, "--json"],
        r"scoring EMA lengths: 1 of 2 lengths \(\d+%\) · length 0.15: sampling, \d of 8 images · .*\d+ s left",
        rf"0 of 2 lengths are scored; {RESUME}",
    ),
    "report": Long(
        lambda the: ["report", the / "study"],
        r"writing the report",
        rf"the runs are unchanged; {AGAIN}",
    ),
    "bench": Long(
        lambda the: ["bench", "--recipe", the / "plan.yaml", "--steps", 2, "--json"],
        r"measuring: 2 of 5 parts \(40%\) · sampling · .*\d+ s left",
        rf"nothing was measured; {AGAIN}",
    ),
    "bench --technique": Long(
        lambda the: ["bench", "--recipe", the / "plan.yaml", "--steps", 2, "--technique", "ema", "--json"],
        r"measuring: 2 of 3 parts \(66%\) · 16 tokens, batch 4, dense again · .*\d+ s left",
        rf"nothing was measured; {AGAIN}",
    ),
    "bench --metrics": Long(
        lambda the: ["bench", "--recipe", the / "plan.yaml", "--metrics", "--json"],
        r"measuring: 1 of \d+ parts \(\d+%\) · fd, 4 features · .*\d+ s left",
        rf"nothing was measured; {AGAIN}",
    ),
    "bench --data": Long(
        lambda the: [
            *("bench", "--recipe", the / "plan.yaml", "--steps", 2, "--data", "--json", "--set", "data.kind=store"),
            *("--set", f"data={{kind: store, path: {the / 'store'}, size_px: 16}}"),
        ],
        r"measuring: 1 of \d parts \(\d+%\) · decoding with 1 threads",
        rf"nothing was measured; {AGAIN}",
    ),
    "bench --import": Long(
        lambda the: ["bench", "--import", the / "source.parquet", "--json"],
        r"importing: 6 of 12 images \(50%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"nothing was kept; {AGAIN}",
    ),
    "audit": Long(
        lambda the: ["audit", the / "plan.yaml", "--steps", 3, "--json"],
        r"auditing: 2 of 3 steps \(66%\) · .*\d+ s left",
        rf"an audit writes nothing; {AGAIN}",
    ),
    "data import": Long(
        lambda the: ["data", "import", the / "source.parquet", "--out", the.out / "store"],
        r"importing: 6 of 12 images \(50%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"\d+ records are kept; {RESUME}",
        at=4,
    ),
    "data export": Long(
        lambda the: ["data", "export", the / "store", "--to", "parquet", "--out", the.out / "exported"],
        r"exporting: 10 of 20 images \(50%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"nothing was exported; {AGAIN}",
    ),
    "data inspect": Long(
        lambda the: ["data", "inspect", the / "store", "--out", the.out / "page.html", "--json"],
        r"looking: 10 of 20 images \(50%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"the images read so far are kept; {RESUME}",
    ),
    "data recaption": Long(
        lambda the: [
            *("data", "recaption", the / "added", "--column", the.out.name, "--server", the.server, "--model", "m"),
            *("--concurrency", 1),
        ],
        r"captioning: 3 of 6 images \(50%\) · .* tokens · [\d.,]+ images/s · .*\d+ s left",
        rf"\d images, \d of them now.*; the answers are kept; {RESUME}",
        at=3,
    ),
    "data show": Long(
        lambda the: ["data", "show", the / "store", "--check", "--json"],
        r"checking: 10 of 20 images \(50%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"nothing was changed; {AGAIN}",
    ),
    "tokenizer train": Long(
        lambda the: ["tokenizer", "train", "--out", the.out / "vae", "--device", "cpu", *VAE],
        r"training: 2 of 3 steps \(66%\)",
        rf"saved at step 1; {RESUME}",
        at=2,
    ),
    "tokenizer cache": Long(
        lambda the: [
            *("tokenizer", "cache", the / "plan.yaml", "--set", "data.count=64"),
            *("--technique", f"tokenizer:to.kind=small-vae,to.folder={the / 'vae'}"),
        ],
        r"encoding: 32 of 64 images \(50%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"16 images are cached; {RESUME}",
    ),
    "tokenizer save": Long(
        lambda the: ["tokenizer", "save", the / "tuned", "--out", the.out / "saved", "--json"],
        r"writing .*/saved",
        rf"no file is left half written; {AGAIN}",
        "tintype.tokenizer_lab.save_tuned.load_run",
    ),
    "tokenizer report": Long(
        lambda the: [
            *("tokenizer", "report", "pixels", "--out", the.out, "--device", "cpu", "--json"),
            *("--set", "size_px=16", "--set", "count=8", "--set", "shown=1", "--set", "batch=2"),
        ],
        r"encoding and decoding with pixels: 4 of 8 images \(50%\) · [\d.,]+ images/s · .*\d+ s left",
        rf"no report was written; {AGAIN}",
    ),
    "encoder train": Long(
        lambda the: ["encoder", "train", "--out", the.out / "encoder", "--steps", 3, "--batch", 4],
        r"training: 2 of 3 steps \(66%\)",
        rf"saved at step 1; {RESUME}",
        at=2,
    ),
    "export": Long(
        lambda the: ["export", the / "prx", "--to", "safetensors", "--out", the.out / "model.safetensors"],
        r"writing .*/model.safetensors",
        rf"nothing was written; {AGAIN}",
        "tintype.export.trained.load_trained",
    ),
    "import": Long(
        lambda the: ["import", the / "model.safetensors", "--out", the.out / "run", "--set", *text_settings("t5")],
        r"reading .*/model.safetensors",
        rf"nothing was written; {AGAIN}",
        "tintype.export.import_run.read_foreign",
    ),
    "sync": Long(
        lambda the: ["sync", the / "run", the.out / "mirror"],
        r"copying to .*/mirror: \d+ of \d+ files \(\d+%\)",
        rf"what was copied is whole; {AGAIN} to copy the rest",
        at=2,
    ),
}
ELSEWHERE = {
    "ablate": "tests/unit/terminal/test_progress.py and tests/end_to_end/test_study.py: it starts processes",
    "propose": "tests/unit/study/test_propose.py: it runs what ablate runs",
    "replicate": "tests/unit/study/test_replicate.py: it runs what ablate runs",
    "check": "tests/unit/contract/test_run.py: it holds a file to the contract, and shows each check",
    "work": "tests/unit/study/test_work.py and tests/fault/test_workers.py: it shows what ablate shows",
    "serve": "tests/unit/serve: it answers requests until it is stopped",
    "push": "`test_a_stopped_push_says_how_to_resume`: it needs a hub",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("things")
    (folder / "plan.yaml").write_text(TINY)
    train(tiny_plan("train.steps=16", techniques=["power-ema"]), folder / "run", Interrupt())
    tiny_store(folder, 20)
    captioned(folder / "source.parquet", 12)
    tiny_store(folder, 6, "added")
    for name in ("a", "b"):
        (folder / name).mkdir()
        for index, image in enumerate(render(draw_batch(0, range(10), "eval"), 16, ord(name), range(10))):
            save_png(image, folder / name / f"{index}.png")
    write_tiny_vae(folder / "vae")
    train(tuned_plan("train.steps=1", techniques=[NO_PERCEPTUAL]), folder / "tuned", Interrupt())
    study = folder / "study.yaml"
    study.write_text(f"question: q\nrecipe: {folder / 'plan.yaml'}\nseeds: [0]\narms: [{{techniques: [ema]}}]\n")
    (folder / "study").mkdir()
    claim_folder(load_study(str(study)), folder / "study")
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with caption_server() as started:
        yield started.url


@pytest.fixture(scope="module")
def model(shared: Path) -> Path:
    """A run that can be exported, and its denoiser as a file."""
    pytest.importorskip("transformers")
    from tintype.export.trained import export_file

    write_run(shared / "prx", pixel_plan("t5"))
    export_file(shared / "prx", shared / "model.safetensors")
    return shared


@pytest.fixture
def things(shared: Path, server: str, tmp_path: Path, request: pytest.FixtureRequest) -> Things:
    if request.node.callspec.params["name"] in ("export", "import"):
        request.getfixturevalue("model")
    return Things(shared, tmp_path, server)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make small what no option makes small; give each test an empty cache."""
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bench, "_RENDER_COUNT", 8)
    monkeypatch.setattr(train_scene_encoder, "measure", lambda *arguments: {})
    monkeypatch.setattr(tokenizer_report, "at_hand", lambda known: False)
    monkeypatch.setattr(bench_metrics, "IMAGES", 40)
    monkeypatch.setattr(bench_metrics, "SIZES", (4,))


class Shell:
    """Runs commands in this process, as the console script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["tintype", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def on_each_report(monkeypatch: pytest.MonkeyPatch, act: Callable[[Progress], None]) -> None:
    """Act whenever a command reports progress, as the clock does every ten seconds."""
    show = Progress.show

    def shown(self: Progress, *arguments: Any, **options: Any) -> None:
        show(self, *arguments, **options)
        act(self)

    monkeypatch.setattr(Progress, "show", shown)


def test_each_command_answers_at_once_or_shows_progress() -> None:
    long = {name.partition(" --")[0] for name in COMMANDS} | set(ELSEWHERE)
    assert not long & AT_ONCE
    assert set(LISTED) == long | AT_ONCE


@pytest.mark.parametrize("name", third(list(COMMANDS)))
def test_a_log_says_how_far_a_command_is(
    name: str, things: Things, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_each_report(monkeypatch, lambda bars: bars._heartbeat.write())
    long = COMMANDS[name]
    arguments = long.arguments(things)
    code, out, err = shell(*arguments, *([] if "--json" in arguments else ["--json"]))
    assert code == 0, err
    lines = err.splitlines()
    assert any(re.match(long.line, line) for line in lines), err
    assert "\x1b" not in err and "" not in lines
    assert "error" not in json.loads(out)
    document_type(name.partition(" --")[0]).validate_json(out)


@pytest.mark.parametrize("name", third(list(COMMANDS)))
def test_a_terminal_shows_a_command_in_place(
    name: str, things: Things, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw every report many times: no code becomes text, and no frame stays on the screen."""
    frames = 0

    def draw(bars: Progress) -> None:
        nonlocal frames
        for _ in range(20):
            bars._drawn.refresh()
            frames += 1

    on_each_report(monkeypatch, draw)
    with on_a_terminal(stdout=False) as screen:
        code, _, _ = shell(*COMMANDS[name].arguments(things))
    assert code == 0, screen.text
    assert frames >= 20 or COMMANDS[name].raises, "else nothing is tried"
    assert len(screen.lines) < 20 and "\\x1b" not in screen.text, screen.text
    assert screen.cursor_shown and "━" not in screen.text, "bars are gone at the end"


@pytest.mark.parametrize("terminal", ["xterm-256color", "screen"])
def test_the_status_is_watched_in_place(
    terminal: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look 40 times, then stop with Ctrl-C."""
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 20:
            sys.stderr.write("note: \x1b[2J of another room\n")
        if looks == 40:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(studies, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(sys, "argv", ["tintype", "status", str(shared / "study"), "--watch"])
    with on_a_terminal(terminal) as screen, pytest.raises(SystemExit) as ended:
        cli.main()
    lines = screen.text.splitlines()
    assert (ended.value.code, lines[0]) == (130, "note: \\x1b[2J of another room"), screen.text
    assert lines[1].startswith("study: 2 runs: 2 waiting") and "0 s of worker time spent" in lines[2]
    assert lines[3:] == ["interrupted: a look writes nothing; run the same command again"] and screen.cursor_shown
    assert screen.drawn.count(lines[1]) >= 39


@pytest.mark.parametrize(("name", "number"), [(name, 2 if index % 2 else 15) for index, name in enumerate(COMMANDS)])
def test_an_interrupted_command_says_what_is_kept(
    name: str, number: int, things: Things, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, reports = COMMANDS[name], 0

    def stop(*arguments: object, **options: object) -> None:
        nonlocal reports
        reports += 1
        if long.raises or reports == long.at:
            signal.raise_signal(number)

    if long.raises:
        monkeypatch.setattr(long.raises, stop)
    else:
        on_each_report(monkeypatch, stop)
    if name == "evaluate":  # one that was scored before is only read
        things = Things(Path(shutil.copytree(things.shared / "run", things.out / "copy" / "run")).parent, things.out)
        shutil.rmtree(things / "run" / "evaluation", ignore_errors=True)
    code, out, err = shell(*long.arguments(things))
    assert code == 128 + number, out + err
    assert re.fullmatch(f"interrupted: {long.kept}", err.splitlines()[-1]), err
    assert err.count("interrupted:") == 1 and "Traceback" not in out + err
    if "--json" in long.arguments(things) and name != "ema":  # which shows the lengths that it has scored
        assert json.loads(out)["error"]["code"] == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_has_not_begun_is_ended_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(cli, "app", lambda: signal.raise_signal(number))
    cli.main()
    assert codes == [128 + number]
    assert capfd.readouterr().err == "interrupted: nothing was begun; run the same command again\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("made", [None, ImportError("initialization failed"), KeyError("half imported")], ids=str)
def test_a_signal_in_a_command_is_one_line_whatever_a_library_makes_of_it(
    number: int, made: Exception | None, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        begin_work()
        try:
            signal.raise_signal(number)
        except BaseException as raised:
            raise (made or raised) from raised

    monkeypatch.setattr(cli, "app", work)
    code, out, err = shell("techniques")
    assert (code, out) == (128 + number, "")
    assert err == "interrupted: no file is left half written; run the same command again\n"


def test_an_error_without_a_signal_keeps_its_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", lambda: os.environ["A_NAME_OF_NOTHING"])
    with pytest.raises(KeyError):
        cli.main()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_within_a_destructor_is_raised_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot raise there: it would print a traceback, and the command would work on."""

    class Raises:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def work() -> None:
        begin_work()
        del [Raises()][0]
        time.sleep(5)

    monkeypatch.setattr(cli, "app", work)
    began_s = time.monotonic()
    code, _, err = shell("techniques")
    assert (code, err.count("\n"), err[:12]) == (143, 1, "interrupted:")
    assert time.monotonic() - began_s < 4


def test_a_signal_after_the_end_ends_with_the_commands_own_code(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """While threads are waited for: the work is done, and "interrupted" would be wrong."""
    monkeypatch.setattr(cli, "app", lambda: sys.exit(3))
    assert shell("techniques")[0] == 3
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    signal.raise_signal(signal.SIGINT)
    assert codes == [3]


def test_the_line_of_a_signal_is_printed_though_it_came_within_a_print(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        begin_work()
        progress_console._enter_buffer()  # as a signal leaves it that comes before the buffer's end
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cli, "app", work)
    try:
        code, _, err = shell("techniques")
    finally:
        progress_console._exit_buffer()
    assert (code, err) == (130, "interrupted: no file is left half written; run the same command again\n")


def test_a_stopped_push_says_how_to_resume(tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintype.export.push.collect", lambda folder, repo: signal.raise_signal(signal.SIGINT))
    code, _, err = shell("push", tmp_path, "--repo", "me/model", "--yes")
    assert (code, err) == (130, f"interrupted: `tintype push {tmp_path} --repo me/model` resumes\n")


@pytest.mark.parametrize("name", ["train"])
def test_after_training_the_result_and_the_next_commands_are_printed(name: str, things: Things, shell: Shell) -> None:
    run = things.out / "a run"
    code, out, err = shell("train", things / "plan.yaml", "--out", run)
    assert code == 0, err
    done, following = out.splitlines()
    assert re.fullmatch(
        rf"trained 6 steps in {re.escape(str(run))}: final loss \d\.\d{{4}}, \d+ s, [\d.,]+ images/s", done
    )
    sample, evaluate = following.removeprefix("next: tintype ").split(", or tintype ")
    code, out, err = shell(*shlex.split(sample), "--steps", 1, "--out", things.out / "samples")
    assert code == 0, err
    code, out, err = shell(*shlex.split(evaluate), *SMALL)
    assert code == 0, err
    code, out, _ = shell("train", things / "plan.yaml", "--out", run)
    assert "all 6 steps were trained before" in out and following in out


def test_a_signal_during_the_imports_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As `main` of the command line does not handle them yet."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(cli, "main", lambda: signal.raise_signal(signal.SIGINT))
    program.main()
    assert codes == [130]
    assert capfd.readouterr().err == "interrupted: nothing was begun; run the same command again\n"
