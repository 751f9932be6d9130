"""The image encoders that features can be taken with: their settings, and features of many images.

B: images. C: channels. H, W: rows, columns. N: all images. F: size of the feature vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained import hub
from tintype.pretrained.frozen import Arithmetic, encode_filled, frozen_arithmetic
from tintype.pretrained.preprocess import check_bytes
from tintype.pretrained.weights import Known, at_hand, fetch
from tintype.seams import Encoder
from tintype.settings import Part, PathText, kind_alone
from tintype.vision import inception, lpips, towers
from tintype.vision.scene_encoder import (
    FEATURES,
    INPUT_PX,
    SceneEncoder,
    SceneReading,
    load_scene_encoder,
    prepared,
    scene_encoder_record,
)

READ_TOGETHER = 128
_CPU_BATCH, _CPU_BATCH_SMALL, _SMALL_PX = 8, 64, 128
"""Images that a network sees at once on a CPU, by the size of its input alone: kernels round by the batch's size."""


_DINOV2: dict[towers.DinoForm, tuple[str, int]] = {
    "fd": ("facebook/dinov2-large", 224),
    "prx": ("facebook/dinov2-with-registers-large", 518),
}
"""The network and the input of each form as it is published."""


class EncoderPart(Part):
    """Settings of a frozen image encoder. `name` stands in the names of metrics; by default it is the kind."""

    reads_text: ClassVar[bool] = False

    name: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9-]*$", description="Stands in the names of its metrics")

    @property
    def title(self) -> str:
        return self.name or self.kind

    @property
    def published(self) -> dict[str, str]:
        """Kinds of metrics whose definition is, on this encoder, a published one: kind -> its published name."""
        return {}

    def build(self, device: torch.device) -> Encoder:
        """The encoder; built once for each device."""
        return _built(self, torch.device(device))

    def _make(self, device: torch.device) -> Encoder:
        raise NotImplementedError


@lru_cache(maxsize=8)
def _built(settings: EncoderPart, device: torch.device) -> Encoder:
    return settings._make(device)


class SceneEncoderSettings(EncoderPart):
    """tintype's own small encoder of scenes; packaged, needs no download."""

    kind: Literal["scenes"] = "scenes"

    def _make(self, device: torch.device) -> Encoder:
        return SceneFeatures(device, self.title)


class InceptionSettings(EncoderPart):
    """The Inception-v3 of FID. FIDs of different `resize` are different metrics."""

    kind: Literal["inception"] = "inception"
    resize: inception.Resize = Field("clean", description="clean: clean-fid's bicubic; tf: TensorFlow 1's bilinear")
    weights: PathText | None = Field(
        None, description="A file with the weights: .pth of pytorch-fid, .pt of TorchScript"
    )
    arithmetic: Arithmetic = Field("fp32", description="tf32: faster on a GPU, other last digits")

    @property
    def published(self) -> dict[str, str]:
        way = {"tf": "", "clean": " (clean)"}[self.resize]
        return {"fd": f"FID{way}", "fd_inf": f"FID∞{way}", "kid": f"KID{way}"}

    def _make(self, device: torch.device) -> Encoder:
        weights = fetch(inception.WEIGHTS, self.weights)
        return inception.InceptionEncoder(self.title, weights, self.resize, device, self.arithmetic)


class VggSettings(EncoderPart):
    """VGG16's conv5_3, from the weights of LPIPS: a feature that needs no hub."""

    kind: Literal["vgg16"] = "vgg16"
    size_px: int = Field(256, ge=16, multiple_of=16, description="The input; one token for every 16 px")

    def _make(self, device: torch.device) -> Encoder:
        return lpips.VggEncoder(self.title, self.size_px, device)


class _HubPart(EncoderPart):
    revision: str | None = Field(None, description="Branch, tag or commit of the hub; a commit cannot change")
    arithmetic: Arithmetic = Field("fp32", description="tf32: several times as fast on a GPU, other last digits")

    def _checkpoint(self, source: str) -> hub.Checkpoint:
        return hub.Checkpoint(source, self.revision, self.arithmetic)


