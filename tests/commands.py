"""The commands that the command line lists, so that no test of all of them misses a new one."""

from __future__ import annotations

from typing import Any

from tests.unit.cli.test_help import ALL

COMMANDS: dict[str, Any] = {" ".join(path): one for path, one in ALL.items() if not hasattr(one, "commands")}
"""Commands, without groups, by their full names such as `data import`."""
