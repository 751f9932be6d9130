"""Real data that is there on some machines only; a test that needs it skips where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[2] / "shared"


def shared(name: str) -> Path:
    path = _FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return path
