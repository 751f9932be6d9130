"""The file that `tintype new technique` writes: a working technique, a loss term, and a test of the contract."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from tintype.errors import UserError
from tintype.runtime.files import write_text
from tintype.techniques import TECHNIQUES
from tintype.wording import option

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_EXAMPLE = {"file": "my_idea.py", "name": "my-idea", "class": "MyIdea"}
"""Words in the template. The new technique's words replace them."""
_TEXT = '''"""my-idea: say in one sentence what it does, and name the paper.

    tintype check my_idea.py
    tintype --plugin my_idea.py train pocket --technique my-idea --out runs/my-idea

This file is a plugin of tintype: `--plugin` is your word to run it. A run records its SHA-256 and is resumed with the
same content only. Write the mathematics here, in your paper's own symbols.

B: samples of a micro-batch. C: channels. H, W: rows and columns of the latents.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from tintype.losses.part import LossPart
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.techniques.technique import Technique


class MyIdeaSettings(LossPart):
    """The settings of the loss term: what a user may write after `my-idea:`, and what a plan stores.

    Each setting has a default, limits and a description. `weight` and `schedule` come from LossPart.
    """

    any_shape: ClassVar[bool] = True  # it takes images of several shapes in one run

    kind: Literal["my-idea"] = "my-idea"  # the name in plans; no built-in loss has it
    weight: float = Field(0.1, gt=0, description="Its weight in the sum of the losses")
    power: float = Field(2.0, ge=1, description="Exponent of the differences")

    def build(self, context: LossContext) -> MyIdea:
        """Build the term. `context` has the width and the grid of the denoiser, the device and the images."""
        return MyIdea(self.power)


class MyIdea(LossTerm):
    """The loss term. To train parameters of its own, inherit from nn.Module too and set `trains` below.

    All that it remembers from one step to the next must be a buffer or a parameter: a checkpoint stores these. Draw
    random numbers from `inputs.draws` with tintype.rng, never from torch's global generator.
    """

    needs_images = False  # True where it reads inputs.image_BCHW, the clean images

    def __init__(self, power: float) -> None:
        self.power = power

    def loss(self, inputs: LossInputs) -> Tensor:
        """Return the loss of each sample, a tensor [B]. Your idea goes here.

        This one compares neighbours: errors at edges count more. `velocity_BCHW` is the denoiser's prediction as a
        velocity and `target_BCHW` what it should be; `output` has the features of the blocks in `taps`.
        """
        error_BCHW = inputs.velocity_BCHW - inputs.target_BCHW
        down_B = error_BCHW.diff(dim=2).abs().pow(self.power).mean((1, 2, 3))
        across_B = error_BCHW.diff(dim=3).abs().pow(self.power).mean((1, 2, 3))
        return down_B + across_B


# tintype looks for these names. A plugin may have other parts too: MAIN_LOSSES, OBJECTIVES, WEIGHTINGS, TIME_DENSITIES,
# ROUTERS, SAMPLERS, GUIDANCES, METRICS and more (docs/plugins.md).
LOSSES = (MyIdeaSettings,)
TECHNIQUES = {
    "my-idea": Technique(
        seam="losses",  # the field of the plan that it changes; a change anywhere else is refused
        summary="errors at edges count more",
        options=MyIdeaSettings,
        paper=None,  # "arXiv:2410.06940"
        trains=frozenset(),  # {"losses_my-idea"} where the term has parameters
    )
}


def test_contract() -> None:
    """Run by `pytest my_idea.py`; `tintype check my_idea.py` makes the same checks and prints them."""
    from tintype.contract.run import require_contract

    require_contract(__file__)
'''


def write_technique(name: str, out: Path | None = None) -> Path:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"technique {name} has invalid characters", "write lower-case words joined by -, such as my-idea"
        )
    if name in TECHNIQUES:
        raise UserError(f"technique {name}: a technique with this name exists already", "choose another name")
    file = out or Path(f"{name.replace('-', '_')}.py")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise UserError(
            f"{option('out', file)} is not a valid name for a Python module",
            "name the file with letters, digits and _, such as my_ideas.py",
        )
    if file.exists():
        raise UserError(f"{file} exists", f"choose another file with {option('out')}")
    title = "".join(word.capitalize() for word in name.split("-"))
    words = {_EXAMPLE["file"]: quote(str(file)), _EXAMPLE["name"]: name, _EXAMPLE["class"]: title}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], _TEXT))
    return file
