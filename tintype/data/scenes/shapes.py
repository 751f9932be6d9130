"""Signed distances of the six shapes, in units of the object's radius, negative inside a shape.

The formulas only use additions, products, quotients, square roots and comparisons. Such operations round in the same
way in every code path of every device. So a scene has the same bytes alone and in a batch. The formulas follow Quilez,
"2D distance functions" (iquilezles.org).

N: objects. P, Q: rows and columns of the patch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

Distance = Callable[[Tensor, Tensor], Tensor]

_BALL_RADIUS = 0.94
_BLOCK_HALF, _BLOCK_ROUNDING = 0.80, 0.16
_PYRAMID_HALF_BASE, _PYRAMID_DROP = 0.98, 0.16
_STAR_POINT, _STAR_WAIST = 1.04, 0.50
_RING_RADIUS, _RING_TUBE = 0.68, 0.29
_CROSS_LONG, _CROSS_SHORT, _CROSS_ROUNDING = 0.96, 0.33, 0.06


def _length(x_NPQ: Tensor, y_NPQ: Tensor) -> Tensor:
    return (x_NPQ * x_NPQ + y_NPQ * y_NPQ).sqrt()


def _box(x_NPQ: Tensor, y_NPQ: Tensor, half_x: float, half_y: float, rounding: float) -> Tensor:
    """A rounded box. The coordinates are absolute values, so only the corner at (+, +) is computed."""
    over_x_NPQ, over_y_NPQ = x_NPQ - (half_x - rounding), y_NPQ - (half_y - rounding)
    outside_NPQ = _length(over_x_NPQ.clamp(min=0), over_y_NPQ.clamp(min=0))
    return outside_NPQ + over_x_NPQ.maximum(over_y_NPQ).clamp(max=0) - rounding


def ball(x_NPQ: Tensor, y_NPQ: Tensor) -> Tensor:
    """A disc, shaded as a sphere."""
    return _length(x_NPQ, y_NPQ) - _BALL_RADIUS


def block(x_NPQ: Tensor, y_NPQ: Tensor) -> Tensor:
    """A square with rounded corners."""
    return _box(x_NPQ.abs(), y_NPQ.abs(), _BLOCK_HALF, _BLOCK_HALF, _BLOCK_ROUNDING)


def pyramid(x_NPQ: Tensor, y_NPQ: Tensor) -> Tensor:
    """An equilateral triangle that points up."""
    slope = math.sqrt(3.0)
    x_NPQ = x_NPQ.abs() - _PYRAMID_HALF_BASE
    y_NPQ = (_PYRAMID_DROP - y_NPQ) + _PYRAMID_HALF_BASE / slope
    folded = x_NPQ + slope * y_NPQ > 0
    turned_x_NPQ, turned_y_NPQ = (x_NPQ - slope * y_NPQ) * 0.5, (-slope * x_NPQ - y_NPQ) * 0.5
    x_NPQ, y_NPQ = turned_x_NPQ.where(folded, x_NPQ), turned_y_NPQ.where(folded, y_NPQ)
    x_NPQ = x_NPQ - x_NPQ.clamp(-2 * _PYRAMID_HALF_BASE, 0)
    return _length(x_NPQ, y_NPQ).copysign(-y_NPQ)


def star(x_NPQ: Tensor, y_NPQ: Tensor) -> Tensor:
    """A star with five points, one of which points up."""
    cos36, sin36 = math.cos(math.pi / 5), math.sin(math.pi / 5)
    x_NPQ, y_NPQ = x_NPQ.abs(), -y_NPQ
    for side in (1.0, -1.0):
        fold_NPQ = 2.0 * (side * cos36 * x_NPQ - sin36 * y_NPQ).clamp(min=0)
        x_NPQ, y_NPQ = x_NPQ - fold_NPQ * (side * cos36), y_NPQ + fold_NPQ * sin36
    x_NPQ, y_NPQ = x_NPQ.abs(), y_NPQ - _STAR_POINT
    edge_x, edge_y = _STAR_WAIST * sin36, _STAR_WAIST * cos36 - _STAR_POINT
    edge_squared = edge_x * edge_x + edge_y * edge_y
    along_NPQ = ((x_NPQ * edge_x + y_NPQ * edge_y) / edge_squared).clamp(0, 1)
    distance_NPQ = _length(x_NPQ - edge_x * along_NPQ, y_NPQ - edge_y * along_NPQ)
    return distance_NPQ.copysign(y_NPQ * edge_x - x_NPQ * edge_y)


def ring(x_NPQ: Tensor, y_NPQ: Tensor) -> Tensor:
    """A torus seen from above."""
    return (_length(x_NPQ, y_NPQ) - _RING_RADIUS).abs() - _RING_TUBE


def cross(x_NPQ: Tensor, y_NPQ: Tensor) -> Tensor:
    """A cross of an upright and a horizontal bar."""
    x_NPQ, y_NPQ = x_NPQ.abs(), y_NPQ.abs()
    long_NPQ, short_NPQ = x_NPQ.maximum(y_NPQ), x_NPQ.minimum(y_NPQ)
    return _box(long_NPQ, short_NPQ, _CROSS_LONG, _CROSS_SHORT, _CROSS_ROUNDING)


DISTANCES: dict[str, Distance] = {shape.__name__: shape for shape in (ball, block, pyramid, star, ring, cross)}
