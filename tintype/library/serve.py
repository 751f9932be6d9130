"""Function that shows runs and studies in the browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from tintype.library.kinds import AnyPath


@dataclass(frozen=True)
class Served:
    """A folder whose runs and studies are shown in the browser."""

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
    """Show runs and studies live in the browser: queue, verdicts, curves and images, and a playground for sampling.

    Ctrl+C ends the server.

    Args:
        folder: folder with runs and studies, running or finished.
        port: port to listen on; 0 takes a free port.
        host: address to listen on. If other machines can reach the address, a browser needs the printed token.
        token: require a token also on an address that only this machine can reach.
        device: device of the playground: auto, cpu, cuda or cuda:N; by default the device in the run's plan.
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
