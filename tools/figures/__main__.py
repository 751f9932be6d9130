"""`python -m tools.figures [--write]`: list figures that are neither bound to data nor stated; exit 0 without any."""

from __future__ import annotations

import argparse
import sys

from tools.figures.check import problems, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.figures")
    parser.add_argument("--write", action="store_true", help="first rewrite the blocks that are made from data")
    if parser.parse_args().write:
        for name in write():
            print(f"written: {name}")
    found = problems()
    if found:
        print(*found, sep="\n")
        print("Bind a result in tools/figures/claims; add what is no result of ours to tools/figures/stated.yaml.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
