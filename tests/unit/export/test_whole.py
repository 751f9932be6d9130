from __future__ import annotations

from pathlib import Path

import pytest

from tintype.errors import UserError
from tintype.export.whole import written_whole


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), written_whole(tmp_path / "deep" / "out") as temporary:
        temporary.mkdir()
        (temporary / "half").write_text("half")
        raise ValueError("stop")
    assert list((tmp_path / "deep").iterdir()) == []


def test_leftovers_of_a_dead_process_go_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    dead = tmp_path / ".out.writing-999999999"
    dead.mkdir()
    (tmp_path / "out").mkdir()
    with written_whole(tmp_path / "out") as temporary:
        temporary.mkdir()
        (temporary / "whole").write_text("whole")
        assert not (tmp_path / "out" / "whole").exists()
    assert not dead.exists()
    assert [entry.name for entry in tmp_path.rglob("*")] == ["out", "whole"]


def test_a_target_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists already"), written_whole(tmp_path / "out") as temporary:
        temporary.write_text("mine")
        (tmp_path / "out").write_text("theirs")
    assert (tmp_path / "out").read_text() == "theirs"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), written_whole(tmp_path / "file" / "out"):
        pass
