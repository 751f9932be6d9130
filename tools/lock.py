"""Write the lock files: the exact versions of all packages, on every platform and Python that tintype supports.

`make lock` calls it, and uv resolves. Versions in the files are kept; a line that is deleted gets the newest version.

There are two files since some trackers ask for older packages than the rest. There are no hashes: a build of torch for
CPUs, or for another CUDA, has the same version and other files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
MAIN, TRACKERS = ROOT / "constraints.txt", ROOT / "constraints-trackers.txt"
NEED_OLDER = ("trackio", "mlflow")
"""Extras that fit into no other file: trackio 0.43 needs pillow < 13, and mlflow 3.17 needs pyarrow < 26."""


def extras() -> dict[Path, list[str]]:
    """Return the extras in each lock file; together they are all extras of the package."""
    named = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return {MAIN: [name for name in named if name not in NEED_OLDER], TRACKERS: list(NEED_OLDER)}


def pins(file: Path) -> dict[str, str]:
    """Return the version of each package in a lock file, by its normalised name."""
    lines = [line.partition(";")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    pairs = (line.split("==") for line in lines if "==" in line)
    return {normalised(name): version for name, version in pairs}


def normalised(name: str) -> str:
    """Return the name of a package as package indices spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    for file, names in extras().items():
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", str(PROJECT)),
                *(part for name in names for part in ("--extra", name)),
                *("--universal", "--python-version", "3.11", "--no-annotate", "--quiet"),
                *("--custom-compile-command", "make lock", "--output-file", str(file)),
            ],
            check=True,
        )


if __name__ == "__main__":
    main()
