"""`python -m tools.speed.teachers OUT.json`: what REPA costs with a DINOv2-B and a DINOv2-L as the teacher.

The denoiser has PRX's size (1.17B parameters) and 256 tokens of pixels; the teachers have the true sizes and random
weights, so nothing is downloaded. Each teacher is measured in bf16, in bf16 and compiled, and in fp32, beside the plan
without one. Without tokenizer and a large text encoder the plan is faster than PRX's, and so the shares are larger. The
file has all rows so far after each one, the most important first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tintype.bench.run import Comparison, Row, compare
from tintype.plan import read_plan
from tintype.pretrained.packages import transformers_package
from tintype.rng import seeded
from tintype.runtime.files import write_json

SIZES = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "b": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "l": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}
"""Sizes of DINOv2's networks by their letters, and one for a test."""
WAYS = {"bf16": "arithmetic: bf16", "bf16 compiled": "arithmetic: bf16, compile: true", "fp32": "arithmetic: fp32"}
"""Options of a teacher by their names in rows, the most important first."""
PLAN = (
    "data.size_px=256",
    "model.patch=16",
    "text={kind: words, width: 512, depth: 4, heads: 8, max_tokens: 80}",
)
"""Settings of the plan by default: a text encoder of its own, which needs no weights of others."""


def write_teacher(size: str, folder: Path) -> Path:
    """Write a DINOv2 of this size, with random weights."""
    transformers = transformers_package()
    config = transformers.Dinov2Config(**SIZES[size], image_size=518, patch_size=14)
    with seeded(0, "teacher"):
        transformers.Dinov2Model(config).save_pretrained(folder / size)
    return folder / size


def measure(
    sizes: Sequence[str],
    recipe: str,
    settings: Sequence[str],
    batches: Sequence[int],
    steps: int,
    on_measured: Callable[[Comparison], None],
) -> None:
    """Measure training without a teacher and with each, in each arithmetic; rows are named by both.

    `on_measured` gets the rows so far after each one.
    """
    plan = read_plan(recipe, settings)
    with tempfile.TemporaryDirectory() as folder:
        sources = {size: write_teacher(size, Path(folder)) for size in sizes}
        names = {
            f"repa:teacher={{kind: dinov2, source: {source}, {options}}}": f"repa, dinov2-{size}, {way}"
            for way, options in WAYS.items()
            for size, source in sources.items()
        }

        def rename(found: Comparison) -> None:
            rows = [replace(row, technique=names.get(row.technique, row.technique)) for row in found.rows]
            on_measured(replace(found, rows=rows))

        compare(plan, list(names), [], batches, steps, _say, rename)


def _say(part: str, done: int, total: int) -> None:
    if part:
        print(f"{done + 1} of {total}: {part}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.teachers", description=__doc__)
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["b", "l"])
    parser.add_argument("--recipe", default="prx-jit-1024")
    parser.add_argument("--set", nargs="+", default=list(PLAN), help="settings of the plan")
    parser.add_argument("--batch", nargs="+", type=int, default=[128])
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args(arguments)

    def keep(found: Comparison) -> None:
        write_json(given.out, asdict(found))
        print(in_words(found.rows[-1]), flush=True)

    measure(given.sizes, given.recipe, given.set, given.batch, given.steps, keep)


def in_words(row: Row) -> str:
    of_dense = f", {row.times_dense:.3f} of dense" if row.times_dense else ""
    speed = f"{row.images_per_s:.1f} images/s{of_dense}" if row.images_per_s else row.failed
    return f"batch {row.batch}, {row.technique}: {speed}"


if __name__ == "__main__":
    main()
