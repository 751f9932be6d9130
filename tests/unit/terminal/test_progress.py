"""Progress is a bar on a terminal, and a line at least every ten seconds in a log."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from tests.screen import on_a_terminal
from tintype.cli.shared import console as console_of_commands
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.streams import prepare_streams
from tintype.study.runner import Message
from tintype.terminal import progress as progress_module
from tintype.terminal.interrupts import Interrupted
from tintype.terminal.progress import Bar, Heartbeat, Progress, duration
from tintype.terminal.studies import StudyDisplay


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(log: io.StringIO) -> Console:
    return Console(file=log)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LOG_EVERY_S", 0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, which the test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    yield now
    monkeypatch.undo()


def wait_for(log: io.StringIO, lines: int) -> None:
    deadline = time.monotonic() + 10
    while log.getvalue().count("\n") < lines and time.monotonic() < deadline:
        time.sleep(0.005)
    assert log.getvalue().count("\n") >= lines


def test_a_log_is_not_silent_for_ten_seconds() -> None:
    assert progress_module.LOG_EVERY_S < 10


@pytest.mark.usefixtures("often")
def test_lines_come_while_one_operation_takes_long_and_end_with_it(console: Console, log: io.StringIO) -> None:
    with Progress("loading the network", console=console):
        wait_for(log, 4)
    ended = log.getvalue()
    time.sleep(0.05)
    assert log.getvalue() == ended
    assert set(ended.splitlines()) == {"loading the network"} and "\x1b" not in ended


def test_a_line_says_what_how_far_how_fast_and_how_long(console: Console, log: io.StringIO, clock: list[float]) -> None:
    with Progress("training", 1000, "steps", console=console) as bars:
        bars.show(None, 200, note="loss 0.5")  # a resumed run: what came before says nothing about the speed
        clock[0] += 10
        bars.show(None, 300)
        bars._heartbeat.write()
        clock[0] += 70
        bars.show(None, 1000)
    assert log.getvalue().splitlines() == [
        "training: 0 of 1,000 steps (0%)",
        "training: 300 of 1,000 steps (30%) · loss 0.5 · after 10 s · 1 min 10 s left",
        "training: 1,000 of 1,000 steps (100%) · loss 0.5 · after 1 min 20 s",
    ]


def test_the_speed_is_that_of_the_part_under_way(console: Console, log: io.StringIO, clock: list[float]) -> None:
    with Progress("sampling", console=console) as bars:
        for done in (0, 10):
            bars.show("sampling", done, 10)
            clock[0] += 1
        bars.show("encoding", 0, 100)
        bars._heartbeat.write()
        clock[0] += 1
        bars.show("encoding", 50, 100)
        bars._heartbeat.write()
    lines = log.getvalue().splitlines()
    assert lines[1] == "encoding: 0 of 100 images (0%) · after 2 s"
    assert lines[2] == "encoding: 50 of 100 images (50%) · 50 images/s · after 3 s · 1 s left"


def test_fractions_of_images_add_up(clock: list[float]) -> None:
    bar = Bar("sampling", 1, "images")
    for step in range(1, 51):
        bar.show(None, sum([0.02] * step), None, None)
        clock[0] += 1
    assert sum([0.02] * 50) != 1, "else nothing is tried"
    assert (bar.count, bar.percent, bar.left) == ("1 of 1 images", "100%", "")


def test_the_time_left_follows_the_last_half_minute(clock: list[float]) -> None:
    """A compilation in the first step says nothing about the others."""
    bar = Bar("training", 1000, "steps")
    for done, seconds in ((0, 60), (1, 1)):
        bar.show(None, done, None, None)
        clock[0] += seconds
    for done in range(2, 100):
        bar.show(None, done, None, None)
        clock[0] += 1
    assert bar.per_s == pytest.approx(1)
    slow = Bar("training", 10, "steps")
    for done in range(3):
        slow.show(None, done, None, None)
        clock[0] += 100
    assert slow.left == "13 min left"


def test_a_mistake_is_no_end(console: Console, log: io.StringIO) -> None:
    with pytest.raises(ValueError, match="broken"), Progress("training", 10, "steps", console=console) as bars:
        bars.show(None, 5)
        raise ValueError("broken")
    assert log.getvalue().splitlines() == ["training: 0 of 10 steps (0%)"]


@pytest.mark.usefixtures("often")
def test_ranks_that_do_not_lead_are_quiet(log: io.StringIO) -> None:
    with Progress("training", console=Console(file=log, quiet=True)):
        time.sleep(0.05)
    assert log.getvalue() == ""


@pytest.mark.usefixtures("often")
def test_of_two_that_run_the_inner_one_is_heard(console: Console, log: io.StringIO) -> None:
    with Heartbeat(console, lambda: "outer"):
        with Progress("inner", console=console):
            early = log.getvalue()  # a beat of the outer one, on a busy machine
            wait_for(log, early.count("\n") + 4)
        inner = log.getvalue()
        wait_for(log, inner.count("\n") + 2)
    assert set(inner[len(early) :].splitlines()) == {"inner"}
    assert set(log.getvalue()[len(inner) :].splitlines()) == {"outer"}


def test_a_log_that_is_gone_does_not_end_the_command() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with Progress("training", console=Console(file=Gone())) as bars:
        bars.show(None, 1)


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_file_gets_no_control_codes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with (tmp_path / "log").open("w") as file, Progress("training", 4, "steps", console=Console(file=file)) as bars:
        bars.show(None, 2)
    assert (tmp_path / "log").read_text() == "training: 0 of 4 steps (0%)\ntraining: 2 of 4 steps (50%)\n"


def test_a_terminal_gets_a_bar_with_the_same_words() -> None:
    interrupt = Interrupt()
    with on_a_terminal() as screen:
        prepare_streams()
        with Progress("a [red] arm", 4, "steps", interrupt=interrupt) as bars:
            bars.show(None, 2, note="loss 0.5")
            bars._drawn.refresh()
            interrupt.signal = 2
            bars._drawn.refresh()
            sys.stderr.write("drawn\n")
    (bar,) = [line for line in screen.drawn if "loss 0.5" in line]
    assert bar.startswith("a [red] arm ━") and "50%" in bar and "2 of 4 steps · loss 0.5" in bar
    assert any("stopping" in line for line in screen.drawn)
    assert screen.text == "drawn" and screen.cursor_shown, "bars are gone at the end"


@pytest.mark.parametrize("terminal", ["xterm-256color", "screen", "tmux-256color"])
def test_bars_are_redrawn_in_place(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bars of a study with two runs: lines that are printed meanwhile stay above them.

    Frames are drawn by the test alone: rich may write a line and a frame of its own thread in either order.
    """
    monkeypatch.setattr("rich.live._RefreshThread.run", lambda thread: None)
    with on_a_terminal(terminal) as screen:
        prepare_streams()
        with StudyDisplay(console_of_commands, 4, Interrupt()) as display:
            for step in range(40):
                for seed in (0, 1):
                    display.on_message(Message(("ema", seed), "training", step / 40, "", step, 0.25, 310.0))
                display._drawn.refresh()
            display.on_message(Message(("ema", 0), "done", 1.0, "fd_scenes 3"))
            sys.stderr.write("note: a line of another room\n")
            display._drawn.refresh()
    ended = ["[1/4] ema, seed 0: done · fd_scenes 3", "note: a line of another room"]
    assert screen.text.splitlines() == ended and screen.cursor_shown
    assert any(line.startswith("ema, seed 1") and "step 39" in line for line in screen.drawn)


