"""Draw scenes as images, in batches, on the CPU or a GPU, at any size from 16 to 1024 px.

Each object is drawn from a signed distance function on its own patch of pixels. The distance determines the edge, which
is anti-aliased over one pixel. The derivative of the distance towards the light determines the shading. The distance at
a point shifted towards the light determines the shadow. All lengths are fractions of the image's width, so a scene
looks the same at every size. Jitter, texture phase and noise are random numbers that depend on (seed, index) alone.

All per-pixel operations round in the same way in every code path (see `shapes.py`). So an image's bytes do not depend
on the other images of its batch.

B: scenes. N: objects. P: rows or columns of an object's patch. C: channels. H, W: rows, columns of the image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype import rng
from tintype.data.scenes.scene import POSITIONS, SHAPES, STYLES, TEXTURES, VOCABULARY, Scene, SceneBatch
from tintype.data.scenes.shapes import DISTANCES

_COLOUR_RGB = {  # the second colour of striped or dotted objects is close to the first: no other colour's name fits it
    "red": ((0.86, 0.16, 0.18), (1.00, 0.74, 0.70)),
    "orange": ((0.97, 0.52, 0.10), (1.00, 0.87, 0.68)),
    "yellow": ((0.98, 0.83, 0.16), (0.78, 0.54, 0.05)),
    "green": ((0.20, 0.62, 0.27), (0.72, 0.92, 0.70)),
    "blue": ((0.14, 0.37, 0.86), (0.70, 0.83, 1.00)),
    "purple": ((0.53, 0.20, 0.70), (0.87, 0.72, 0.96)),
    "white": ((0.97, 0.97, 0.96), (0.60, 0.62, 0.66)),
    "black": ((0.13, 0.13, 0.15), (0.52, 0.52, 0.56)),
}
_BACKGROUND_RGB = {
    "cream": (0.95, 0.90, 0.78),
    "peach": (0.95, 0.73, 0.62),
    "mint": (0.66, 0.87, 0.75),
    "lavender": (0.75, 0.70, 0.89),
    "teal": (0.22, 0.53, 0.56),
    "slate": (0.38, 0.43, 0.52),
}
_LIGHT_XY = {"left": (-1.0, 0.0), "right": (1.0, 0.0), "above": (0.0, -1.0), "below": (0.0, 1.0)}  # y grows downwards
POSITION_XY = {
    "centre": (0.50, 0.50),
    "top left": (0.27, 0.27),
    "top right": (0.73, 0.27),
    "bottom left": (0.27, 0.73),
    "bottom right": (0.73, 0.73),
}
_RADIUS = {"small": 0.122, "large": 0.184}
_CENTRE_JITTER = 0.045
_RADIUS_JITTER = 0.04
_TILT_STEPS, _TILT_MAX = 33, math.radians(9.0)
_TEXTURE_ANGLES = tuple(math.radians(angle) for angle in (25, 45, 65, 115, 135, 155))

_BEVEL_WIDTH = {"ball": 0.94, "block": 0.34, "pyramid": 0.0, "star": 0.0, "ring": 0.29, "cross": 0.0}  # 0: flat facets
_FACET_TILT = 0.52  # sine of the angle between a facet's normal and the line of sight
_LIGHT_HEIGHT = 0.62  # sine of the light's elevation over the image's plane
_SHADE_STEP = 0.05  # step towards the light, in radii, over which the distance's derivative is taken
_STRIPE_PERIOD, _STRIPE_SHARE = 0.56, 0.42
_DOT_PERIOD, _DOT_RADIUS = 0.60, 0.29

_PATCH_HALF = 0.30  # holds the largest object with its shadow and penumbra
_CPU_CHUNK_PIXELS, _GPU_CHUNK_PIXELS = 1 << 18, 1 << 23  # fits a CPU cache; keeps a GPU busy


_LOOK = {
    "edge": {"render": 0.0, "photo": 0.012},  # blur of every edge, as a share of the image's width
    "shadow_reach": {"render": 0.040, "photo": 0.056},
    "shadow_softness": {"render": 0.030, "photo": 0.060},
    "shadow_depth": {"render": 0.42, "photo": 0.58},
    "ambient": {"render": 0.50, "photo": 0.38},
    "gloss": {"render": 0.35, "photo": 0.22},
    "mottle": {"render": 0.0, "photo": 0.16},  # strength of slow, cloudy variation
    "grain": {"render": 0.0, "photo": 0.10},  # strength of fine noise
    "vignette": {"render": 0.0, "photo": 0.45},
    "exposure": {"render": 0.0, "photo": 0.10},  # range of the brightness between scenes
}
_GRAIN_CELLS, _MOTTLE_CELLS = 64, 9


def render(
    scenes: Sequence[Scene] | SceneBatch,
    size_px: int,
    seed: int,
    indices: Sequence[int] | Tensor,
    device: torch.device | str = "cpu",
    scale: float = 1.0,
) -> Tensor:
    """Render the scenes as uint8 [B, 3, size_px, size_px] on the device. `scale` is a factor for the objects' size."""
    batch = (scenes if isinstance(scenes, SceneBatch) else SceneBatch.from_scenes(scenes)).to(device)
    index_B = torch.as_tensor(indices, dtype=torch.int64, device=device)
    if len(index_B) != len(batch):
        raise ValueError(f"{len(batch)} scenes were given with {len(index_B)} indices; the numbers must be equal")
    image_BCHW = torch.empty(len(batch), 3, size_px, size_px, dtype=torch.uint8, device=device)
    chunk_pixels = _CPU_CHUNK_PIXELS if index_B.device.type == "cpu" else _GPU_CHUNK_PIXELS
    step = max(1, chunk_pixels // size_px**2)
    for start in range(0, len(batch), step):
        rows = slice(start, start + step)
        image_BCHW[rows] = _render_chunk(batch[rows], size_px, seed, index_B[rows], scale)
    return image_BCHW


def object_centres(seed: int, index_B: Tensor) -> Tensor:
    """Return the centre of an object at each position, as float32 [B, P, 2]. It is (x, y) as fractions of the width."""
    centre_P2 = _table([POSITION_XY[position] for position in POSITIONS], index_B)
    jitter_BP2 = rng.uniform(seed, "render/centre", index_B, (len(POSITIONS), 2))
    return centre_P2 + (2.0 * jitter_BP2 - 1.0) * _CENTRE_JITTER


@dataclass(frozen=True)
class _Objects:
    scene_N: Tensor
    place_N: Tensor
    shape_N: Tensor
    texture_N: Tensor
    rgb_NC: Tensor
    ink_NC: Tensor
    centre_N2: Tensor
    radius_N: Tensor
    tilt_N2: Tensor  # cosine and sine
    weave_N2: Tensor  # cosine and sine of the texture's direction
    phase_N2: Tensor
    light_N2: Tensor
    look: dict[str, Tensor]


def _table(rows: Sequence[object], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32, device=like.device)


def _numbers(attribute: str, by_word: Mapping[str, object], index: Tensor) -> Tensor:
    return _table([by_word[word] for word in VOCABULARY[attribute]], index)[index]


def _look_of(style_B: Tensor) -> dict[str, Tensor]:
    return {name: _numbers("style", by_style, style_B) for name, by_style in _LOOK.items()}


def _turns(angles: Sequence[float], like: Tensor) -> Tensor:
    """Return cosines and sines from a table, so that they round in the same way on every device."""
    return _table([(math.cos(angle), math.sin(angle)) for angle in angles], like)


def _objects(batch: SceneBatch, seed: int, index_B: Tensor, scale: float) -> _Objects:
    scene_N, place_N = batch.present_BP.nonzero(as_tuple=True)
    at = (scene_N, place_N)
    places = (len(POSITIONS),)
    rgb_N2C = _numbers("colour", _COLOUR_RGB, batch.colour_BP[at])
    radius_jitter_BP = 2.0 * rng.uniform(seed, "render/radius", index_B, places) - 1.0
    tilt_BP = rng.integers(seed, "render/tilt", index_B, _TILT_STEPS, places)
    tilts = [_TILT_MAX * (2.0 * step / (_TILT_STEPS - 1) - 1.0) for step in range(_TILT_STEPS)]
    weave_BP = rng.integers(seed, "render/weave", index_B, len(_TEXTURE_ANGLES), places)
    return _Objects(
        scene_N=scene_N,
        place_N=place_N,
        shape_N=batch.shape_BP[at],
        texture_N=batch.texture_BP[at],
        rgb_NC=rgb_N2C[:, 0],
        ink_NC=rgb_N2C[:, 1],
        centre_N2=object_centres(seed, index_B)[at],
        radius_N=scale * _numbers("size", _RADIUS, batch.size_BP[at]) * (1.0 + _RADIUS_JITTER * radius_jitter_BP[at]),
        tilt_N2=_turns(tilts, index_B)[tilt_BP[at]],
        weave_N2=_turns(_TEXTURE_ANGLES, index_B)[weave_BP[at]],
        phase_N2=rng.uniform(seed, "render/phase", index_B, (len(POSITIONS), 2))[at],
        light_N2=_numbers("light", _LIGHT_XY, batch.light_B[scene_N]),
        look=_look_of(batch.style_B[scene_N]),
    )


def _pp(value_N: Tensor) -> Tensor:
    return value_N[:, None, None]


def _distance(objects: _Objects, x_NPP: Tensor, y_NPP: Tensor) -> Tensor:
    """Return the signed distance of points to each object's shape. All are in the object's frame, in radii."""
    distance_NPP = torch.empty_like(x_NPP)
    for number, shape in enumerate(SHAPES):
        rows = (objects.shape_N == number).nonzero()[:, 0]
        distance_NPP[rows] = DISTANCES[shape](x_NPP[rows], y_NPP[rows])
    return distance_NPP


def _turn(x_NPP: Tensor, y_NPP: Tensor, turn_N2: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = _pp(turn_N2[:, 0]), _pp(turn_N2[:, 1])
    return x_NPP * cos + y_NPP * sin, y_NPP * cos - x_NPP * sin


def _smooth(ramp: Tensor) -> Tensor:
    ramp = ramp.clamp(0.0, 1.0)
    return ramp * ramp * (3.0 - 2.0 * ramp)


def _tilt_sine(objects: _Objects, distance_NPP: Tensor) -> Tensor:
    """Return the sine of the surface's tilt. The tilt changes over the bevel's width, and is constant on a facet."""
    width_N = _numbers("shape", _BEVEL_WIDTH, objects.shape_N)
    round_NPP = (1.0 + distance_NPP / _pp(width_N.clamp(min=1e-3))).clamp(0.0, 0.98)
    return round_NPP.where(_pp(width_N > 0), torch.full_like(round_NPP, _FACET_TILT))


def _ink(objects: _Objects, x_NPP: Tensor, y_NPP: Tensor, edge_N: Tensor) -> Tensor:
    """Return the fraction of the texture's second colour at each pixel."""
    ink_NPP = torch.zeros_like(x_NPP)
    for texture, pattern in (("striped", _stripes), ("dotted", _dots)):
        rows = (objects.texture_N == TEXTURES.index(texture)).nonzero()[:, 0]
        along_NPP, across_NPP = _turn(x_NPP[rows], y_NPP[rows], objects.weave_N2[rows])
        ink_NPP[rows] = pattern(along_NPP, across_NPP, objects.phase_N2[rows], _pp(edge_N[rows]))
    return ink_NPP


def _stripes(x_NPP: Tensor, y_NPP: Tensor, phase_N2: Tensor, edge_NPP: Tensor) -> Tensor:
    turn_NPP = x_NPP / _STRIPE_PERIOD + _pp(phase_N2[:, 0])
    from_middle_NPP = (turn_NPP - turn_NPP.floor() - 0.5).abs()
    return ((_STRIPE_SHARE / 2 - from_middle_NPP) * _STRIPE_PERIOD / edge_NPP + 0.5).clamp(0.0, 1.0)


def _dots(x_NPP: Tensor, y_NPP: Tensor, phase_N2: Tensor, edge_NPP: Tensor) -> Tensor:
    phase_N2 = 0.25 + 0.5 * phase_N2  # keeps one dot near the middle, where even a star shows the whole dot
    u_NPP, v_NPP = x_NPP / _DOT_PERIOD + _pp(phase_N2[:, 0]), y_NPP / _DOT_PERIOD + _pp(phase_N2[:, 1])
    u_NPP, v_NPP = u_NPP - u_NPP.floor() - 0.5, v_NPP - v_NPP.floor() - 0.5
    from_middle_NPP = (u_NPP * u_NPP + v_NPP * v_NPP).sqrt()
    return ((_DOT_RADIUS - from_middle_NPP) * _DOT_PERIOD / edge_NPP + 0.5).clamp(0.0, 1.0)


def _object_layers(objects: _Objects, x_NPP: Tensor, y_NPP: Tensor, pixel: float) -> Tensor:
    """Return colour times coverage, coverage, and shadow of every object, as float32 [N, 5, P, P]."""
    radius_NPP = _pp(objects.radius_N)
    x_NPP, y_NPP = x_NPP - _pp(objects.centre_N2[:, 0]), y_NPP - _pp(objects.centre_N2[:, 1])
    x_NPP, y_NPP = _turn(x_NPP / radius_NPP, y_NPP / radius_NPP, objects.tilt_N2)
    light_x_NPP, light_y_NPP = _turn(_pp(objects.light_N2[:, 0]), _pp(objects.light_N2[:, 1]), objects.tilt_N2)
    distance_NPP = _distance(objects, x_NPP, y_NPP)
    nearer_NPP = _distance(objects, x_NPP + _SHADE_STEP * light_x_NPP, y_NPP + _SHADE_STEP * light_y_NPP)
    facing_NPP = ((nearer_NPP - distance_NPP) / _SHADE_STEP).clamp(-1.0, 1.0)

    edge_N = (pixel + objects.look["edge"]) / objects.radius_N
    coverage_NPP = (0.5 - distance_NPP / _pp(edge_N)).clamp(0.0, 1.0)
    lit_NPP, gloss_NPP = _shading(objects, distance_NPP, facing_NPP)
    ink_NPP = _ink(objects, x_NPP, y_NPP, edge_N)
    rgb_NC11, ink_NC11 = objects.rgb_NC[:, :, None, None], objects.ink_NC[:, :, None, None]
    colour_NCPP = rgb_NC11 + (ink_NC11 - rgb_NC11) * ink_NPP[:, None]
    colour_NCPP = (colour_NCPP * lit_NPP[:, None] + gloss_NPP[:, None]).clamp(0.0, 1.0)
    shadow_NPP = _shadow(objects, x_NPP, y_NPP, light_x_NPP, light_y_NPP)
    return torch.cat([colour_NCPP * coverage_NPP[:, None], coverage_NPP[:, None], shadow_NPP[:, None]], dim=1)


def _shading(objects: _Objects, distance_NPP: Tensor, facing_NPP: Tensor) -> tuple[Tensor, Tensor]:
    """Return diffuse light and highlight of a surface. `facing_NPP` is how far the surface faces the light."""
    lean_NPP = _tilt_sine(objects, distance_NPP)
    upright_NPP = (1.0 - lean_NPP * lean_NPP).sqrt()
    light_level = math.sqrt(1.0 - _LIGHT_HEIGHT**2)
    towards_NPP = (lean_NPP * facing_NPP * light_level + upright_NPP * _LIGHT_HEIGHT).clamp(min=0.0)
    ambient_NPP = _pp(objects.look["ambient"])
    half = math.sqrt(2.0 + 2.0 * _LIGHT_HEIGHT)
    shine_NPP = (lean_NPP * facing_NPP * light_level + upright_NPP * (1.0 + _LIGHT_HEIGHT)).clamp(min=0.0) / half
    for _ in range(4):
        shine_NPP = shine_NPP * shine_NPP
    return ambient_NPP + (1.18 - ambient_NPP) * towards_NPP, _pp(objects.look["gloss"]) * shine_NPP * shine_NPP


def _shadow(objects: _Objects, x_NPP: Tensor, y_NPP: Tensor, light_x_NPP: Tensor, light_y_NPP: Tensor) -> Tensor:
    """Return the shadow. A shadow is the object's outline, moved away from the light, with a soft edge."""
    reach_NPP = _pp(objects.look["shadow_reach"] / objects.radius_N)
    distance_NPP = _distance(objects, x_NPP + reach_NPP * light_x_NPP, y_NPP + reach_NPP * light_y_NPP)
    softness_NPP = _pp(objects.look["shadow_softness"] / objects.radius_N)
    return _smooth(0.5 - distance_NPP / (2.0 * softness_NPP)) * _pp(objects.look["shadow_depth"])


def _place_layers(objects: _Objects, scenes: int, size_px: int, patch_half: float) -> Tensor:
    """Return, for each scene, the sum of its objects' layers on the whole image, as float32 [B, 5, H, W]."""
    patch_px = min(size_px, math.ceil(2 * patch_half * size_px) + 1)
    corner_N2 = (objects.centre_N2 * size_px - patch_px / 2).floor().to(torch.int64).clamp(0, size_px - patch_px)
    step_P = torch.arange(patch_px, device=corner_N2.device)
    column_N1P, row_NP1 = (corner_N2[:, :1] + step_P)[:, None, :], (corner_N2[:, 1:] + step_P)[:, :, None]
    x_NPP = ((column_N1P + 0.5) / size_px).expand(-1, patch_px, -1)
    y_NPP = ((row_NP1 + 0.5) / size_px).expand(-1, -1, patch_px)
    layers_NCPP = _object_layers(objects, x_NPP, y_NPP, 1.0 / size_px)
    canvas_BCHW = torch.zeros(scenes, 5, size_px, size_px, device=corner_N2.device)
    canvas_BHWC = canvas_BCHW.permute(0, 2, 3, 1)
    for place in range(len(POSITIONS)):  # one position after the other, since patches of one scene overlap
        rows = (objects.place_N == place).nonzero()[:, 0]
        at = (_pp(objects.scene_N[rows]), row_NP1[rows], column_N1P[rows])
        canvas_BHWC[at] += layers_NCPP[rows].permute(0, 2, 3, 1)
    return canvas_BCHW


def _backdrop(batch: SceneBatch, size_px: int, seed: int, index_B: Tensor, look: dict[str, Tensor]) -> Tensor:
    """Draw sky and ground, which meet at a slightly curved line, brighter towards the light: [B, 3, H, W]."""
    sky_BC11 = _numbers("sky", _BACKGROUND_RGB, batch.sky_B)[:, :, None, None]
    ground_BC11 = _numbers("ground", _BACKGROUND_RGB, batch.ground_B)[:, :, None, None]
    x_W = (torch.arange(size_px, device=index_B.device) + 0.5) / size_px - 0.5
    drawn_B3 = 2.0 * rng.uniform(seed, "render/horizon", index_B, (3,)) - 1.0
    height_B1, slope_B1, bow_B1 = drawn_B3[:, :1], drawn_B3[:, 1:2], drawn_B3[:, 2:]
    horizon_BW = 0.02 * height_B1 + 0.05 * slope_B1 * x_W + 0.16 * bow_B1 * (x_W * x_W - 1.0 / 12.0)
    below_BHW = x_W[:, None] - horizon_BW[:, None, :]
    edge_B11 = _pp(1.0 / size_px + 2.0 * look["edge"])
    ground_BHW = (below_BHW / edge_B11 + 0.5).clamp(0.0, 1.0)
    crease_BHW = 1.0 - 0.10 * ground_BHW * _smooth(1.0 - below_BHW / 0.12)
    light_B2 = _numbers("light", _LIGHT_XY, batch.light_B)
    towards_BHW = _pp(light_B2[:, 0]) * x_W + _pp(light_B2[:, 1]) * x_W[:, None]
    level_BHW = crease_BHW * (0.97 + 0.16 * towards_BHW)
    return (sky_BC11 + (ground_BC11 - sky_BC11) * ground_BHW[:, None]) * level_BHW[:, None]


def _value_noise(seed: int, stream: str, index_B: Tensor, cells: int, size_px: int) -> Tensor:
    """Draw bell-shaped noise in about [-1, 1], float32 [B, H, W], interpolated from a lattice of `cells` per side."""
    side = cells + 1
    drawn = rng.bits(seed, stream, index_B, side * side)
    parts = [((drawn >> shift) & 0xFFFF).to(torch.float32) for shift in (0, 16, 32)]
    lattice = ((parts[0] + parts[1] + parts[2]) * (2.0 / (3 * 0xFFFF)) - 1.0).view(-1, side, side)
    at_W = (torch.arange(size_px, device=index_B.device) + 0.5) * cells / size_px
    cell_W = at_W.to(torch.int64)
    blend_W = at_W - cell_W
    rows = lattice[:, cell_W] + (lattice[:, cell_W + 1] - lattice[:, cell_W]) * blend_W[:, None]
    return rows[:, :, cell_W] + (rows[:, :, cell_W + 1] - rows[:, :, cell_W]) * blend_W


def _develop(image_BCHW: Tensor, seed: int, index_B: Tensor, look: dict[str, Tensor]) -> Tensor:
    """Add effects of lens and film, namely uneven light, grain, vignette, exposure and tint, to each image."""
    size_px = image_BCHW.shape[-1]
    mottle_BHW = _value_noise(seed, "render/mottle", index_B, _MOTTLE_CELLS, size_px) * _pp(look["mottle"])
    grain_BHW = _value_noise(seed, "render/film", index_B, _GRAIN_CELLS, size_px) * _pp(look["grain"])
    x_W = (torch.arange(size_px, device=index_B.device) + 0.5) / size_px - 0.5
    off_axis_HW = x_W * x_W + (x_W * x_W)[:, None]
    vignette_BHW = 1.0 - _pp(look["vignette"]) * off_axis_HW
    drawn_B4 = 2.0 * rng.uniform(seed, "render/exposure", index_B, (4,)) - 1.0
    gain_BC = 1.0 + look["exposure"][:, None] * (drawn_B4[:, :1] + 0.3 * drawn_B4[:, 1:])
    level_BHW = (1.0 + mottle_BHW) * vignette_BHW
    return image_BCHW * level_BHW[:, None] * gain_BC[:, :, None, None] + grain_BHW[:, None]


def _render_chunk(batch: SceneBatch, size_px: int, seed: int, index_B: Tensor, scale: float) -> Tensor:
    look = _look_of(batch.style_B)
    layers_BCHW = _place_layers(_objects(batch, seed, index_B, scale), len(batch), size_px, _PATCH_HALF * scale)
    colour_BCHW, coverage_B1HW, shadow_B1HW = layers_BCHW[:, :3], layers_BCHW[:, 3:4], layers_BCHW[:, 4:]
    behind_BCHW = _backdrop(batch, size_px, seed, index_B, look) * (1.0 - shadow_B1HW.clamp(max=0.8))
    image_BCHW = behind_BCHW * (1.0 - coverage_B1HW.clamp(max=1.0)) + colour_BCHW
    photo_B = (batch.style_B == STYLES.index("photo")).nonzero()[:, 0]
    look_of_photos = _look_of(batch.style_B[photo_B])
    image_BCHW[photo_B] = _develop(image_BCHW[photo_B], seed, index_B[photo_B], look_of_photos)
    return (image_BCHW.clamp(0.0, 1.0) * 255.0 + 0.5).to(torch.uint8)
