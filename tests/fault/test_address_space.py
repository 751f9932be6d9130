"""A command that may use too little memory to load its libraries says so in one line."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.fault.promises import Promise
from tintype import __main__ as program
from tintype.runtime.address_space import LEAST_BYTES, why_not_loaded, why_too_small

SIZES_MB = (200, 300, 500, 700, 900, 1000, 1200, 1500)


def limited(megabytes: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 10**6,) * 2)

    return limit


def ran(megabytes: int, code: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run a command in a limited address space; `code` is run before."""
    begin = (
        f"import sys; sys.argv = ['tintype', 'plan', 'show', 'pocket']; import tintype.__main__ as m; {code}; m.main()"
    )
    command = [sys.executable, "-c", begin]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            preexec_fn=limited(megabytes),
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "it hangs")


def is_said(done: subprocess.CompletedProcess[str]) -> bool:
    lines = done.stderr.splitlines()
    return done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: not enough memory to load torch: ")


@pytest.mark.promise(30)
def test_too_little_address_space_is_said_in_one_line(promise: Promise) -> None:
    """Run a command with 0.2 to 1.5 GB of address space."""
    for megabytes in promise.choose(SIZES_MB, 4):
        done = ran(megabytes)
        promise.count(is_said(done), f"{megabytes} MB: exit {done.returncode}, {done.stderr[-200:]}")


@pytest.mark.promise(30, control="the limit is not looked at")
def test_control_without_the_look_libraries_fail_by_themselves(promise: Promise) -> None:
    """Run the command with 0.5 GB of address space."""
    done = ran(500, "m.why_too_small = str; m.why_not_loaded = lambda error: ''")
    promise.count(is_said(done), done.stderr[-200:])


def test_a_library_that_cannot_be_mapped_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit above the least may still be too small for a command."""
    error = ImportError("libarrow.so: failed to map segment from shared object")
    monkeypatch.setattr("tintype.cli.main", lambda: (_ for _ in ()).throw(error))
    monkeypatch.setattr(program, "handle_signals", lambda handler: None)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2 and "libarrow.so: failed to map" in capsys.readouterr().err
    assert not why_not_loaded(ImportError("No module named 'x'"))


def test_the_limit_is_asked_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (LEAST_BYTES - 1, LEAST_BYTES - 1))
    assert why_too_small()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (LEAST_BYTES, LEAST_BYTES))
    assert not why_too_small()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert not why_too_small()