def test_control_the_screen_shows_codes_that_are_written_as_text() -> None:
    """A console of rich's own draws through the checked stream: its codes are text, and each frame is a new line."""
    with on_a_terminal() as screen:
        prepare_streams()
        live = Live("a frame\nof two lines", console=Console(), auto_refresh=False)
        with live:
            for _ in range(20):
                live.refresh()
    assert screen.text.count("\\x1b[2K") >= 19


@pytest.mark.parametrize(
    ("width", "first", "second"),
    [
        (98, "study ━━━━ 25% 1 of 4 runs are done 5 min 00 s left", "25% step 9 · loss 0.5 · 12 images/s"),
        (68, "study 25% 1 of 4 runs are done 5 min 00 s left", "x-prediction:…0.05, seed 1 25% step 9 · loss 0.5"),
        (60, "study 25% 1 of 4 runs are done 5 min 00 s left", "x-predict…, seed 1 25% step 9"),
        (44, "study 25% 1 of 4 runs are done", "x-predict…, seed 1 25% step 9"),
        (30, "study 25%", "x-prediction…0.05, seed 1 25%"),
    ],
)
def test_bars_leave_out_what_matters_least_in_a_narrow_terminal(
    clock: list[float], log: io.StringIO, width: int, first: str, second: str
) -> None:
    console = Console(file=log, width=width)
    bars = Progress("study", 4, "", console=console)
    bars.show(None, 0)
    clock[0] += 100
    bars.show(None, 1, note="1 of 4 runs are done")
    bars.show(None, 0.25, 1, "step 9 · loss 0.5 · 12 images/s", row="x-prediction:clamp=0.05, seed 1")
    console.print(bars._drawn.get_renderable())
    shown = log.getvalue().splitlines()
    assert len(shown) == 2 and all(len(line) <= width for line in shown)
    words = [" ".join(line.split()) for line in shown]
    assert words[0] == first and words[1].endswith(second)


