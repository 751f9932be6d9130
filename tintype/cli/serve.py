"""The command that shows a folder of runs and studies in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import options
from tintype.cli.shared import app, console


@app.command()
def serve(
    folder: Annotated[Path, Argument(help="Folder of runs and studies, running or done")],
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes one that is free")] = 8420,
    host: Annotated[
        str, Option(help="Address to listen on. Another than this machine's own needs the token that is printed")
    ] = "127.0.0.1",
    token: Annotated[bool, Option("--token", help="Ask for a token on this machine's own address too")] = False,
    device: options.Device = None,
) -> None:
    """Show runs and studies in the browser: queue, verdicts, curves and images as they come, and a playground."""
    from tintype.serve.server import LiveServer
    from tintype.terminal.serving import serve_until_stopped

    with LiveServer(folder, host, port, token=token, device=device) as server:
        serve_until_stopped(server, folder, console)
