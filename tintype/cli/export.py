"""Commands that export, import, publish and mirror a model."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app

command(app, "export", "publish:export_run", "publish:Export")
command(app, "import", "publish:import_model", "publish:Import")
command(app, "card", "publish:write_card", "publish:CardText")
command(app, "push", "publish:push", "publish:Push")
command(app, "sync", "publish:sync", "publish:Mirror")
