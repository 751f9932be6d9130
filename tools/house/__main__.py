"""`python -m tools.house [--write]`: print the graph of the rooms, imports against the order, and counts."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import asdict

from tools.house.counts import count
from tools.house.picture import PICTURE, draw
from tools.house.rooms import ORDER, against_the_order, all_imports


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.house")
    parser.add_argument("--write", action="store_true", help="draw docs/images/rooms.svg again")
    if parser.parse_args().write:
        PICTURE.write_text(draw(), encoding="utf-8")
    imports = all_imports()
    for room in ORDER:
        used = Counter(found.target for found in imports if found.source == room and found.target != room)
        print(f"{room}: {', '.join(f'{name} {used[name]}' for name in ORDER if name in used) or '-'}")
    wrong = against_the_order(imports)
    print(*(f"against the order: {found}" for found in wrong), sep="\n")
    print(*(f"{name}: {value}" for name, value in asdict(count()).items()), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
