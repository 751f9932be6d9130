"""Clock and power beside times."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from tools.speed.gauge import Gauge, figures

NVIDIA_SMI = """#!/bin/sh
while :; do date '+%Y/%m/%d %H:%M:%S.%3N, 1500, 690.5'; touch "$0.read"; sleep 0.02; done
"""


def test_medians_are_those_since_the_start() -> None:
    lines = [f"2026/11/18 01:00:0{second}.000, {clock}, {power}" for second, clock, power in (
        (0, 1980, 120.5), (1, 1500, 690.0), (2, 1600, 700.0), (3, 1550, 695.5))]  # fmt: skip
    assert figures(lines, datetime(2026, 11, 18, 1, 0, 1)) == {"clock, MHz": 1550, "power, W": 695.5}
    assert figures(lines, datetime(2026, 11, 18, 1, 1)) == {}


def test_nvidia_smi_runs_beside_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with Gauge() as gauge:
        while not (tmp_path / "nvidia-smi.read").exists():
            time.sleep(0.01)
    assert gauge.figures == {"clock, MHz": 1500, "power, W": 690.5}


def test_without_nvidia_smi_there_are_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Gauge() as gauge:
        pass
    assert gauge.figures == {}
