"""Unit tests lie where the code lies: tests/unit/ROOM for tintype/ROOM, and likewise for tools and tests' helpers."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"
OTHERS = ("tools", "tests")
"""Folders beside the package that have unit tests of their own."""


def is_at_its_place(file: Path) -> bool:
    """Return whether the room of a test is in the package, or its module where the package has no room for it."""
    room = file.relative_to(UNIT).parent
    if room == Path():
        return (ROOT / "tintype" / f"{file.stem.removeprefix('test_')}.py").is_file()
    return (ROOT / "tintype" / room).is_dir() or str(room) in OTHERS


def test_each_unit_test_is_in_the_room_that_it_tests() -> None:
    assert [str(file) for file in UNIT.rglob("test_*.py") if not is_at_its_place(file)] == []
    assert not is_at_its_place(UNIT / "attic" / "test_plan.py") and not is_at_its_place(UNIT / "test_attic.py")
