"""Commands on studies: run one, report it, plan how many seeds it needs."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app

command(app, "ablate", "studies:run_study", "studies:Ablation")
command(app, "work", "studies:work", "studies:Workers")
command(app, "launch", "studies:launch", "studies:Launch")
command(app, "status", "studies:status", "status:Runs")
command(app, "report", "studies:report", "studies:Verdicts")
command(app, "replicate", "studies:replicate", "studies:Replication")
command(app, "propose", "studies:propose", "proposals:Answers")
command(app, "power", "studies:power", "power:Seeds")
command(app, "pool", "studies:pool", "pooling:Tables")
