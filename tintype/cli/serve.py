"""The command that shows a folder of runs and studies in the browser."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app

command(app, "serve", "serve:serve", "serving:Serving")
