"""Plugin files for tests: written, loaded, and forgotten after each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tintype.plugins import load
from tintype.plugins.load import VARIABLE, forget, load_files
from tintype.plugins.registry import Plugin

EXAMPLES = Path(__file__).parents[1] / "examples"
EVERY_PART = EXAMPLES / "every_part.py"
LOSS = """
from __future__ import annotations
from typing import ClassVar, Literal
from torch import Tensor
from tintype.losses.part import LossPart
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.techniques.technique import Technique


class MineSettings(LossPart):
    any_shape: ClassVar[bool] = True
    kind: Literal["mine"] = "mine"
    sides: tuple[int, ...] = (1, 2)

    def build(self, context: LossContext) -> LossTerm:
        return Mine()


class Mine(LossTerm):
    needs_images = False

    def loss(self, inputs: LossInputs) -> Tensor:
        return (inputs.velocity_BCHW - inputs.target_BCHW).abs().mean((1, 2, 3))


LOSSES = (MineSettings,)
TECHNIQUES = {"mine": Technique(seam="losses", summary="a loss of mine", options=MineSettings)}
"""
"""A plugin with a loss term and its technique."""


def write_plugin(folder: Path, text: str = LOSS, name: str = "my_ideas.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


@contextmanager
def only_these_plugins(*files: Path) -> Iterator[list[Plugin]]:
    """Load plugin files, and forget them and all that were loaded since at the end."""
    before, variable = dict(load._files), os.environ.get(VARIABLE)
    try:
        yield load_files(files)
    finally:
        for plugin in [one for one in load._files.values() if one not in before.values()]:
            forget(plugin)
        os.environ.pop(VARIABLE, None)
        if variable is not None:
            os.environ[VARIABLE] = variable
