"""Several `tintype work` on the GPUs of this machine, as many as are asked for or fit (`packing`).

They share CUDA's Multi-Process Service, and their logs are in `launch/` of the study's folder.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.runtime.leases import Leases
from tintype.runtime.mps import side_by_side
from tintype.runtime.parent import command_with_parent
from tintype.study.launch.launcher import FOLDER
from tintype.study.packing import AsFits, Jobs, gpu_names, most_of
from tintype.study.worker import LEASES, anchor_of

_POLL_S = 0.5
_LOOK_S = 10.0
"""Time between looks at what was measured."""
_MOST_STARTS = 3
_SHORT_S = 60.0
"""A worker that is killed so often in a row, each time so soon, is not started again."""
_TOLD = 143
"""Exit code of a worker that was told to stop, and has saved."""


@dataclass
class _Member:
    """A worker process. It is told to stop once: a second signal would end it before it has saved."""

    process: subprocess.Popen[bytes]
    began_s: float = field(default_factory=time.monotonic)
    told: bool = False

    def stop(self) -> None:
        if not self.told and self.process.poll() is None:
            self.told = True
            self.process.terminate()


class Pack:
    """The workers of one command, each in a slot. The slots go round the GPUs."""

    def __init__(self, out: Path, jobs: Jobs, options: Sequence[str], say: Callable[[str], None]) -> None:
        self.out, self.jobs, self.options, self.say = out.resolve(), jobs, options, say
        self.leases = Leases(self.out / LEASES, anchor=anchor_of(self.out / LEASES))
        self.members: dict[int, _Member] = {}
        self.killed: dict[int, int] = {}
        """How often in a row the worker of a slot was killed soon after its start."""
        self.failed: set[int] = set()
        """Slots whose workers are not started again."""
        self.over = False
        """Whether a worker has found nothing left to do."""

    def run(self) -> int | None:
        """Keep a worker in each slot until nothing is left; return the signal that stopped them, if one did."""
        (self.out / FOLDER).mkdir(exist_ok=True)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        with side_by_side(most_of(self.jobs)), watch_signals(*numbers) as interrupt:
            try:
                self._keep(interrupt)
            finally:
                for member in self.members.values():
                    member.stop()
                for member in self.members.values():
                    member.process.wait()
        if self.failed and not self.over and interrupt.signal is None:
            raise UserError(f"all workers failed; {self.log('N')} has their words")
        return interrupt.signal

    def _keep(self, interrupt: Interrupt) -> None:
        looked_s, room = -_LOOK_S, 0
        while interrupt.signal is None:
            self.leases.check_place()
            if time.monotonic() - looked_s > _LOOK_S:
                before, room, looked_s = room, self._room(), time.monotonic()
                if room != before:
                    self.say(f"{room} workers on {len(gpu_names())} GPUs; logs: {self.log('N')}")
            self._collect()
            for slot, member in self.members.items():
                if slot >= room:
                    member.stop()
            for slot in range(0 if self.over else room):
                if slot not in self.members and slot not in self.failed:
                    self.members[slot] = _Member(self._start(slot))
            if not self.members:
                return
            time.sleep(_POLL_S)

    def _room(self) -> int:
        return self.jobs.now(self.leases) if isinstance(self.jobs, AsFits) else self.jobs

    def _collect(self) -> None:
        """Note how workers have ended. One that was killed, or told to stop, is started again where there is room."""
        for slot, member in list(self.members.items()):
            if (code := member.process.poll()) is None:
                continue
            del self.members[slot]
            if code == 0:
                self.over = True
            elif code != _TOLD:
                soon = code < 0 and time.monotonic() - member.began_s < _SHORT_S
                self.killed[slot] = self.killed.get(slot, 0) + 1 if soon else 0
                if code > 0 or self.killed[slot] >= _MOST_STARTS:
                    self.failed.add(slot)
                self.say(f"worker {slot} ended with exit code {code}; {self.log(slot)} has its words")

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        names = gpu_names()
        command = [sys.executable, "-m", "tintype", "work", str(self.out), *self.options]
        script = ["bash", "-c", 'exec "${@:2}" >> "$1" 2>&1 < /dev/null', "bash", str(self.log(slot)), *command]
        gpu = {"CUDA_VISIBLE_DEVICES": names[slot % len(names)]} if names else {}
        # In a session of its own: a terminal's SIGINT goes to this process, which asks each worker once.
        return subprocess.Popen(command_with_parent(script), env={**os.environ, **gpu}, start_new_session=True)

    def log(self, slot: int | str) -> Path:
        return self.out / FOLDER / f"worker-{platform.node()}-{slot}.log"