class ClipSettings(_HubPart):
    """CLIP's projected embeddings of images and texts; the default is the network of CMMD.

    The forms differ on images that are not square. `cmmd` is the paper's own preprocessing, and that of its PyTorch
    port; `processor` is the checkpoint's, with which PRX measures CMMD.
    """

    reads_text: ClassVar[bool] = True

    kind: Literal["clip"] = "clip"
    source: PathText = Field(
        "openai/clip-vit-large-patch14-336", min_length=1, description="Repository or local folder"
    )
    form: towers.ClipForm = Field(
        "processor", description="processor: the short side resized, then cut; cmmd: the middle cut out, then resized"
    )

    @property
    def published(self) -> dict[str, str]:
        if Path(self.source).name != "clip-vit-large-patch14-336":
            return {}
        return {"mmd_published": {"cmmd": "CMMD", "processor": "CMMD (processor's crop)"}[self.form]}

    def _make(self, device: torch.device) -> Encoder:
        return towers.ClipEncoder(self.title, self._checkpoint(self.source), self.form, device)


class SiglipSettings(_HubPart):
    """SigLIP's embeddings of images and texts."""

    reads_text: ClassVar[bool] = True

    kind: Literal["siglip"] = "siglip"
    source: PathText = Field("google/siglip-so400m-patch14-384", min_length=1, description="Repository or local folder")

    def _make(self, device: torch.device) -> Encoder:
        return towers.SiglipEncoder(self.title, self._checkpoint(self.source), device)


class Dinov2Settings(_HubPart):
    """DINOv2's class token. `fd` is FD-DINOv2's definition, `prx` that of PRX's DINO-MMD."""

    kind: Literal["dinov2"] = "dinov2"
    form: towers.DinoForm = "fd"
    source: PathText | None = Field(None, min_length=1, description="Repository or local folder; by default the form's")
    size_px: int | None = Field(None, ge=14, description="The input; by default 224 for fd and 518 for prx")

    @property
    def published(self) -> dict[str, str]:
        source, size_px = _DINOV2[self.form]
        if Path(self._source).name != Path(source).name or self._size_px != size_px:
            return {}
        return {"fd": "FD-DINOv2"} if self.form == "fd" else {"mmd_published": "DINO-MMD"}

    @property
    def _source(self) -> str:
        return self.source or _DINOV2[self.form][0]

    @property
    def _size_px(self) -> int:
        return self.size_px or _DINOV2[self.form][1]

    def _make(self, device: torch.device) -> Encoder:
        return towers.dinov2(self.title, self._checkpoint(self._source), self.form, self._size_px, device)


class Dinov3Settings(_HubPart):
    """DINOv3's class token."""

    kind: Literal["dinov3"] = "dinov3"
    source: PathText = Field("facebook/dinov3-vitl16-pretrain-lvd1689m", min_length=1)
    size_px: int = Field(224, ge=16, description="The input")

    def _make(self, device: torch.device) -> Encoder:
        return towers.dinov3(self.title, self._checkpoint(self.source), self.size_px, device)


EncoderChoice = Annotated[
    SceneEncoderSettings
    | InceptionSettings
    | VggSettings
    | ClipSettings
    | SiglipSettings
    | Dinov2Settings
    | Dinov3Settings,
    Field(discriminator="kind"),
    BeforeValidator(kind_alone),
]
"""Any encoder, as a user writes it: `{kind: dinov2, form: prx}`, or a kind alone."""


def general_encoder() -> tuple[EncoderPart, str]:
    """Return the encoder for distances between any images, and a note where it is a second choice.

    FID's Inception where its weights are at hand, else VGG16's, else the first of the two that can be fetched.
    """
    choices: list[tuple[EncoderPart, Known]] = [
        (InceptionSettings(), inception.WEIGHTS),
        (VggSettings(), lpips.WEIGHTS["vgg16"]),
    ]
    there = next((encoder for encoder, known in choices if at_hand(known)), None)
    encoder = there or next((encoder for encoder, known in choices if _fetched(known)), None)
    if encoder is None:
        raise UserError(
            "encoders: no network for the distances is installed, and none could be downloaded. "
            f"{inception.WEIGHTS.advice}"
        )
    if isinstance(encoder, InceptionSettings):
        return encoder, ""
    return encoder, (
        f"the distances are taken on {encoder.title} and are not FID, for which Inception's weights are missing. "
        f"{inception.WEIGHTS.advice}"
    )


