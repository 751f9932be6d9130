"""Messages of the rooms below name options of commands; those of the library name arguments."""

from __future__ import annotations

import pytest

from tintype.errors import DivergedError, UserError
from tintype.library.words import for_python, in_python


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("--set train.stepz=3: unknown key", "train.stepz=3: unknown key"),
        ("for example --set 'seeds={first: 4}'", "for example 'seeds={first: 4}'"),
        ("choose another --out", "choose another `out`"),
        ("choose a run with --arm and --arm-seed", "choose a run with `arm` and `seed`"),
        ("--ema-length 0.1: there is none", "`ema_length` 0.1: there is none"),
        ("make room, then run the same command again to resume", "make room, then make the same call again to resume"),
        ("`tintype train RECIPE --out DIR` makes one", "`tintype train RECIPE --out DIR` makes one"),
        ("leave --set and --technique out", "leave `settings` and `techniques` out"),
    ],
)
def test_options_become_arguments(command: str, python: str) -> None:
    assert in_python(command) == python


def test_an_error_keeps_its_class_and_its_place() -> None:
    def fail(text: str) -> None:
        raise DivergedError(text)

    with pytest.raises(DivergedError, match="choose another `out`") as found:
        for_python(fail)("choose another --out")
    assert found.traceback[-1].name == "fail"
    assert isinstance(found.value, UserError)
    assert for_python(fail).__name__ == "fail"
