"""Commands on runs: train, sample, evaluate, compare."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import app

command(app, "train", "runs:train", "runs:Training")
command(app, "sample", "runs:sample", "runs:Sampling")
command(app, "evaluate", "runs:evaluate", "runs:Scores")
command(app, "ema", "runs:ema", "runs:Lengths")
command(app, "compare", "studies:compare", "compare:SideBySideTables")
