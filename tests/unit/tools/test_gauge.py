"""Clock and power beside times."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import pytest
import torch

from tools.speed import gauge

NVIDIA_SMI = """#!/bin/sh
echo "$@" > "$0.arguments"
echo "no reading"
while :; do date '+%Y/%m/%d %H:%M:%S.%3N, 1500, 690.5'; echo x >> "$0.read"; sleep 0.02; done
"""
CPU, GPU = torch.device("cpu"), torch.device("cuda")
LIMIT_S = 20.0


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program of that name where it is found, which prints readings."""
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gauge, "uuid", lambda _: "GPU-1")
    return program


def test_medians_are_those_since_the_start() -> None:
    readings = (
        (0, "1980", "120.5"),
        (1, "1500", "690.0"),
        (2, "1600", "700.0"),
        (3, "1550", "695.5"),
        (4, "9", "[N/A]"),
    )
    lines = [f"2026/11/18 01:00:0{second}.000, {clock}, {power}" for second, clock, power in readings]
    lines.append("NVIDIA-SMI has failed because it could not communicate with the driver.")
    assert gauge.figures(lines, datetime(2026, 11, 18, 1, 0, 1)) == {"clock, MHz": 1550, "power, W": 695.5}
    assert gauge.figures(lines, datetime(2026, 11, 18, 1, 1)) == {}


def test_nvidia_smi_reads_the_device_beside_the_steps(nvidia_smi: Path) -> None:
    read, until_s = nvidia_smi.with_suffix(".read"), time.monotonic() + LIMIT_S
    with gauge.Gauge(GPU) as found:
        while not (read.exists() and len(read.read_text()) > 10) and time.monotonic() < until_s:
            time.sleep(0.01)
    assert found.figures == {"clock, MHz": 1500, "power, W": 690.5}
    assert nvidia_smi.with_suffix(".arguments").read_text().startswith("-i GPU-1 ")


def test_a_cpu_has_no_figures(nvidia_smi: Path) -> None:
    with gauge.Gauge(CPU) as found:
        pass
    assert found.figures == {} and not nvidia_smi.with_suffix(".arguments").exists()


def test_without_nvidia_smi_there_are_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with gauge.Gauge(GPU) as found:
        pass
    assert found.figures == {}
