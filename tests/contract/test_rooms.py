"""The house stays in order: rooms import from rooms below them, and print in two rooms only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.house import rooms
from tools.house.counts import code_lines, prints_of, vague_docstrings
from tools.house.picture import FLOORS, PICTURE, draw
from tools.house.rooms import LOOSE, ORDER, PACKAGE, against_the_order, all_imports, imports_of


def test_no_import_goes_against_the_order() -> None:
    assert not [str(found) for found in against_the_order(all_imports())]


def test_every_room_has_its_place_in_the_order() -> None:
    there = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or _is_room(path)}
    assert there - {"__init__"} == set(ORDER)


def test_only_what_everything_rests_on_is_a_loose_file() -> None:
    assert {file.stem for file in PACKAGE.glob("*.py")} == LOOSE


@pytest.mark.parametrize(
    "source",
    [
        "from tintype.train import loop",
        "def build():\n    from tintype.train.loop import train\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tintype.train.loop\n",
        "from tintype import train",
    ],
    ids=["at the top", "in a function", "for types", "from the package"],
)
def test_an_import_against_the_order_is_found(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tintype"
    (package / "data").mkdir(parents=True)
    (package / "train").mkdir()
    (package / "data" / "order.py").write_text(source)
    monkeypatch.setattr(rooms, "PACKAGE", package)
    wrong = against_the_order(list(imports_of(package / "data" / "order.py")))
    assert [found.target for found in wrong] == ["train"]


def test_only_the_terminal_and_the_commands_print() -> None:
    """`runtime/` may write where nobody else can: the watchdog's last words, for example."""
    printing = {"terminal", "cli", "runtime"}
    quiet = [file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] not in printing]
    assert not [f"{file}:{line}" for file in quiet for line in prints_of(file)]


def test_docstrings_name_their_subject() -> None:
    assert not vague_docstrings()


def test_the_picture_shows_every_room_once_and_is_drawn_from_the_code() -> None:
    drawn = [room for _, floor in reversed(FLOORS) for room in floor]
    assert drawn == [room for room in ORDER if room != "__main__"]
    assert PICTURE.read_text(encoding="utf-8") == draw()


def test_lines_of_code_leave_out_comments_and_docstrings() -> None:
    assert code_lines('"""Doc."""\n\n# why\nx = [\n    1,\n]\n') == 3


def _is_room(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.py"))
