"""The late view that the tests of shared folders use: it is late, and no more than it should be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.late_view import late_view, why_not

LAG_S = 0.6


@pytest.mark.slow
def test_a_view_sees_its_own_writes_at_once_and_those_of_another_late(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    (tmp_path / "server").mkdir()
    with (
        late_view(tmp_path / "server", tmp_path / "a", LAG_S) as a,
        late_view(tmp_path / "server", tmp_path / "b", LAG_S) as b,
    ):
        late = 0
        for number in range(20):
            mine, theirs = a / str(number), b / str(number)
            assert not theirs.exists()
            mine.write_text("old")
            assert mine.read_text() == "old"
            late += not theirs.exists()
            with pytest.raises(FileExistsError):
                theirs.open("x")
            time.sleep(LAG_S / 10)
        assert late > 5
        time.sleep(LAG_S)
        assert b.joinpath("0").read_text() == "old"
        stale = 0
        for number in range(20):
            (a / "new").write_text(f"{number:03d}")
            (a / "new").rename(a / "0")
            stale += b.joinpath("0").read_text() != f"{number:03d}"
            time.sleep(LAG_S / 10)
        assert stale > 5
        time.sleep(2 * LAG_S)
        assert b.joinpath("0").read_text() == (tmp_path / "server" / "0").read_text() == "019"
