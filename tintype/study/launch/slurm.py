"""Run workers as the tasks of a Slurm array. The script is written into the study's folder, where a user can read and
change it.

Slurm signals a task before the task's time limit, and when Slurm preempts the task. The worker then saves its state and
ends with exit code 143, and the task requeues itself. `srun` is not used, and no code is copied.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from tintype.runtime.files import write_text
from tintype.study.launch.launcher import Crew, run_program

SAVE_S = 120
"""Seconds before its time limit at which a worker begins to save."""

_SCRIPT = """#!/bin/bash
# Workers of a study, written by `tintype launch --on slurm`. Each task of the array is one worker.
{options}

# TERM comes before the time limit and at a preemption: the worker saves and ends with 143.
worker= told=
trap 'told=yes; if [ -n "$worker" ]; then kill -TERM "$worker" 2>/dev/null; fi' TERM
{command} &
worker=$!
if [ -n "$told" ]; then kill -TERM "$worker"; fi # it came in between
wait "$worker"
code=$?
while kill -0 "$worker" 2>/dev/null; do # the signal has ended the wait, but not yet the worker
    wait "$worker"
    code=$?
done

# What it had begun is resumed, by this task or by another.
if [ "$code" -eq 143 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"
"""


class Slurm:
    """A launcher that submits an array of tasks with `sbatch`."""

    def launch(self, crew: Crew) -> list[str]:
        script = write_script(crew)
        said = run_program(["sbatch", str(script)])
        return [f"{said} ({script}); logs: {crew.log('N')}"]


def write_script(crew: Crew) -> Path:
    options = [
        f"--job-name={shlex.quote(f'tintype-{crew.study.name}')}",
        f"--array=0-{crew.workers - 1}",
        *([f"--gpus-per-node={crew.gpus_per_worker}"] if crew.gpus_per_worker else []),
        *([f"--time={slurm_time(crew.time_s)}"] if crew.time_s is not None else []),
        *([f"--partition={shlex.quote(crew.partition)}"] if crew.partition else []),
        "--nodes=1",
        "--ntasks=1",
        "--requeue",
        "--open-mode=append",
        f"--signal=B:TERM@{SAVE_S}",
        f"--output={shlex.quote(str(crew.log('%a')))}",
    ]
    crew.folder.mkdir(exist_ok=True)
    script = crew.folder / "slurm.sh"
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    write_text(script, _SCRIPT.format(options=lines, command=crew.command))
    return script


def slurm_time(seconds: float) -> str:
    """Format a duration for Slurm, as HH:MM:SS."""
    minutes, left_s = divmod(math.ceil(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{left_s:02d}"
