"""CUDA's Multi-Process Service, which runs kernels of several processes on one GPU at the same time.

One command starts the service for its workers and stops the service at its end. If a user has already started a service
and named it in CUDA_MPS_PIPE_DIRECTORY, that service is used unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tintype.runtime.notes import note_once
from tintype.runtime.parent import command_with_parent

SWITCH = "TINTYPE_MPS"
"""Environment variable that disables CUDA's Multi-Process Service if set to 0."""
_CONTROL, _PIPES, _LOGS = "nvidia-cuda-mps-control", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_START_S, _END_S = 20.0, 10.0
_PROBE = """
import ctypes
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
for failed in (
    lambda: cuda.cuInit(0),
    lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    lambda: cuda.cuCtxSetCurrent(context),
    lambda: cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)),
):
    if code := failed():
        raise SystemExit(f"CUDA error {code}")
"""
"""Program that tests the service by allocating memory on the first GPU. Importing torch would take seconds."""


@contextmanager
def side_by_side(jobs: int) -> Iterator[bool]:
    """Let processes started inside the context share the GPUs through the service; yield whether it is used.

    The service is not used if it is missing or fails, or if each process has its own GPU.
    """
    control = shutil.which(_CONTROL)
    if control is None or jobs <= torch.cuda.device_count() or _PIPES in os.environ or os.environ.get(SWITCH) == "0":
        yield False
        return
    with TemporaryDirectory(prefix="tintype-mps-") as folder, _service(control, Path(folder)) as variables:
        before = dict(os.environ)
        os.environ.update(variables)
        try:
            yield bool(variables)
        finally:
            for name in variables:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)


@contextmanager
def _service(control: str, folder: Path) -> Iterator[dict[str, str]]:
    """Run the service; yield the environment variables for its clients, or none if it does not work."""
    variables = {_PIPES: str(folder / "pipes"), _LOGS: str(folder / "logs")}
    for value in variables.values():
        Path(value).mkdir()
    environment = {**os.environ, **variables}
    nowhere = subprocess.DEVNULL
    command = command_with_parent([control, "-f"])
    # In a session of its own: otherwise Ctrl-C would end the service while workers still save.
    daemon = subprocess.Popen(
        command, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    try:
        if reason := _why_not(environment, folder / "pipes"):
            note_once("mps", f"CUDA's Multi-Process Service does not work here ({reason}): runs take turns on the GPU")
        yield {} if reason else variables
    finally:
        with suppress(subprocess.SubprocessError, OSError):
            subprocess.run([control], input=b"quit -t 2\n", env=environment, capture_output=True, timeout=_END_S)
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(_END_S)
        daemon.kill()
        daemon.wait()


def _why_not(environment: Mapping[str, str], pipes: Path) -> str:
    until_s = time.monotonic() + _START_S
    while not (pipes / "control").exists():
        if time.monotonic() > until_s:
            return "it did not start"
        time.sleep(0.05)
    try:
        command = [sys.executable, "-I", "-S", "-c", _PROBE]
        tried = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_START_S)
    except subprocess.TimeoutExpired:
        return f"a program that uses it was not done after {_START_S:.0f} s"
    return "" if tried.returncode == 0 else tried.stderr.strip()[-200:]
