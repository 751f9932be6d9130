"""How many workers share a GPU: a given number, or as many as its memory holds by the measured peak of a run.

A worker writes the peak of each run that it has trained into the run's claim, with the memory of its GPU. So what fits
is a function of the study's files: one worker for each GPU until a run was measured on this machine, then as many as
the largest peak of the study allows. Where memory runs out all the same, for a later arm may need more, there is one
worker for each GPU again until that run has ended and was measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tintype.errors import UserError
from tintype.runtime.files import Json
from tintype.runtime.leases import Claim, Leases
from tintype.study.runner import ENDED, OUT_OF_MEMORY

MOST_PER_GPU = 8
"""However small the runs: each worker also needs a core and memory of the host."""
USED_SHARE = 0.9
"""Share of a GPU's memory that workers may fill."""
CONTEXT_BYTES = 1 << 30
"""Allowance for what torch does not count: a process's CUDA context, and the libraries that it loads there."""


@dataclass(frozen=True)
class AsFits:
    """As many workers as the memory of the GPUs holds."""

    gpus: int

    @property
    def most(self) -> int:
        return self.gpus * MOST_PER_GPU

    def now(self, leases: Leases) -> int:
        """Return how many workers there is room for, by what was measured so far."""
        return self.gpus * room_of(leases)


Jobs = int | AsFits
"""How many workers a command starts."""


def most_of(jobs: Jobs) -> int:
    return jobs if isinstance(jobs, int) else jobs.most


def choose_jobs(jobs: int | None, per_gpu: str | None) -> Jobs:
    """Return the workers that `--jobs` or `--per-gpu` asks for."""
    if per_gpu is None:
        return jobs or 1
    if jobs is not None:
        raise UserError(f"--jobs {jobs} and --per-gpu {per_gpu}: each says how many workers there are; give one")
    return jobs_of(per_gpu)


def jobs_of(per_gpu: str) -> Jobs:
    """Read `--per-gpu`: a number of workers for each GPU of this machine, or auto."""
    number = parse_per_gpu(per_gpu)
    if not (gpus := torch.cuda.device_count()):
        raise UserError(f"--per-gpu {per_gpu}: there is no GPU here; `tintype ablate --jobs N` shares a CPU")
    return AsFits(gpus) if number is None else number * gpus


def parse_per_gpu(per_gpu: str) -> int | None:
    """Return the number of workers; None for auto."""
    if per_gpu == "auto":
        return None
    if not per_gpu.isdecimal() or int(per_gpu) < 1:
        raise UserError(f"--per-gpu {per_gpu}: give a number of at least 1, or auto")
    return int(per_gpu)


def gpu_names() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]


def room_of(leases: Leases) -> int:
    """Return how many workers fit onto one GPU of this machine; 1 before a run was measured on it."""
    peaks, totals = [0], list[int]()
    for name in leases.disk.names(leases.folder):
        claims = leases.history(name)
        if claims and _ran_out(claims):
            return 1
        for claim in claims:
            peak, total = (_bytes(claim.ended or {}, key) for key in ("peak_bytes", "gpu_bytes"))
            peaks.append(peak)
            if peak and total and claim.process.is_here:
                totals.append(total)
    if not totals:
        return 1
    return max(1, min(MOST_PER_GPU, int(USED_SHARE * min(totals) / (max(peaks) + CONTEXT_BYTES))))


def _ran_out(claims: list[Claim]) -> bool:
    """Return whether memory ran out in a run that has not ended since."""
    ends = [claim.ended or {} for claim in claims]
    if ends[-1].get("state") in ENDED:
        return False
    return any(str(end.get("text", "")).startswith(OUT_OF_MEMORY) for end in ends)


def _bytes(ended: Mapping[str, Json], key: str) -> int:
    value = ended.get(key)
    return value if isinstance(value, int) else 0


def forget_peak() -> None:
    """Begin to measure the memory of a run on this process's GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # memory that the last run has left is not this one's
        torch.cuda.reset_peak_memory_stats()


def read_peak() -> tuple[int, int]:
    """Return the peak since, and the GPU's memory, in bytes; zeros where this process has used no GPU."""
    if not torch.cuda.is_initialized():
        return 0, 0
    return torch.cuda.max_memory_reserved(), torch.cuda.get_device_properties(0).total_memory
