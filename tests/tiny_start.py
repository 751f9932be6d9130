"""Small trained runs to start others from, one for each plan in a process."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tintype.contract.ground import Ground

_FOLDER = tempfile.TemporaryDirectory(prefix="tintype-start-")
FOLDER = Path(_FOLDER.name)
trained = Ground(FOLDER).trained
"""Returns the folder of a run of a plan; there is none in it where the plan cannot be trained here."""
