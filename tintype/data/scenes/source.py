"""The embedded scenes as the data of a plan: their settings, and the source of images and records by id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype import NUMERICS
from tintype.data.resident import Resident, resident_bytes
from tintype.data.scenes.captions import long_caption, short_caption
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import BACKGROUNDS, DRAWN, HELD_OUT_PAIRS, LIGHTS, POSITIONS, Scene, draw_batch
from tintype.data.scenes.scene import Split as Rules
from tintype.errors import UserError
from tintype.runtime.cache import stamp_of
from tintype.runtime.notes import note_once
from tintype.runtime.rows import Content, fingerprint
from tintype.runtime.shared import SMALLEST_BYTES, MemoryRows, open_shared
from tintype.runtime.transfer import send
from tintype.seams import Record
from tintype.settings import DataPart, Settings

Split = Literal["train", "eval", "unseen"]
"""Each `eval` scene has a held-out pair. `unseen` scenes are distributed like training scenes; no scene is in both."""
_MOST_CACHED_BYTES = 1 << 30
_FIRST_INDEX: dict[Split, int] = {"train": 0, "eval": 1 << 40, "unseen": 1 << 41}
"""The first index of each split. No two ranges overlap, so no two splits share jitter, texture or noise."""


_Words = Annotated[tuple[str, ...], Field(strict=False)]
"""Words as a tuple or a list. A mixture reads the settings of its sources as plain data, in which they are lists."""


class ObjectWords(Settings):
    """The words from which objects are drawn. With fewer words, a smaller model can learn the task."""

    shape: _Words = Field(DRAWN["shape"], description="Shapes of the objects")
    colour: _Words = Field(DRAWN["colour"], description="Colours of the objects")
    size: _Words = Field(DRAWN["size"], description="Sizes of the objects")
    texture: _Words = Field(DRAWN["texture"], description="Textures of the objects")

    def problems(self) -> Iterator[str]:
        for name in type(self).model_fields:
            yield from _unknown_words(name, getattr(self, name))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(colour, shape) for colour in self.colour for shape in self.shape]

    @property
    def held_out_pairs(self) -> list[tuple[str, str]]:
        return [pair for pair in self.pairs if pair in HELD_OUT_PAIRS]


class BackdropWords(Settings):
    """The words from which backdrops are drawn."""

    background: _Words = Field(BACKGROUNDS, description="Colours for the sky and the ground; at least two")
    light: _Words = Field(LIGHTS, description="Sides from which the light may come")

    def problems(self) -> Iterator[str]:
        for name in type(self).model_fields:
            yield from _unknown_words(name, getattr(self, name))
        if len(self.background) == 1:
            yield f"background: {list(self.background)}; sky and ground differ, so name two or more"


def _unknown_words(name: str, given: Sequence[str]) -> Iterator[str]:
    known = DRAWN[name.removesuffix("s")]
    if not given or len(set(given)) < len(given) or not set(given) <= set(known):
        yield f"{name}: {list(given)}; name one or more of {', '.join(known)}, each once"


class ScenesSettings(DataPart):
    """The embedded scenes. One epoch has `count` scenes. No training scene has a held-out pair of colour and shape."""

    count_key: ClassVar[str] = "count"
    said_by_identity: ClassVar[frozenset[str]] = frozenset({"evaluate_style"})

    kind: Literal["scenes"] = "scenes"
    size_px: int = Field(32, ge=16, le=1024, description="Width and height of the images")
    count: int = Field(8192, ge=1, description="Number of training images")
    style: Literal["render", "photo", "both"] = Field(
        "render",
        description="Style of the images (render is clean, photo has noise, blur, vignette and rougher texture, "
        "both alternates)",
    )
    min_objects: int = Field(1, ge=1, le=4, description="Smallest number of objects in a scene")
    max_objects: int = Field(4, ge=1, le=4, description="Largest number of objects in a scene")
    seed: int = Field(0, ge=0, description="Seed of the scenes, independent of the training seed")
    objects: ObjectWords = Field(ObjectWords(), description="Attribute values from which each object is drawn")
    backdrop: BackdropWords = Field(BackdropWords(), description="Attribute values from which each background is drawn")
    positions: _Words = Field(
        POSITIONS, description="Allowed positions of the objects; only a single object can be in the centre"
    )
    object_scale: float = Field(
        1.0,
        ge=1,
        le=1.2,
        description="Factor of the objects' size; above 1 only with max_objects=1, since several objects would overlap",
    )
    evaluate_style: Literal["render", "photo", "both"] | None = Field(
        None,
        description="Style of the held-out scenes that are the reference for scores; null: the same style "
        "as in training",
    )

    def problems(self) -> Iterator[str]:
        seen = len(self.objects.pairs) - len(self.objects.held_out_pairs)
        if not self.objects.held_out_pairs or seen < self.max_objects:
            yield (
                f"objects: these colours and shapes make {len(self.objects.held_out_pairs)} held-out pairs, of which "
                f"the evaluation needs one, and {seen} others, of which training needs {self.max_objects} "
                "(max_objects); name more of them"
            )
        if self.min_objects > self.max_objects:
            yield f"min_objects ({self.min_objects}) is above max_objects ({self.max_objects})"
        yield from _unknown_words("positions", self.positions)
        corners = len(set(self.positions) - {"centre"})
        if self.max_objects > max(corners, 1):
            yield f"positions has {corners} corners for max_objects ({self.max_objects}); name more, or lower it"
        if self.object_scale > 1 and self.max_objects > 1:
            yield (
                f"object_scale ({self.object_scale:g}): objects beside each other would overlap; "
                "set max_objects to 1, or object_scale to 1"
            )

    @property
    def resident_bytes(self) -> int:
        size = resident_bytes(self.count, self.size_px)
        return size if size <= _MOST_CACHED_BYTES else 0

    @property
    def of_scenes(self) -> bool:
        return True

    @property
    def memorisable(self) -> ScenesSettings:
        return self.model_copy(update={"evaluate_style": None})

    @property
    def scored(self) -> ScenesSettings:
        return self.model_copy(update={"style": self.evaluate_style or self.style, "evaluate_style": None})

    def held_out(self, count: int, shaped: bool = False) -> ScenesSettings:
        return self.scored.model_copy(update={"count": count})

    def describe(self) -> str:
        return "tintype's embedded scenes, drawn and captioned by tintype"

    def describe_held_out(self) -> str:
        return "held-out scenes"

    def intended_use(self) -> str:
        return (
            "Study of training decisions: the scenes have captions that are exactly true, so that how a model follows "
            "a prompt can be measured. The images are of no other use."
        )

    def limits(self) -> list[str]:
        least, most = self.min_objects, self.max_objects
        number = f"{least} to {most} objects" if most > least else f"{most} object" + "s" * (most > 1)
        return [
            f"The scenes that it was trained on show {number} ({', '.join(self.objects.shape)}) in "
            f"{len(self.objects.colour)} colours on a "
            "backdrop of two colours: they teach it no people, animals, writing, places or anything else.",
            f"{len(self.objects.held_out_pairs)} pairs of colour and shape never occur in the training scenes; every "
            "held-out scene has one, so the scores on scenes are of combinations that are new to the model.",
        ]


class SceneSource:
    """Renders each image at its first use. Images are cached if the whole set fits into a gigabyte.

    The processes of a machine share a larger cache, and render each of its images once. An image's bytes are the same
    in every batch and process.
    """

    identity = None
    """The settings define the scenes. A change of the renderer changes the images but not the identity."""
    columns = frozenset({"long", "short"})

    def __init__(self, settings: ScenesSettings, split: Split, device: torch.device) -> None:
        self._settings, self._split, self._device = settings, split, device
        self._records: dict[int, Record] = {}
        self.resident: Resident | None = None
        self._shared: MemoryRows | None = None
        size = resident_bytes(settings.count, settings.size_px)
        if size <= _MOST_CACHED_BYTES:
            self.resident = Resident(settings.count, settings.size_px, device)
            self._shared = self._open_shared() if size >= SMALLEST_BYTES else None

    def __len__(self) -> int:
        return self._settings.count

    def records(self, ids: Sequence[int]) -> list[Record]:
        missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._records]
        for id_, scene in zip(missing, self._scenes(missing), strict=True):
            captions = {"long": long_caption(scene, id_), "short": short_caption(scene, id_)}
            self._records[id_] = Record(captions, scene)
        return [self._records[id_] for id_ in ids]

    def images(self, ids: Sequence[int]) -> Tensor:
        return self.resident.images(ids, self._make) if self.resident else self._render(ids)

    def prepare(self, ids: Sequence[int]) -> None:
        """Render the images that should be cached and are not in the cache yet."""
        if self.resident:
            self.resident.prepare(ids, self._make)

    def expect(self, ids: Sequence[int]) -> None:
        """Do nothing: images are rendered at their first use."""

    def _open_shared(self) -> MemoryRows | None:
        """Return the images that the machine's processes share; None if sharing fails, for example without memory."""
        settings, device = self._settings, self._device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        made_of = {"data": settings.content(), "split": self._split, "device": name, "torch": torch.__version__}
        stamp = stamp_of(made_of | {"pictures": fingerprint(self), "numerics": NUMERICS})
        shape = (settings.count, 3, settings.size_px, settings.size_px)
        try:
            return open_shared(Content("scenes", shape, torch.uint8, "fewer processes need less", stamp))
        except UserError as error:
            note_once("shared scenes", f"each process renders its scenes for itself: {error}")
            return None

    def _make(self, ids: Sequence[int]) -> Tensor:
        if self._shared is None:
            return self._render(ids)
        self._shared.fill(ids, self._render)
        return send(self._shared.read(torch.tensor(ids, dtype=torch.int64)), self._device)

    def _render(self, ids: Sequence[int]) -> Tensor:
        scenes = [record.attributes for record in self.records(ids)]
        own = self._settings
        return render(scenes, own.size_px, own.seed, self._indices(ids), self._device, own.object_scale)

    def _indices(self, ids: Sequence[int]) -> list[int]:
        return [_FIRST_INDEX[self._split] + id_ for id_ in ids]

    def _scenes(self, ids: Sequence[int]) -> list[Scene]:
        own, indices = self._settings, self._indices(ids)
        words = {**dict(own.objects), **dict(own.backdrop), "position": own.positions}
        split: Rules = "eval" if self._split == "eval" else "train"
        drawn = draw_batch(own.seed, indices, split, own.style, own.min_objects, own.max_objects, words)
        return drawn.to_scenes()
