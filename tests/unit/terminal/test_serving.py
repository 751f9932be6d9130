"""`tintype serve` says where its page is, and a signal ends it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tintype.errors import UserError
from tintype.library.serve import serve
from tintype.serve.server import LiveServer
from tintype.terminal.interrupts import Interrupted
from tintype.terminal.serving import Serving


def test_it_says_its_address_and_ends_by_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise Interrupted(2)

    written = io.StringIO()
    monkeypatch.setattr(LiveServer, "serve_forever", lambda server: stop())
    shown = Serving(Console(file=written, width=40), {"folder": tmp_path}, as_json=False)
    with pytest.raises(Interrupted) as stopped, shown.calls() as calls:
        serve(tmp_path, port=0, **calls)
    assert re.search(r"open http://127\.0\.0\.1:\d+/ ", written.getvalue())
    assert stopped.value.kept == f"{tmp_path} is as it was; run the same command again"


def test_a_folder_that_is_not_there_and_a_port_that_is_taken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        LiveServer(tmp_path / "nothing", port=0)
    with LiveServer(tmp_path, port=0) as server, pytest.raises(UserError, match="choose another --port"):
        LiveServer(tmp_path, port=server.guard.port)
