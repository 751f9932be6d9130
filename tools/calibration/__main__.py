"""`python -m tools.calibration DIR`: measure how often the statistics are wrong, in simulated studies."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.calibration.simulate import STUDIES, calibrate, write_calibration


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.calibration")
    parser.add_argument("out", type=Path, help="folder for calibration.json and images/calibration.svg")
    parser.add_argument("--studies", type=int, default=STUDIES, help="simulated studies of each kind")
    options = parser.parse_args()
    found = calibrate(options.studies, lambda name, done, total: print(f"{done} of {total} cells: {name}", flush=True))
    for path in write_calibration(options.out, found):
        print(path)


if __name__ == "__main__":
    main()
