"""A worker that is paused right after it checked its lease writes nothing that the next holder of the run would see."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_study import environment
from tests.fault.promises import Promise

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
from tests.fault.takeover import main
main(Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported torch")
@pytest.mark.slow
@pytest.mark.promise(28)
def test_nothing_is_written_after_a_takeover_whichever_check_came_last(promise: Promise, tmp_path: Path) -> None:
    """Pause a run after its checks, let another process take it over and end it: no byte changes afterwards.

    `--faults full` pauses it after each of them, other runs after every third and where the controls fail.
    The controls: without the check a line is written late, and a score where the next holder removes nothing.
    """
    command = [sys.executable, "-c", CODE, str(tmp_path), "1" if promise.full else "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["rows"]) >= found["checks"] // (1 if promise.full else 3) and found["checks"] > 30
    for row in found["rows"]:
        promise.count(row["ended"] and row["unchanged"], row)
    assert [row["unchanged"] for row in found["controls"]] == [False, False]
