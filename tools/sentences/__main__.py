"""`python -m tools.sentences --seed HEX [--count N] [--where KIND]` draws sentences; `--long` lists those too long."""

import argparse
import random
import sys
from pathlib import Path

from tools.sentences.collect import KINDS, MOST_WORDS, sentences

parser = argparse.ArgumentParser(prog="python -m tools.sentences")
parser.add_argument("--seed", default="0", help="decides the draw, such as the hash of a commit")
parser.add_argument("--count", type=int, default=60, help="sentences to draw, as many of each kind")
parser.add_argument("--where", choices=KINDS, help="one kind alone")
parser.add_argument("--long", action="store_true", help=f"list sentences of more than {MOST_WORDS} words instead")
options = parser.parse_args()
kinds = (options.where,) if options.where else KINDS
listed = 0
for kind in kinds:
    found = sentences(Path(__file__).parents[2], kind)
    if options.long:
        found = [one for one in found if one.words > MOST_WORDS]
    else:
        found = [one for one in found if one.words > 3]
        found = random.Random(f"{options.seed} {kind}").sample(found, min(options.count // len(kinds), len(found)))
    for one in found:
        print(f"{one.file}:{one.line}: {one.text}")
    listed += len(found)
sys.exit(options.long and listed > 0)
