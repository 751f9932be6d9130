"""The embedded data set: scenes drawn, rendered and captioned on the spot, from (seed, index) alone.

It needs no download, has captions that are exactly true, and holds out combinations of colour and shape, so that a
model's reading of the text can be measured rather than judged.
"""

from tintype.data.scenes.captions import (
    CaptionKind,
    asked_attributes,
    long_caption,
    short_caption,
    vocabulary,
)
from tintype.data.scenes.render import MAX_SIZE_PX, MIN_SIZE_PX, POSITION_XY, object_centres, render
from tintype.data.scenes.scene import (
    BACKGROUNDS,
    COLOURS,
    HELD_OUT_PAIRS,
    LIGHTS,
    MAX_OBJECTS,
    OBJECT_VOCABULARY,
    POSITIONS,
    SCENE_VOCABULARY,
    SHAPES,
    SIZES,
    STYLES,
    TEXTURES,
    Scene,
    SceneBatch,
    SceneObject,
    Split,
    Style,
    draw_batch,
    draw_scene,
    draw_scenes,
    is_held_out,
)

__all__ = [
    "BACKGROUNDS",
    "COLOURS",
    "HELD_OUT_PAIRS",
    "LIGHTS",
    "MAX_OBJECTS",
    "MAX_SIZE_PX",
    "MIN_SIZE_PX",
    "OBJECT_VOCABULARY",
    "POSITIONS",
    "POSITION_XY",
    "SCENE_VOCABULARY",
    "SHAPES",
    "SIZES",
    "STYLES",
    "TEXTURES",
    "CaptionKind",
    "Scene",
    "SceneBatch",
    "SceneObject",
    "Split",
    "Style",
    "asked_attributes",
    "draw_batch",
    "draw_scene",
    "draw_scenes",
    "is_held_out",
    "long_caption",
    "object_centres",
    "render",
    "short_caption",
    "vocabulary",
]
