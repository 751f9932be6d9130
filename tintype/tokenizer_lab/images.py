"""Load images for training and measuring tokenizers, either the embedded scenes or any set of images on disk.

The held-out images of a set on disk are the first in a fixed random order, so they depend only on their number. A
report on the same number of images then uses exactly these. In a store, training holds out a subset of the training
split; a report uses the evaluation split.

Tensor dimensions are B (images), N (all images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype import rng
from tintype.data.fit import crop, refuse_small, shrunk, square
from tintype.data.image_file import Encoded, pixels_stated
from tintype.data.image_sets import decode, fingerprint, map_prefetched, open_images
from tintype.data.order import ids_at
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.data.store.layout import Split, is_store, open_store
from tintype.errors import UserError
from tintype.runtime.transfer import send
from tintype.settings import LARGEST_PX, Settings
from tintype.wording import setting

SCENES = "scenes"
_MOST_BYTES = 16 << 30
_HELD_OUT_ORDER = 0
_HELD_OUT_SHARE = 5

OnImages = Callable[[str, int, int], None]
"""Progress passed to the callback, with the current activity, the number of finished images, and their total."""


class SceneSettings(Settings):
    """Selects embedded scenes."""

    count: int = Field(4096, ge=1, description="Number of training scenes")
    style: Literal["render", "photo", "both"] = "both"
    seed: int = Field(0, ge=0)

    def source(self, split: Split, size_px: int, count: int, device: torch.device) -> SceneSource:
        data = ScenesSettings(size_px=size_px, count=count, style=self.style, seed=self.seed)
        return SceneSource(data, split, device)

    def held_out(self, size_px: int, count: int, device: torch.device) -> Tensor:
        """Return scenes of the evaluation split, which training never uses."""
        return self.source("eval", size_px, count, device).images(range(count))


class ImageSettings(Settings):
    """Settings that select the images on which a tokenizer is trained."""

    data: str = Field(
        SCENES, min_length=1, description="Images: scenes, or the path of a folder, .tar file, .parquet file or store"
    )
    size_px: int = Field(64, ge=16, le=LARGEST_PX, description="Side of the square crops, in pixels")
    short_px: int | None = Field(
        None, ge=16, description="Short side, in pixels, to which images are shrunk before cropping; null: not shrunk"
    )
    limit: int | None = Field(None, ge=2, description="Number of images to use, counted from the first; null: all")
    held_out: int = Field(256, ge=1, description="Number of held-out images; at most a fifth of the images on disk")
    scenes: SceneSettings = SceneSettings()


@dataclass(frozen=True)
class TrainingScenes:
    settings: ImageSettings
    seed: int
    device: torch.device

    @property
    def identity(self) -> str:
        """A string that contains all settings that determine the scenes and their pixels."""
        return f"scenes {self.settings.scenes.model_dump_json()} at {self.settings.size_px} px"

    def batches(self, first_step: int, steps: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the positions (int64 [B]) and uint8 images of each step, on the device."""
        scenes = self.settings.scenes
        source = scenes.source("train", self.settings.size_px, scenes.count, self.device)
        for step in range(first_step, steps):
            ids = ids_at(self.seed, step * batch, batch, len(source)).tolist()
            yield torch.arange(step * batch, (step + 1) * batch), source.images(ids)

    def held_out_images(self) -> Tensor:
        """Return images that training never uses."""
        return self.settings.scenes.held_out(self.settings.size_px, self.settings.held_out, self.device)


