"""An error has a problem and a fix, and errors of other libraries become errors for users."""

from __future__ import annotations

import errno
import pickle
import traceback
from pathlib import Path

import pytest

from tintype.errors import DamagedFileError, DivergedError, UserError, as_user_error
from tintype.wording import MARKS, Option, again, option, setting


def test_the_text_has_the_problem_and_the_fix() -> None:
    error = UserError("the run is gone", "train it again")
    assert (str(error), error.problem, error.fix) == (
        "the run is gone; train it again",
        "the run is gone",
        "train it again",
    )
    assert str(UserError("the run is gone")) == "the run is gone"
    listed = UserError("it does not work:\n- no data", "\nOverrides: none")
    assert (str(listed), listed.fix) == ("it does not work:\n- no data\nOverrides: none", "Overrides: none")


def test_options_are_data_and_the_text_speaks_the_language_of_the_surface() -> None:
    error = DivergedError(f"{option('arm', 'muon')} is gone", f"{again()} with {setting('seeds', '[0]')}")
    assert str(error) == '--arm muon is gone; run the same command with --set "seeds=[0]"'
    assert error.options == (Option("arm", "muon"), Option("set", "seeds=[0]"))
    error.speak("python")
    assert str(error) == 'arm="muon" is gone; make the same call with "seeds=[0]"'
    assert (error.problem, error.fix) == ('arm="muon" is gone', 'make the same call with "seeds=[0]"')


def test_nothing_that_shows_an_error_has_a_mark() -> None:
    error = UserError(f"cannot write to {option('out', 'x')}", f"choose another {option('out')}")
    try:
        raise error
    except UserError:
        shown = traceback.format_exc()
    for text in (
        shown,
        repr(error),
        str(error.args),
        error.problem,
        error.fix,
        f"{error}",
        repr(ExceptionGroup("g", [error])),
    ):
        assert not MARKS & set(text)
        assert "--out" in text


def test_an_error_that_quotes_another_keeps_its_data() -> None:
    inner = UserError(f"{option('arm', 'muon')} is unknown", f"choose another {option('arm')}")
    for outer in (inner.at("study.yaml"), UserError(f"study.yaml: {inner.marked}"), UserError(*inner.parts)):
        assert outer.options == inner.options
    assert str(inner.at("study.yaml")) == "study.yaml: --arm muon is unknown; choose another --arm"
    assert inner.at("study.yaml").fix == "choose another --arm"


def test_an_error_survives_a_process() -> None:
    error = DamagedFileError(f"{option('arm', 'muon')} is damaged", f"choose another {option('out')}")
    error.reason = "it is empty"
    error.speak("python")
    found = pickle.loads(pickle.dumps(error))
    assert isinstance(found, DamagedFileError)
    assert (str(found), found.fix, found.options, found.reason) == (str(error), error.fix, error.options, error.reason)


def test_the_message_has_what_failed_the_reason_and_the_remedy(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(UserError) as raised, as_user_error(OSError, f"cannot read {missing}", "give another"):
        missing.read_text()
    assert str(raised.value) == f"cannot read {missing}: No such file or directory; give another"
    assert raised.value.fix == "give another"


def test_a_reason_without_the_systems_words_is_the_errors_own() -> None:
    with pytest.raises(UserError, match=r"^it failed: connection lost$"), as_user_error(OSError, "it failed"):
        raise OSError("connection lost")
    with pytest.raises(UserError, match=r"^it failed: no number$"), as_user_error((KeyError, ValueError), "it failed"):
        raise ValueError("no number")


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ValueError, match=r"^other$"), as_user_error(OSError, "it failed"):
        raise ValueError("other")
    with pytest.raises(DamagedFileError, match=r"^own$"), as_user_error((OSError, ValueError), "it failed"):
        raise DamagedFileError("own")
    with pytest.raises(UserError) as raised, as_user_error(OSError, "it failed"):
        raise PermissionError(errno.EACCES, "Permission denied", "file")
    assert isinstance(raised.value.__cause__, PermissionError)
