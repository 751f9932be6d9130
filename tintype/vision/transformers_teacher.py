"""`transformers` is a teacher that can be any plain vision transformer from the library transformers.

Tensor dimensions are B (images), C (channels), H (rows), W (columns), L (tokens of the grid) and D (width of the
teacher).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained.frozen import Compute, FrozenNetwork, frozen_arithmetic
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.packages import Untyped
from tintype.pretrained.preprocess import Preprocess, Resampling, Triple
from tintype.pretrained.published import PUBLISHED, Outline, outline_of
from tintype.pretrained.settings import Revision, Source
from tintype.pretrained.weights import digest
from tintype.vision.part import (
    COMMITS,
    Grid,
    HubCompile,
    Teacher,
    TeacherPart,
    offering_packaged_teacher,
    vision_config,
)

_PROBE_PX = 32
_UNUSED = frozenset({"pooler", "head", "text_model", "text_projection", "visual_projection"})
"""Modules of transformers that patch tokens do not use. Checkpoints often lack the weights of these modules."""
_SPECIAL = frozenset({0, 1, 2})
"""Possible tokens before the patches, which are none, a class token, or also a distillation token."""
_NO_STRUCTURE = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
"""Keys of a config that do not affect the network's computation."""
_ADVICE = (
    "a teacher is a plain vision transformer (DINOv2, DINOv3, ViT, SigLIP, CLIP, I-JEPA, …), or teacher=vgg16, or "
    "teacher=scenes"
)


class HubTeacherPart(TeacherPart):
    classes: ClassVar[Mapping[str, str] | None] = None
    """Accepted model types; None for any type."""

    source: Source
    revision: Revision = None
    arithmetic: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto", description="Compute type of the network; auto: bf16 on a GPU, as in PRX, and fp32 on the CPU"
    )
    compile: HubCompile = False

    def arithmetic_on(self, device: torch.device) -> Compute:
        if self.arithmetic != "auto":
            return self.arithmetic
        return "bf16" if device.type == "cuda" else "fp32"

    def width(self) -> int:
        with offering_packaged_teacher():
            return self._number(self._checkpoint.config(), "hidden_size")

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        with offering_packaged_teacher():
            model = self._checkpoint.model(self.classes, _UNUSED)
            normalisation = self._normalisation()
        several = vision_config(model.config) is not model.config
        module: nn.Module = getattr(model, "vision_model", None) or model if several else model
        patch_px = self._number(model.config, "patch_size")
        used = (p for name, p in module.named_parameters() if _UNUSED.isdisjoint(name.split(".")))
        structure = json.dumps({k: v for k, v in model.config.to_dict().items() if k not in _NO_STRUCTURE}, default=str)
        network = FrozenNetwork(
            module,
            Preprocess((grid[0] * patch_px, grid[1] * patch_px), Resampling("bicubic"), "squash", *normalisation),
            self._checkpoint.words,
            output="last tokens of the patches (last_hidden_state)",
            weights_digest=digest(used) + structure,
            arithmetic=self.arithmetic_on(device),
            compile=self.compile,
        )
        teacher = TransformersTeacher(self.kind, network, device, grid, self._number(model.config, "hidden_size"))
        teacher.check()
        return teacher

    def outline(self, grid: Grid) -> Outline | None:
        if self.source not in PUBLISHED:
            return None
        patch_px = PUBLISHED[self.source].patch_px
        narrow = self.arithmetic_on(torch.device("cuda")) == "bf16"
        return outline_of(self.source, (grid[0] * patch_px, grid[1] * patch_px), 2 if narrow else 4)

    @property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.source, self.revision, commit=COMMITS.get(self.source))

    def _normalisation(self) -> tuple[float, Triple, Triple]:
        return self._checkpoint.image_processor().normalisation

    def _number(self, config: Untyped, key: str) -> int:
        """Return a size setting of the image tower. Separate sizes for the sides must be equal."""
        config = vision_config(config)
        value = getattr(config, key, None)
        sides = set(value) if isinstance(value, list | tuple) else {value}
        side = sides.pop() if len(sides) == 1 else None
        if not isinstance(side, int):
            raise UserError(
                f"{self._checkpoint.words} is a '{config.model_type}' and cannot be a teacher: its config has "
                f"no single value for '{key}'",
                _ADVICE,
            )
        return side


