"""Stateless randomness: every draw is a pure function of (seed, stream, position).

So a resumed run needs no saved random state, and draws do not depend on the batch size or the number of workers and
ranks. Each position has a key. The i-th number of a position is a hash of (key, i) with the finaliser of SplitMix64
(Steele et al. 2014). The integers are the same on every device. Floats are computed from them, and differ between
devices only by rounding.

B: positions (samples).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """Return the same 64 bits as a signed integer, like torch's int64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts arithmetically; the mask makes it logical


def mix(x: Tensor) -> Tensor:
    """Apply a bijection of 64-bit integers. Each output bit depends on each input bit."""
    x = (x ^ _shift_right(x, 30)) * _MULTIPLY_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLY_2
    return x ^ _shift_right(x, 31)


def stream_key(seed: int, stream: str) -> int:
    """Return a 64-bit key for a named stream of a seed."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return _signed(int.from_bytes(digest[:8], "little"))


def bits(seed: int, stream: str, positions: Tensor, count: int) -> Tensor:
    """Return `count` uniform 64-bit integers for each position, as int64 [B, count]."""
    if positions.dtype != torch.int64:
        raise TypeError(f"positions must be int64, not {positions.dtype}")
    key_B = mix(positions * _GOLDEN + stream_key(seed, stream))
    counter_N = mix(torch.arange(1, count + 1, device=positions.device) * _GOLDEN)
    return mix(key_B[:, None] + counter_N[None, :])


def uniform(seed: int, stream: str, positions: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Return uniform floats in [0, 1), as float32 [B, *shape]."""
    drawn = _shift_right(bits(seed, stream, positions, math.prod(shape)), 40)  # 24 bits: exact in float32
    return (drawn.to(torch.float32) * 2.0**-24).view(len(positions), *shape)


def integers(seed: int, stream: str, positions: Tensor, high: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Return integers in [0, high), as int64 [B, *shape]. The bias due to the modulo operation is below high / 2^63."""
    drawn = _shift_right(bits(seed, stream, positions, math.prod(shape)), 1) % high
    return drawn.view(len(positions), *shape)


def normal(seed: int, stream: str, positions: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Return standard normal floats, as float32 [B, *shape].

    The Box-Muller transform makes two floats from each 64-bit integer.
    """
    count = math.prod(shape)
    drawn = bits(seed, stream, positions, (count + 1) // 2)
    radius_u = (_shift_right(drawn, 32).to(torch.float32) + 0.5) * 2.0**-32
    angle_u = (drawn & 0xFFFFFFFF).to(torch.float32) * 2.0**-32
    radius = torch.sqrt(-2.0 * torch.log(radius_u))
    angle = (2.0 * math.pi) * angle_u
    pair = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
    return pair.flatten(1)[:, :count].reshape(len(positions), *shape)


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """Initialise one part from its own random stream.

    So an additional part in an arm does not change the other parts.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, f"init/{name}"))
        yield
