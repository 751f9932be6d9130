"""`python -m tools.live FOLDER [--lines N]`: write a study of 500 runs with long logs, and time its live page.

Prints the time until the page is answered, and until all curves were sent. Also prints the CPU time of an update in
which eight runs log new lines, and of an update in which a run ends. The latter is split into the look that shows it
and the verdicts.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
import urllib.request
from pathlib import Path

from tintype.evaluation.protocol import Protocol, definitions
from tintype.evaluation.results import EvaluationResult, result_file, write_result
from tintype.runtime.files import write_checked, write_sealed
from tintype.runtime.garbage import without_pauses
from tintype.serve.links import Links
from tintype.serve.live import LiveStudy
from tintype.serve.server import LiveServer, follow
from tintype.study.folder import stored_study
from tintype.study.lab import prepare_study
from tintype.study.runner import Task, tasks_of
from tintype.study.study import load_study

RUNNING = 8


def line(step: int, number: int) -> bytes:
    """Return a line like a line of training, of about equal length."""
    parts = dict.fromkeys(
        ("data", "text", "tokenizer", "teacher", "forward", "losses", "backward", "optimizer"), 0.0123
    )
    by_time = {f"{(bin + 0.5) / 8:g}": 1.0 / (1 + step) for bin in range(8)}
    loss = 0.2 + 1 / (1 + step / 500)
    content = {"step": step, "images": 32 * step, "loss": loss, "flow": loss, "flow_by_time": by_time}
    content |= {"grad_norm": 0.3, "lr": 1e-3, "images_per_s": 200.0, "seconds": 0.16, "parts": parts}
    return json.dumps(content | {"line": number, "checksum": "0123456789abcdef"}).encode() + b"\n"


def write(folder: Path, lines: int) -> list[Path]:
    """Write the study, and return its logs."""
    seeds, controls = list(range(125)), list(range(1000, 1125))
    study = load_study("pocket", [f"seeds={seeds}", f"control_seeds={controls}", f"set=[train.steps={lines}]"])
    if not (folder / "study.yaml").exists():
        prepare_study(study, folder)
    logs = [task.folder / "metrics.jsonl" for task in tasks_of(stored_study(folder), folder)]
    content = b"".join(line(number, number) for number in range(1, lines + 1))
    for log in logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(content)
    return logs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.live")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", type=int, default=10_000)
    given = parser.parse_args()
    logs = write(given.folder / "study", given.lines)
    print(f"{len(logs)} runs of {given.lines:,} lines, {logs[0].stat().st_size * len(logs) / 1e9:.1f} GB")
    with without_pauses():  # as `tintype serve` does
        measure(given.folder, given.lines, logs)


def measure(folder: Path, lines: int, logs: list[Path]) -> None:
    """Print how long the first page and the updates take."""
    with LiveServer(folder, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for words in ("first", "second"):
            began = time.perf_counter()
            page = urllib.request.urlopen(f"{server.url}study/study").read()
            print(f"{words} page: {time.perf_counter() - began:.2f} s, {len(page) / 1e3:.0f} kB")
        server.shutdown()
    for thread in threading.enumerate():
        if thread.name.startswith("live "):  # the server's own: all CPU time from here on is of the updates
            thread.join()
    live = live_study(folder / "study")
    began, cpu = time.perf_counter(), time.process_time()
    while live.step():
        pass
    print(f"all logs read: {time.perf_counter() - began:.1f} s, {time.process_time() - cpu:.1f} s of CPU time")
    news = follow(live, [])
    live._asked_s, live._reading = time.monotonic() + 1e9, True  # this thread looks
    while next(news)[0] != "curves":
        pass
    live.settle()
    for turn in range(5):
        for log in logs[:RUNNING]:
            with log.open("ab") as file:
                file.writelines(line(lines, lines + 5 * turn + number) for number in range(1, 6))
        cpu = time.process_time()
        live.step()
        looked = time.process_time()
        sent = next(news)
        look_ms, send_ms = 1e3 * (looked - cpu), 1e3 * (time.process_time() - looked)
        size = len(json.dumps(sent)) / 1e3
        print(f"update with {RUNNING} runs: {look_ms:.0f} + {send_ms:.0f} ms of CPU time (look, send), {size:.0f} kB")
    measure_an_end(folder / "study")


def live_study(folder: Path) -> LiveStudy:
    """Return the study as the server follows it, with the search for links that lead out."""
    place = folder.resolve()
    return LiveStudy(place, "study", Links(place.parent))


def score(task: Task, protocol: Protocol) -> Path:
    """Write the scores of a run: as many metrics as in a study, and numbers of single images."""
    file = result_file(task.folder, protocol, task.plan.train.steps)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(task.folder / "plan.yaml", task.plan.to_yaml(), run=task.plan.hash)
    write_checked(task.folder / "environment.json", {"parameters": 1})
    draw = random.Random(task.plan.hash)
    metrics = {name: draw.gauss(1.0, 0.05) for name in definitions(protocol, True)}
    result = EvaluationResult(
        metrics=metrics,
        errors=dict.fromkeys(metrics, 0.01),
        encoders={},
        warnings=(),
        seconds=1.0,
        plan=task.plan.hash,
        step=task.plan.train.steps,
        weights="raw",
        protocol=protocol,
        protocol_hash=protocol.hash,
        details={},
        samples={},
        real={},
        time_split={},
        previews=(),
    )
    write_result(file, result, {name: [draw.random() for _ in range(256)] for name in list(metrics)[:3]})
    return file


def measure_an_end(folder: Path) -> None:
    """Score all runs but one, look, score the last, and print the CPU time of the look and of the verdicts."""
    study = stored_study(folder)
    tasks, protocol = tasks_of(study, folder), study.settings.evaluation
    result_file(tasks[-1].folder, protocol, tasks[-1].plan.train.steps).unlink(missing_ok=True)
    for task in tasks[:-1]:
        score(task, protocol)
    live = live_study(folder)
    while live.step():
        pass
    live.settle()
    score(tasks[-1], protocol)
    live._rested_s = 0.0
    began, cpu = time.process_time(), time.thread_time()
    live.step()
    look_ms = 1e3 * (time.thread_time() - cpu)
    live.settle()
    whole_ms = 1e3 * (time.process_time() - began)
    print(
        f"a run ends: {look_ms:.0f} ms of CPU time for the look, {whole_ms - look_ms:.0f} ms beside it for the verdicts"
    )


if __name__ == "__main__":
    main()