class TransformersTeacherSettings(HubTeacherPart):
    """Settings of any plain vision transformer in transformers, such as ViT, SigLIP, CLIP or I-JEPA.

    The teacher's tokens are `last_hidden_state`, which comes after the last norm, except in CLIP. In CLIP, the last
    norm applies to the class token only.
    """

    kind: Literal["transformers"] = "transformers"


class TransformersTeacher(Teacher):
    def at_grid(self, grid: Grid) -> Teacher:
        teacher = super().at_grid(grid)
        assert isinstance(teacher, TransformersTeacher)
        teacher.check()
        return teacher

    def _features(self, input_BCHW: Tensor) -> Tensor:
        return self._output(input_BCHW)[:, -self.grid[0] * self.grid[1] :]

    def _output(self, input_BCHW: Tensor) -> Tensor:
        token_BLD: Tensor = self._network(pixel_values=input_BCHW, **self._options).last_hidden_state
        return token_BLD

    def class_tokens(self, image_BCHW: Tensor) -> Tensor:
        """Return the class token if one precedes the patch tokens, otherwise their mean."""
        with frozen_arithmetic(self._device, self.arithmetic):
            token_BLD = self._output(self.prepare(image_BCHW).to(self._dtype)).float()
        patches = self.grid[0] * self.grid[1]
        return token_BLD[:, 0] if token_BLD.shape[1] > patches else token_BLD.mean(dim=1)

    def attention(self, image_BCHW: Tensor, layers: int) -> Tensor:
        """Return the attention between patches in the last layers, fp32 [B, layers, heads, L, L].

        Each row sums to 1 over the patches, since attention to class and register tokens is left out.
        """
        patches = self.grid[0] * self.grid[1]
        self._network.set_attn_implementation("eager")  # other implementations return no attention map
        with frozen_arithmetic(self._device, self.arithmetic):
            found = self._network(pixel_values=self.prepare(image_BCHW), output_attentions=True, **self._options)
            seen_BNALL = torch.stack([one[:, :, -patches:, -patches:] for one in found.attentions[-layers:]], 1).float()
            return seen_BNALL / seen_BNALL.sum(-1, keepdim=True)

    def check_attention(self, layers: int) -> None:
        """Raise if the network has no attention maps, or too few layers."""
        try:
            found = self.attention(torch.zeros(1, 3, _PROBE_PX, _PROBE_PX, dtype=torch.uint8), layers)
        except Exception as error:  # networks without maps raise various exceptions
            reason = str(error).strip() or type(error).__name__
            raise UserError(f"{self.words} gives no attention maps ({reason})", _ADVICE) from error
        if found.shape[1] < layers:
            raise UserError(
                f"{self.words} has {found.shape[1]} layers, but the attention maps of the last {layers} layers "
                f"are needed"
            )

    @cached_property
    def _options(self) -> dict[str, bool]:
        """Return call options that resample position embeddings. DINO's networks always do so, without an option."""
        accepted = inspect.signature(self._network.forward).parameters
        return {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in accepted else {}

    def check(self) -> None:
        """Encode one image twice; raise if the network's output differs from what its config states."""
        value_N = torch.arange(3 * _PROBE_PX * _PROBE_PX) * 7919 % 251  # an image with content in every part
        input_BCHW = self.prepare(value_N.to(torch.uint8).view(1, 3, _PROBE_PX, _PROBE_PX)).to(self._dtype)
        try:
            with frozen_arithmetic(self._device, self.arithmetic), torch.compiler.set_stance("force_eager"):
                first, second = (self._output(input_BCHW) for _ in range(2))
        except Exception as error:  # networks raise various exceptions for an input of a wrong size
            raise self._misfit(f"it failed ({str(error).strip() or type(error).__name__})") from error
        registers = getattr(self._network.config, "num_register_tokens", None) or 0
        patches = self.grid[0] * self.grid[1]
        if first.ndim != 3 or first.shape[1] - patches not in _SPECIAL | {1 + registers}:
            raise self._misfit(f"it gave an output of the shape {list(first.shape)}")
        if first.shape[2] != self.width:
            raise self._misfit(f"it gave tokens of the width {first.shape[2]}")
        if not torch.allclose(first, second, equal_nan=True):
            raise self._misfit("it gave other tokens the second time, as one that drops patches at random does")

    def _misfit(self, what: str) -> UserError:
        rows, columns = self.grid
        return UserError(
            f"{self.words} cannot be the teacher for a grid of {rows} × {columns} tokens: {what}, but it must "
            f"give {rows * columns} tokens of width {self.width}, after its class token and registers, if any",
            _ADVICE,
        )
