"""Commands that measure: speed and precision."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app

command(app, "bench", "measure:bench", "measure:Speed")
command(app, "audit", "measure:audit", "measure:Findings")