def test_what_is_kept_travels_with_the_signal(console: Console) -> None:
    done = 0
    with pytest.raises(Interrupted) as stopped, Progress("x", kept=lambda: f"{done} are kept", console=console):
        done = 3
        raise Interrupted(2)
    assert stopped.value.kept == "3 are kept"


def test_a_study_says_in_a_log_how_far_its_runs_are(capsys: pytest.CaptureFixture[str], log: io.StringIO) -> None:
    with StudyDisplay(Console(file=log), 4, Interrupt()) as display:
        display.on_message(Message(("ema", 0), "training", 0.4, "", 50, 0.25, 310.0))
        display._heartbeat.write()
        display.on_message(Message(("ema", 0), "done", 1.0, "fd_scenes 3"))
    first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith("study: 0%")
    assert second.startswith("study: 10% · 0 of 4 runs are done")
    assert second.endswith("; ema, seed 0: step 50 · loss 0.2500 · 310 images/s")
    assert last.startswith("study: 25% · 1 of 4 runs are done") and "ema" not in last
    assert log.getvalue() == "[1/4] ema, seed 0: done · fd_scenes 3\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59, "59 s"), (59.5, "1 min 00 s"), (640, "10 min"), (7500, "2 h 05 min"), (180_000, "2 days 2 h")],
)
def test_durations_are_read_at_a_glance(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_command_that_reports_no_progress_is_one_line_in_a_log(console: Console, log: io.StringIO) -> None:
    with Progress("writing model.safetensors", console=console):
        pass
    assert log.getvalue() == "writing model.safetensors\n"


def test_the_time_left_is_not_guessed_from_the_start_of_a_study(clock: list[float]) -> None:
    """Twelve runs of 100 s each after 20 s of start-up: steps of 0.8 / 1000 of a run every 0.08 s."""
    bar = Bar("study", 12, "")
    bar.show(None, 0, None, None)
    guesses = {}
    for step in range(1, 1000):
        clock[0] = 120.0 + 0.08 * step
        bar.show(None, step * 0.8 / 1000, None, None)
        guesses[clock[0] - 100.0] = bar.left
    early = {after: left for after, left in guesses.items() if after < 35}
    assert set(early.values()) == {""}, "20 s for the first step of 15,000 would be 83 hours"
    seen = [left for left in guesses.values() if left]
    assert set(seen) <= {f"{minutes} min left" for minutes in range(15, 31)}, "in truth 20 minutes"
    assert guesses[max(guesses)].startswith(("18 min", "19 min"))


def test_a_stall_of_minutes_before_the_first_step_is_no_measure_of_it(clock: list[float]) -> None:
    bar = Bar("training", 10_000, "steps")
    bar.show(None, 0, None, None)
    clock[0] += 180  # compiling
    bar.show(None, 1, None, None)
    assert bar.left == "", "not 500 hours"
    for step in range(2, 700):
        clock[0] += 0.1
        bar.show(None, step, None, None)
    assert bar.left == "15 min left", "930.1 s, of which whole minutes are shown"