def _fetched(known: Known) -> bool:
    """Whether the weights could be downloaded; why not, `fetch` prints."""
    try:
        fetch(known)
    except UserError:
        return False
    return True


class SceneFeatures:
    """The packaged scene encoder as a source of features and of readings."""

    definition = (
        f"pooled last map ({FEATURES} numbers) of tintype's scene encoder; input uint8, scaled to [-2, 2], resized to "
        f"{INPUT_PX} px (bilinear, antialiased when shrinking), fp32"
    )

    def __init__(self, device: torch.device, name: str = "scenes") -> None:
        self.name = name
        self.identity = hashlib.sha256((scene_encoder_record()["sha256"] + self.definition).encode()).hexdigest()
        self._device = device
        self._encoder: SceneEncoder = load_scene_encoder(device)

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        check_bytes(image_BCHW)
        return prepared(image_BCHW.to(self._device))

    def encode(self, input_BCHW: Tensor) -> Tensor:
        with frozen_arithmetic(self._device):
            map_BCHW: Tensor = self._encoder.trunk(input_BCHW.contiguous(memory_format=torch.channels_last))
            return map_BCHW.mean(dim=(2, 3))

    @torch.no_grad()
    def read(self, image_BCHW: Tensor) -> SceneReading:
        """What the images show."""
        readings = [self._encoder(chunk.to(self._device)) for chunk in image_BCHW.split(READ_TOGETHER)]
        return SceneReading(
            torch.cat([reading.feature_BF for reading in readings]).cpu(),
            {name: torch.cat([r.logits[name] for r in readings]).cpu() for name in readings[0].logits},
        )


def scene_features(device: torch.device) -> SceneFeatures:
    encoder = SceneEncoderSettings().build(device)
    assert isinstance(encoder, SceneFeatures), "the settings of the scene encoder build it"
    return encoder


def feature_matrix(
    encoder: Encoder,
    images: Iterable[Tensor],
    batch: int = 64,
    on_images: Callable[[int], None] = lambda images: None,
    first_index: int = 0,
) -> Tensor:
    """Features [N, F] in float32 on the CPU, one row for each image, in order.

    `images` gives uint8 images, single or in batches, of any sizes. The network sees batches of one size, the last
    one filled up, so that a row does not depend on how the images came. On a CPU that size is fixed, and rows are
    the same to the last bit for any `batch`; on a GPU it is `batch`, and another may move the last bits.

    `on_images` is told of every batch how many images it had; `first_index` is the first one's number in messages.
    """
    if batch < 1:
        raise ValueError(f"a batch must have at least one image, not {batch}")
    rows: list[Tensor] = []
    done = 0
    for input_BCHW in _batches(encoder, images, batch):
        feature_BF = encode_filled(encoder.encode, input_BCHW, _network_batch(input_BCHW, batch)).cpu()
        _check_finite(encoder, feature_BF, first_index + done)
        rows.append(feature_BF)
        done += len(feature_BF)
        on_images(len(feature_BF))
    if not rows:
        raise UserError(f"there are no images for the encoder '{encoder.name}'")
    return torch.cat(rows)


def _batches(encoder: Encoder, images: Iterable[Tensor], batch: int) -> Iterator[Tensor]:
    """Prepared images in batches of the network's size; the last may be smaller."""
    waiting: list[Tensor] = []
    for image in images:
        for chunk_BCHW in (image if image.ndim == 4 else image[None]).split(batch):
            waiting += encoder.prepare(chunk_BCHW).unbind()
            while waiting and len(waiting) >= (size := _network_batch(waiting[0], batch)):
                yield torch.stack(waiting[:size])
                del waiting[:size]
    if waiting:
        yield torch.stack(waiting)


def _network_batch(on: Tensor, batch: int) -> int:
    if on.device.type != "cpu":
        return batch
    return _CPU_BATCH_SMALL if on.shape[-1] <= _SMALL_PX else _CPU_BATCH


def _check_finite(encoder: Encoder, feature_BF: Tensor, first: int) -> None:
    bad = (~feature_BF.isfinite().all(dim=1)).nonzero()
    if len(bad):
        raise UserError(
            f"the encoder '{encoder.name}' gave a feature that is no finite number for image {first + int(bad[0])}"
        )


def forget_encoders() -> None:
    """Lets go of every network that was built in this process."""
    _built.cache_clear()
