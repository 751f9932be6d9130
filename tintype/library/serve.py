"""Runs and studies in the browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from tintype.library.kinds import AnyPath


@dataclass(frozen=True)
class Served:
    """A folder that is shown in the browser."""

    url: str
    folder: str


def serve(
    folder: AnyPath,
    *,
    port: Annotated[int, Ge(0), Le(65535)] = 8420,
    host: str = "127.0.0.1",
    token: bool = False,
    device: str | None = None,
    on_start: Callable[[Served], None] | None = None,
) -> Served:
    """Show runs and studies in the browser: queue, verdicts, curves and images as they come, and a playground.

    Ctrl+C ends it.

    Args:
        folder: folder of runs and studies, running or done.
        port: port; 0 takes one that is free.
        host: address to listen on. Another than this machine's own needs the token that is printed.
        token: ask for a token on this machine's own address too.
        device: auto, cpu, cuda or cuda:N; by default the device in the run's plan.
        on_start: called with the address to open.

    Raises:
        UserError: the folder does not exist, or the port is taken.
    """
    from tintype.runtime.garbage import without_pauses
    from tintype.serve.server import LiveServer

    with LiveServer(Path(folder), host, port, token=token, device=device) as server:
        served = Served(server.url, str(folder))
        if on_start is not None:
            on_start(served)
        with without_pauses():
            server.serve_forever()
    return served
