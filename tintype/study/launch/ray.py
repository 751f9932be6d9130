"""Run workers as Ray tasks on this machine alone or on a cluster.

The tasks belong to the command that starts them, so the command waits until they have ended. If a worker is killed or
its machine is lost, Ray starts the worker's task again. A worker that ends with an error is not started again. Ray
copies no code, so a task runs `tintype work` with the Python interpreter at the same path on every machine.
"""

from __future__ import annotations

import importlib
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from tintype.errors import UserError
from tintype.runtime.parent import command_with_parent
from tintype.runtime.signals import handle_signals
from tintype.study.launch.launcher import Crew
from tintype.wording import option

STARTS_AGAIN = 20
"""Maximum number of restarts by Ray of a killed or lost worker. The study itself limits how often a run is tried."""
_POLL_S = 0.2
_TOLD = 143
"""Exit code of a worker that received a stop signal and has saved its state."""


class KilledWorkerError(Exception):
    """Raised if a worker was killed or stopped, but not by the starting command; Ray restarts the worker."""


class FailedWorkerError(Exception):
    """Raised if a worker ended with an error; Ray does not restart the worker, since the error would occur again."""


class Ray:
    """A launcher that starts the workers of a study as Ray tasks, and waits for them."""

    def __init__(self, address: str = "") -> None:
        self.address = address

    def launch(self, crew: Crew) -> Iterator[str]:
        ray = _import_ray()
        crew.folder.mkdir(exist_ok=True)
        told: list[int] = []
        _connect(ray, self.address)
        undo = handle_signals(told.append)
        try:
            yield _room(ray.cluster_resources(), crew)
            names = _start(ray, crew)
            yield f"{crew.workers} workers are tasks of Ray, which end with this command; logs: {crew.log('ray-N')}"
            failed = yield from _watch(ray, names, told)
        finally:
            undo()
            ray.shutdown()
        if told:
            yield "the workers were told to stop, and have saved; the same command resumes"
            raise SystemExit(128 + told[0])
        if failed:
            raise UserError(f"{failed} of {crew.workers} workers failed; their output is in {crew.log('ray-N')}")


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(f"{option('on', 'ray')} needs ray ({error})", "pip install 'tintype[ray]'") from None


def _connect(ray: Any, address: str) -> None:
    """Join the cluster at this address, or a cluster that Ray finds; if none exists, start one on this machine."""
    try:
        ray.init(address=address or None, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{option('on', 'ray')}: no Ray cluster answers at {address or 'this machine'}: "
            f"{' '.join(str(error).split())}"
        ) from None


def _room(resources: dict[str, float], crew: Crew) -> str:
    """Describe how many workers fit at present; a cluster may grow later."""
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    room = int(min(cpus, gpus // crew.gpus_per_worker if crew.gpus_per_worker else cpus))
    waits = "" if room >= crew.workers else f": room for {room} of {crew.workers} workers, the others wait for more"
    return f"Ray has {cpus:.0f} CPUs and {gpus:.0f} GPUs{waits}"


def _start(ray: Any, crew: Crew) -> dict[Any, str]:
    """Start a task for each worker; return the workers' names by the tasks' handles."""
    task = ray.remote(
        num_gpus=crew.gpus_per_worker,
        num_cpus=1,
        max_calls=1,
        max_retries=STARTS_AGAIN,
        retry_exceptions=[KilledWorkerError],
        scheduling_strategy="SPREAD",
    )(run_worker)
    names = [f"ray-{number}" for number in range(crew.workers)]
    return {task.remote(crew.command, str(crew.log(name)), str(Path.cwd())): name for name in names}


def _watch(ray: Any, names: dict[Any, str], told: list[int]) -> Generator[str, None, int]:
    """Yield how each worker ended; return how many workers failed. On a signal, ask all workers to save and stop."""
    left, failed, cancelled = list(names), 0, False
    while left:
        if told and not cancelled:
            cancelled = True
            for handle in left:
                ray.cancel(handle)
        ended, left = ray.wait(left, num_returns=1, timeout=_POLL_S)
        for handle in ended:
            error = _error(ray, handle)
            if error and not cancelled:
                failed += 1
                yield f"{names[handle]} failed: {error}"
    return failed


def _error(ray: Any, handle: Any) -> str:
    try:
        ray.get(handle)
    except ray.exceptions.RayError as error:
        return (str(error).strip().splitlines() or ["no reason is known"])[-1]
    return ""


def run_worker(command: str, log: str, folder: str) -> None:
    """Run a worker until it ends. This function is the Ray task; the task's process ends with the worker."""
    script = f'exec {command} >> "$0" 2>&1 < /dev/null'
    worker = subprocess.Popen(command_with_parent(["bash", "-c", script, log]), cwd=folder)
    try:
        while worker.poll() is None:
            time.sleep(_POLL_S)
    except KeyboardInterrupt:  # the command that started it was told to stop
        worker.terminate()
        worker.wait()
        raise
    if worker.returncode < 0 or worker.returncode == _TOLD:
        raise KilledWorkerError(f"the worker ended with exit code {worker.returncode}")
    if worker.returncode:
        raise FailedWorkerError(f"the worker ended with exit code {worker.returncode}; {log} says why")
