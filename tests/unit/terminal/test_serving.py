"""`tintype serve` says where its page is, and a signal ends it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tintype.errors import UserError
from tintype.serve.server import LiveServer
from tintype.terminal.interrupts import Interrupted
from tintype.terminal.serving import serve_until_stopped


def test_it_says_its_address_and_ends_by_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise Interrupted(2)

    written = io.StringIO()
    with LiveServer(tmp_path, port=0) as server:
        monkeypatch.setattr(server, "serve_forever", stop)
        with pytest.raises(Interrupted) as stopped:
            serve_until_stopped(server, tmp_path, Console(file=written, width=40))
        assert f"open http://127.0.0.1:{server.guard.port}/ " in written.getvalue()
    assert stopped.value.kept == f"{tmp_path} is as it was; run the same command again"


def test_a_folder_that_is_not_there_and_a_port_that_is_taken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        LiveServer(tmp_path / "nothing", port=0)
    with LiveServer(tmp_path, port=0) as server, pytest.raises(UserError, match="choose another --port"):
        LiveServer(tmp_path, port=server.guard.port)
