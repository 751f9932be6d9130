"""The vocabulary of scenes, their form as words and as tensors, and how they are drawn at random.

A `Scene` holds words; captions, files and scores use it. A `SceneBatch` holds the same attributes as indices into the
vocabularies, with one row per scene and one column per position. The renderer and the encoder use `SceneBatch`, since
they process thousands of scenes at once. `Scene` and `SceneBatch` are pure functions of (seed, index).

B: scenes. P: positions. N: (colour, shape) pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from tintype import rng

Split = Literal["train", "eval", "any"]
Style = Literal["render", "photo"]

SHAPES = ("ball", "block", "pyramid", "star", "ring", "cross")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
SIZES = ("small", "large")
TEXTURES = ("plain", "striped", "dotted")
POSITIONS = ("centre", "top left", "top right", "bottom left", "bottom right")
BACKGROUNDS = ("cream", "peach", "mint", "lavender", "teal", "slate")
LIGHTS = ("left", "right", "above", "below")
STYLES: tuple[Style, ...] = ("render", "photo")
MAX_OBJECTS = len(POSITIONS) - 1  # an object is in the centre only if it is the scene's only object

OBJECT_VOCABULARY = {"shape": SHAPES, "colour": COLOURS, "size": SIZES, "texture": TEXTURES}
SCENE_VOCABULARY = {"sky": BACKGROUNDS, "ground": BACKGROUNDS, "light": LIGHTS, "style": STYLES}
VOCABULARY: dict[str, tuple[str, ...]] = {**OBJECT_VOCABULARY, **SCENE_VOCABULARY}
DRAWN = {**OBJECT_VOCABULARY, "position": POSITIONS, "background": BACKGROUNDS, "light": LIGHTS}
"""Words from which scenes are drawn. Sky and ground are always two different backgrounds."""


def is_held_out(colour: str, shape: str) -> bool:
    """Return whether a pair is held out of the train split, as is one in five, spread over colours and shapes."""
    return (COLOURS.index(colour) + 2 * SHAPES.index(shape)) % 5 == 0


HELD_OUT_PAIRS = tuple((colour, shape) for colour in COLOURS for shape in SHAPES if is_held_out(colour, shape))


@dataclass(frozen=True)
class SceneObject:
    shape: str
    colour: str
    size: str
    texture: str
    position: str


@dataclass(frozen=True)
class Scene:
    """A scene in words. Objects are in the order of `POSITIONS`; no two have the same colour and shape."""

    objects: tuple[SceneObject, ...]
    sky: str
    ground: str
    light: str
    style: str


@dataclass(frozen=True)
class SceneBatch:
    """Scenes as indices into the vocabularies. Where `present_BP` is False, the object's attributes are undefined."""

    present_BP: Tensor
    shape_BP: Tensor
    colour_BP: Tensor
    size_BP: Tensor
    texture_BP: Tensor
    sky_B: Tensor
    ground_B: Tensor
    light_B: Tensor
    style_B: Tensor

    def __len__(self) -> int:
        return len(self.sky_B)

    def __getitem__(self, rows: slice) -> SceneBatch:
        return SceneBatch(*(getattr(self, field.name)[rows] for field in fields(self)))

    def to(self, device: torch.device | str) -> SceneBatch:
        return SceneBatch(*(getattr(self, field.name).to(device) for field in fields(self)))

    def to_scenes(self) -> list[Scene]:
        columns = {field.name: getattr(self, field.name).tolist() for field in fields(self)}
        return [
            Scene(
                tuple(
                    SceneObject(
                        **{name: words[columns[f"{name}_BP"][row][at]] for name, words in OBJECT_VOCABULARY.items()},
                        position=position,
                    )
                    for at, position in enumerate(POSITIONS)
                    if columns["present_BP"][row][at]
                ),
                **{name: words[columns[f"{name}_B"][row]] for name, words in SCENE_VOCABULARY.items()},
            )
            for row in range(len(self))
        ]

    @staticmethod
    def from_scenes(scenes: Sequence[Scene]) -> SceneBatch:
        """Return scenes as a batch on the CPU. The method is the inverse of `to_scenes`."""
        of_objects = {
            f"{name}_BP": torch.tensor([_object_row(scene, name, words) for scene in scenes], dtype=torch.int64)
            for name, words in OBJECT_VOCABULARY.items()
        }
        of_scenes = {
            f"{name}_B": torch.tensor([words.index(getattr(scene, name)) for scene in scenes], dtype=torch.int64)
            for name, words in SCENE_VOCABULARY.items()
        }
        present_BP = of_objects["shape_BP"] >= 0
        return SceneBatch(present_BP, **{name: value.clamp(min=0) for name, value in of_objects.items()}, **of_scenes)


