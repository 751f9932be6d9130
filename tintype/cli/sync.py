"""The command that mirrors studies and runs to object stores, and back."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app

command(app, "sync", "publish:sync", "publish:Mirror")
