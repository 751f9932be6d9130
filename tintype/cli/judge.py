"""The command that gives verdicts on the runs of any trainer."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app

command(app, "judge", "judge:judge", "judge:Verdicts")
