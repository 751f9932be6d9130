"""`tintype ablate` and `tintype report`: a study from its file to its report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tintype.errors import UserError
from tintype.settings import plain
from tintype.strict import read_file, write_yaml
from tintype.study.compare import collect
from tintype.study.report import write_report
from tintype.study.runner import Message, run_tasks, tasks_of
from tintype.study.study import Study, resolve
from tintype.terminal import StudyDisplay, show_verdicts
from tintype.train.folder import write_text
from tintype.train.interrupt import watch_signals


def run_study(study: Study, out: Path, jobs: int, console: Console) -> int:
    """Runs what is not done yet, then writes the report. Returns the exit code."""
    _claim(study, out)
    tasks = tasks_of(study, out)
    protocol = study.settings.evaluation
    with watch_signals() as interrupt, StudyDisplay(console, len(tasks)) as display:
        last = run_tasks(tasks, protocol, jobs, interrupt, display.on_message)
    failed = [message for message in last.values() if message.state == "failed"]
    _say_failures(failed, console)
    _report(study, out, console)
    if interrupt.signal is not None:
        console.print("interrupted: run the same command to go on", highlight=False)
        return interrupt.exit_code
    return 1 if failed else 0


def report_study(out: Path, console: Console) -> None:
    file = out / "study.yaml"
    if not file.is_file():
        raise UserError(f"{out} holds no study; `tintype ablate STUDY --out {out}` makes one")
    document = read_file(file)
    name = document.data.pop("name")
    _report(resolve(name, document), out, console)


def _claim(study: Study, out: Path) -> None:
    """Makes the folder this study's. A study may grow arms and seeds in place; another baseline may not move in."""
    file = out / "study.yaml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if file.exists():
            document = read_file(file)
            there = resolve(document.data.pop("name"), document)
            mine, theirs = study.arms[0].plans[0], there.arms[0].plans[0]
            if mine.model_copy(update={"seed": 0}).hash != theirs.model_copy(update={"seed": 0}).hash:
                raise UserError(f"{out} holds a study of another baseline ('{there.name}'); choose another --out")
        write_text(file, write_yaml({"name": study.name, **plain(study.settings)}))
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another --out") from None


def _report(study: Study, out: Path, console: Console) -> None:
    results = collect(study, out)
    path = write_report(results, out)
    show_verdicts(results, console)
    console.print(f"report: {path.resolve()}", soft_wrap=True, highlight=False)


def _say_failures(failed: list[Message], console: Console) -> None:
    for message in failed:
        arm, seed = message.key
        console.print(f"failed: {arm}, seed {seed}: {message.text}", style="red", markup=False, soft_wrap=True)
