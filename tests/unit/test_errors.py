"""Errors of other libraries become errors for users."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tintype.errors import DamagedFileError, UserError, as_user_error


def test_the_message_has_what_failed_the_reason_and_the_remedy(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(UserError) as raised, as_user_error(OSError, f"cannot read {missing}", "give another"):
        missing.read_text()
    assert str(raised.value) == f"cannot read {missing}: No such file or directory; give another"


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
