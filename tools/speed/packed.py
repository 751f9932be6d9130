"""Many runs on one GPU: whether all are done, at which rate, beside a memory hog and a killed worker, with which bits.

    python -m tools.speed.packed rate OUT        the whole study, and its rate against the ideal
    python -m tools.speed.packed crowd OUT       a shorter one with --jobs 20, a hog, a killed and a faulty worker
    python -m tools.speed.packed same OUT        two arms and two seeds of `crowd` again with --jobs 1, bit for bit

The ideal is a GPU on which all runs pack as the plain arms do, each as long as its steps take alone: the rate that is
told is the share of that. Scoring counts as work, with the seconds that it took in `same`, where nothing ran beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import load_file

from tintype.runtime.leases import Claim, Leases

STUDY = "objectives-mini"
ARMS = ("repa",)
"""The arms of `same` beside the baseline: one that reads a teacher's cached tokens, so that both kinds are there."""
_HOG = """
import sys, time, torch
until, held = time.time() + float(sys.argv[2]), []
while time.time() < until:
    while len(held) < int(sys.argv[1]):
        try:
            held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            break
    time.sleep(1)
print(f"the hog held {len(held)} GiB at the end", flush=True)
"""
_FAULT = """
import multiprocessing, os, threading, time
from pathlib import Path
import torch
from tintype.techniques.technique import Technique

def fail(folder):
    while not (folder / "go").exists() or not torch.cuda.is_initialized():
        time.sleep(0.2)
    try:
        os.close(os.open(folder / "taken", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return  # another worker has the fault
    torch.zeros(1, device="cuda")[torch.tensor([1], device="cuda")]

# A plugin that adds nothing is refused.
TECHNIQUES = {"unused": Technique("optimizer", "changes nothing", lambda plan, options: {})}
if multiprocessing.parent_process() is not None:
    threading.Thread(target=fail, args=(Path(os.environ["FAULT"]),), daemon=True).start()
"""
"""A plugin that ends the context of one worker by a device-side assert, once there is a file `go`."""


def ablate(out: Path, *options: str, plugin: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a study, with what it prints in a file beside its folder."""
    log = out.with_suffix(".log").open("wb")
    plugins = ["--plugin", str(plugin)] if plugin else []
    command = [sys.executable, "-m", "tintype", *plugins, "ablate", STUDY, "--out", str(out), *options]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def settings(steps: int, seeds: int) -> tuple[str, ...]:
    return "--set", f"seeds={list(range(seeds))}", "--set", f"set=[train.steps={steps}]"


def claims(out: Path) -> list[tuple[str, Claim]]:
    """Return every attempt at every run, with the run's hash."""
    leases = Leases(out / "leases")
    return [(name, claim) for name in leases.disk.names(leases.folder) for claim in leases.history(name)]


def training(out: Path) -> Iterator[int]:
    """Yield the processes that train a run now."""
    for _, claim in claims(out):
        if claim.ended is None and claim.now.get("state") == "training":
            yield claim.process.pid


def ends(out: Path) -> dict[str, int]:
    """Return how many attempts ended in each state."""
    found: dict[str, int] = {}
    for _, claim in claims(out):
        state = str((claim.ended or {"state": "killed"})["state"])
        found[state] = found.get(state, 0) + 1
    return found


def rate(out: Path) -> None:
    """Run the whole study; print the share of the ideal rate."""
    began_s = time.monotonic()
    code = ablate(out / "rate", *settings(600, 4)).wait()
    seconds = time.monotonic() - began_s
    print(f"exit code {code} after {seconds:.0f} s; attempts: {ends(out / 'rate')}")
    results = json.loads((out / "rate" / "results.json").read_text())
    arms = [arm for arm in results["arms"] if arm.get("alone", {}).get("step_s")]
    for arm in arms:
        print(f"{arm['name']}: a step alone takes {1e3 * arm['alone']['step_s']:.1f} ms")
    done = [(arm, run) for arm in arms for run in arm["runs"] if run["state"] == "done"]
    work_s = sum(600 * arm["alone"]["step_s"] for arm, _ in done)
    print(f"{len(done)} runs of {work_s:.0f} s of steps alone, {3600 * len(done) / seconds:.0f} runs an hour")


def crowd(out: Path) -> None:
    """Run a shorter study while a hog of 60 GiB comes and goes, kill one of its workers and let another's GPU fail."""
    fault = out / "fault"
    fault.mkdir()
    (plugin := fault / "fault.py").write_text(_FAULT)
    os.environ["FAULT"] = str(fault)
    study, began_s = ablate(out / "crowd", "--jobs", "20", *settings(100, 3), plugin=plugin), time.monotonic()
    hog, killed = None, 0
    while study.poll() is None:
        seconds = time.monotonic() - began_s
        if hog is None and seconds > 30:
            hog = subprocess.Popen([sys.executable, "-c", _HOG, "60", "30"])
        if not killed and seconds > 40 and (found := next(training(out / "crowd"), 0)):
            killed = found
            os.kill(killed, signal.SIGKILL)
        if killed and seconds > 55 and not (fault / "go").exists() and len(list(training(out / "crowd"))) > 1:
            (fault / "go").touch()
        time.sleep(0.5)
    print(f"exit code {study.returncode} after {time.monotonic() - began_s:.0f} s; attempts: {ends(out / 'crowd')}")
    for _, claim in claims(out / "crowd"):
        if (claim.ended or {}).get("state") != "done":
            print(claim.about, claim.ended or "killed", claim.now.get("step"))
    if hog is not None:
        hog.wait()


def same(out: Path) -> None:
    """Run some of the runs of `crowd` alone, one after the other, and compare weights and scores."""
    arms = [word for arm in ARMS for word in ("--arm", arm)]
    code = ablate(out / "same", "--jobs", "1", *arms, *settings(100, 2)).wait()
    scoring = [float((claim.ended or {}).get("scoring_s", 0)) for _, claim in claims(out / "same")]  # type: ignore[arg-type]
    print(f"exit code {code}; scoring takes {fmean(scoring):.1f} s alone")
    for run in sorted((out / "same" / "runs").iterdir()):
        alone, packed = digests(run), digests(out / "crowd" / "runs" / run.name)
        print(f"{run.name}: weights {alone[0]}, {'equal' if alone == packed else f'DIFFERENT: {packed}, {alone}'}")


def digests(run: Path) -> tuple[str, str]:
    """Return hashes of the final weights and of the scores of a run."""
    weights, scores = hashlib.sha256(), hashlib.sha256()
    for file in sorted(run.glob("checkpoints/step-*/*.safetensors"))[-1:]:
        for name, tensor in sorted(load_file(file).items()):
            weights.update(name.encode() + tensor.view(-1).view(torch.uint8).numpy().tobytes())
    for file in sorted(run.glob("evaluation/*/result.json")):
        found = json.loads(file.read_text())["metrics"]
        scores.update(json.dumps({key: value for key, value in found.items() if "images_per_s" not in key}).encode())
    return weights.hexdigest()[:16], scores.hexdigest()[:16]


def main() -> None:
    action, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    {"rate": rate, "crowd": crowd, "same": same}[action](out)


if __name__ == "__main__":
    main()