class TrainingImages:
    """Random crops. The bytes of the files are held in memory; images are decoded before the step that needs them."""

    def __init__(self, settings: ImageSettings, seed: int, device: torch.device) -> None:
        self._settings, self._seed, self._device = settings, seed, device
        self._encoded = _read_all(Path(settings.data).expanduser(), settings.limit)
        count = len(self._encoded)
        if count < 2:
            raise UserError(
                f"{settings.data} contains {count} images, but training needs at least two, since one is held out"
            )
        self._held = held_out_ids(min(settings.held_out, max(1, count // _HELD_OUT_SHARE)), count)
        self._own = sorted(set(range(count)) - set(self._held))

    @property
    def identity(self) -> str:
        digest, count = fingerprint(self._encoded)
        return f"{count} pictures, SHA-256 {digest}"  # existing checkpoints use this wording

    def batches(self, first_step: int, steps: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        def make(step: int) -> tuple[Tensor, Tensor]:
            position_B = torch.arange(step * batch, (step + 1) * batch)
            place_B2 = rng.uniform(self._seed, "small-vae/crop", position_B, (2,))
            ids = ids_at(self._seed, step * batch, batch, len(self._own)).tolist()
            crops = [self._crop(self._own[id_], *place) for id_, place in zip(ids, place_B2.tolist(), strict=True)]
            return position_B, torch.stack(crops)

        for position_B, image_BCHW in map_prefetched(make, range(first_step, steps)):
            yield position_B, send(image_BCHW, self._device)

    def held_out_images(self) -> Tensor:
        return torch.stack([self._crop(id_, 0.5, 0.5) for id_ in self._held])

    def _crop(self, id_: int, down: float, right: float) -> Tensor:
        """Return a square crop of an image; (0.5, 0.5) is the middle of the image."""
        image_CHW, size_px, short_px = decode(self._encoded[id_]), self._settings.size_px, self._settings.short_px
        refuse_small(self._encoded[id_].name, image_CHW, short_px or size_px)
        return crop(shrunk(image_CHW, short_px) if short_px else image_CHW, size_px, down, right)


TrainingSet = TrainingScenes | TrainingImages


def _encoded(path: Path, split: Split) -> Iterator[Encoded]:
    """Yield the images of a split of a store, or all images of another set."""
    return open_store(path).all_encoded(split) if is_store(path) else open_images(path).encoded()


def _read_all(path: Path, limit: int | None) -> list[Encoded]:
    found: list[Encoded] = []
    total = 0
    for one in islice(_encoded(path, "train"), limit):
        found.append(one)
        total += len(one.content)
        if total > _MOST_BYTES:
            raise UserError(
                f"{path}: the first {len(found):,} images take more than {_MOST_BYTES >> 30} GiB of memory (as "
                f"encoded files)",
                f"use fewer images: {setting('limit', len(found) // 2)}",
            )
    return found


def held_out_ids(wanted: int, count: int) -> list[int]:
    return ids_at(_HELD_OUT_ORDER, 0, wanted, count).tolist()


def measured_images(
    data: str, size_px: int, count: int, device: torch.device, on_images: OnImages = lambda doing, done, total: None
) -> tuple[Tensor, int]:
    """Return up to `count` center-cropped images, uint8 [N, 3, size, size] on the CPU, and the size of the set."""
    if data == SCENES:
        image_NCHW = SceneSettings().held_out(size_px, count, device).cpu()
        on_images("rendering", count, count)
        return image_NCHW, count
    path = Path(data).expanduser()
    total = sum(1 for _ in _encoded(path, "eval"))
    if total < 2:
        raise UserError(f"{data} contains {total} images, but a report needs at least two")
    chosen = held_out_ids(min(count, total), total)
    chosen_ids = frozenset(chosen)

    def middle(item: tuple[int, Encoded]) -> tuple[int, Tensor]:
        index, one = item
        image_CHW = decode(one)
        refuse_small(one.name, image_CHW, size_px)
        return index, square(image_CHW, size_px)

    wanted = (item for item in enumerate(_encoded(path, "eval")) if item[0] in chosen_ids)
    found: dict[int, Tensor] = {}
    for index, image_CHW in map_prefetched(middle, wanted, lambda item: pixels_stated(item[1].content)):
        found[index] = image_CHW
        on_images("reading", len(found), len(chosen))
    return torch.stack([found[index] for index in chosen]), total
