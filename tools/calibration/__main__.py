"""`python -m tools.calibration DIR`: measure how often the statistics are wrong, in simulated studies."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.calibration.simulate import STUDIES, calibrate, write_calibration


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.calibration")
    parser.add_argument("out", type=Path, help="folder for calibration.json and images/calibration.svg")
    parser.add_argument("--studies", type=int, default=STUDIES, help="simulated studies of each kind")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = options.out / "calibration.jsonl"  # a stopped calibration resumes from it

    def show(name: str, done: int, total: int) -> None:
        print(f"{done} of {total}: {name}", flush=True)

    found = calibrate(options.studies, rows, options.jobs, show)
    for path in write_calibration(options.out, found):
        print(path)


if __name__ == "__main__":
    main()
