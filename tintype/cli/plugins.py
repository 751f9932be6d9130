"""Commands for techniques of your own: write a file for one, and check it."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app, group

new_app = group("new", "Write a file to begin with.")

command(new_app, "technique", "plugins:new_technique", "plugins:NextSteps")
command(app, "check", "plugins:check", "plugins:Checks")