def _object_row(scene: Scene, attribute: str, words: Sequence[str]) -> list[int]:
    """Return an attribute's index at every position; -1 where a position is empty."""
    at = {thing.position: words.index(getattr(thing, attribute)) for thing in scene.objects}
    return [at.get(position, -1) for position in POSITIONS]


def draw_batch(
    seed: int,
    indices: Sequence[int] | Tensor,
    split: Split = "any",
    style: Style | Literal["both"] | None = None,
    min_objects: int = 1,
    max_objects: int = MAX_OBJECTS,
    words: Mapping[str, Sequence[str]] = DRAWN,
) -> SceneBatch:
    """Draw the scenes with these indices, on the indices' device.

    With the style `both`, scenes alternate between styles; with None, each scene draws its style. `words` replaces
    words of `DRAWN`.
    """
    words = {**DRAWN, **words}
    index_B = torch.as_tensor(indices, dtype=torch.int64)
    count_B = min_objects + rng.integers(seed, "scenes/count", index_B, max_objects - min_objects + 1)
    present_BP, object_BP = _draw_places(seed, index_B, count_B, words["position"])
    pair_BP = _draw_pairs(seed, index_B, split, words).gather(1, object_BP)
    known_W, several = _indices(BACKGROUNDS, words["background"], index_B), len(words["background"])
    sky_B = rng.integers(seed, "scenes/sky", index_B, several)
    ground_step_B = 1 + rng.integers(seed, "scenes/ground", index_B, several - 1)
    lights_W = _indices(LIGHTS, words["light"], index_B)
    style_B = rng.integers(seed, "scenes/style", index_B, len(STYLES))
    if style == "both":
        style_B = index_B % len(STYLES)
    elif style is not None:
        style_B = torch.full_like(style_B, STYLES.index(style))
    return SceneBatch(
        present_BP=present_BP,
        shape_BP=pair_BP % len(SHAPES),
        colour_BP=pair_BP // len(SHAPES),
        size_BP=_draw_words(seed, "size", index_B, words),
        texture_BP=_draw_words(seed, "texture", index_B, words),
        sky_B=known_W[sky_B],
        ground_B=known_W[(sky_B + ground_step_B) % several],
        light_B=lights_W[rng.integers(seed, "scenes/light", index_B, len(lights_W))],
        style_B=style_B,
    )


def _indices(vocabulary: Sequence[str], words: Sequence[str], like: Tensor) -> Tensor:
    return torch.tensor([vocabulary.index(word) for word in words], device=like.device)


def _draw_places(seed: int, index_B: Tensor, count_B: Tensor, allowed: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return which positions have an object, and the number of the object at each position."""
    centre, *corners = (position in allowed for position in POSITIONS)
    key_BP = rng.bits(seed, "scenes/places", index_B, len(corners))
    key_BP = key_BP.masked_fill(~torch.tensor(corners, device=index_B.device), torch.iinfo(key_BP.dtype).max)
    rank_BP = key_BP.argsort(dim=1).argsort(dim=1)
    alone_B = (count_B == 1) & centre
    centre_B = alone_B & (rng.integers(seed, "scenes/centre", index_B, len(allowed)) == 0)
    object_BP = torch.cat([torch.zeros_like(rank_BP[:, :1]), rank_BP], dim=1)
    corner_BP = (rank_BP < count_B[:, None]) & ~centre_B[:, None]
    return torch.cat([centre_B[:, None], corner_BP], dim=1), object_BP


def _draw_words(seed: int, attribute: str, index_B: Tensor, words: Mapping[str, Sequence[str]]) -> Tensor:
    known = _indices(OBJECT_VOCABULARY[attribute], words[attribute], index_B)
    return known[rng.integers(seed, f"scenes/{attribute}", index_B, len(known), (len(POSITIONS),))]


def _draw_pairs(seed: int, index_B: Tensor, split: Split, words: Mapping[str, Sequence[str]]) -> Tensor:
    """Draw distinct pairs for the objects of each scene, encoded as colour * len(SHAPES) + shape."""
    held_out_N = torch.tensor([is_held_out(c, s) for c in COLOURS for s in SHAPES], device=index_B.device)
    other = [c not in words["colour"] or s not in words["shape"] for c in COLOURS for s in SHAPES]
    key_BN = rng.uniform(seed, "scenes/pairs", index_B, (len(held_out_N),))
    key_BN = key_BN + 4.0 * torch.tensor(other, device=index_B.device)  # sorts pairs with other words last
    if split == "train":
        key_BN = key_BN + held_out_N
    if split == "eval":
        first_B = (key_BN + ~held_out_N).argmin(dim=1, keepdim=True)
        key_BN = key_BN.scatter(1, first_B, -1.0)
    return key_BN.argsort(dim=1, stable=True)[:, :MAX_OBJECTS]
