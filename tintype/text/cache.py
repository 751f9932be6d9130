"""Cache the token states that a frozen text encoder computes for captions on disk, by the caption's text.

States are stored without padding, in the dtype in which they were computed. So training gives the same result with the
cache as without it; on a CPU, to the last bit.

A GPU rounds differently for a different number of rows, so it encodes captions in batches of a fixed number. A cached
state then does not depend on how many other captions were missing from the cache.

The folder's name is a hash of all settings and weights that determine the states. All ranks of a run and all arms of a
study share the cache.

Tensor dimensions are T (tokens of all captions) and C (width of the encoder).
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence

import torch

from tintype.errors import UserError
from tintype.runtime.cache import cache_folder, stamp_of, write_header, writing_cache
from tintype.runtime.locks import SharedWork
from tintype.runtime.segments import KEY_BYTES, Segments
from tintype.seams import TextTokens, TransformersForm
from tintype.text.frozen import FrozenTextEncoder
from tintype.text.packing import Packed, alone, evenly, spread

HEADER_NAME = "text.json"
FORMAT = 1
_AT_ONCE = 256
"""Number of captions that are encoded before their states are written."""
_PLACE_BYTES = 7
"""Number of leading bytes of a key that give its position in the lock file; equal positions share a lock."""
_OTHERWISE = "set run.text_embeddings to live"


class CachedText:
    """A text encoder with a cache. Only captions that the cache lacks are passed to the wrapped encoder."""

    def __init__(self, encoder: FrozenTextEncoder) -> None:
        settings = encoder.settings
        self._made_of = {
            "format": FORMAT,
            "kind": settings.kind,
            "weights, tokenizer and settings": encoder.identity,
            "compute": settings.compute,
            "device": encoder.device.type,
        }
        """All settings that determine an embedding, except the text."""
        stamp = stamp_of(self._made_of)
        self.dim, self.identity = encoder.dim, encoder.identity
        self.folder = cache_folder() / "text" / stamp.hex()[:32]
        self.encoder = encoder
        self._numbers = torch.int16 if settings.compute == "bf16" else torch.int32
        self._segments = Segments(self.folder, stamp, _OTHERWISE)
        self._work = SharedWork("text embeddings", self._open_locks)

    def identity_at(self, max_tokens: int) -> str:
        return self.encoder.identity_at(max_tokens)

    def truncate(self, captions: Sequence[str], max_tokens: int) -> list[str]:
        return self.encoder.truncate(captions, max_tokens)

    def transformers_form(self) -> TransformersForm:
        return self.encoder.transformers_form()

    def fill(self, captions: Sequence[str]) -> int:
        """Encode the missing captions, shared with other processes, and return how many this process encoded."""
        text_of = {_key(caption): caption for caption in captions}
        return self._work.do(
            list(text_of),
            self._segments.missing,
            lambda key: int.from_bytes(key[:_PLACE_BYTES]),
            lambda keys: self._add(keys, [text_of[key] for key in keys]),
            _AT_ONCE,
        )

    def _open_locks(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        return os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def encode(self, captions: Sequence[str]) -> TextTokens:
        place = {caption: index for index, caption in enumerate(dict.fromkeys(captions))}
        self.fill(list(place))
        packed = self._read(list(place))
        device, length = self.encoder.device, self.encoder.settings.max_tokens
        return spread(packed, [place[caption] for caption in captions], length, device)

    def _add(self, keys: Sequence[bytes], captions: Sequence[str]) -> None:
        on_cpu = self.encoder.device.type == "cpu"
        packed = self.encoder.packed(captions, alone if on_cpu else evenly)
        number_TC = packed.token_TC.cpu().view(self._numbers).numpy()
        blocks = [
            number_TC[start : start + length].tobytes()
            for start, length in zip(packed.starts, packed.lengths, strict=True)
        ]
        file = self.folder / HEADER_NAME
        with writing_cache(file, _OTHERWISE):
            if not file.exists():
                write_header(file, FORMAT, self._made_of)
        self._segments.add(list(zip(keys, blocks, strict=True)))

    def _read(self, captions: Sequence[str]) -> Packed:
        blocks = [self._segments.get(_key(caption)) for caption in captions]
        token_bytes = self.dim * self._numbers.itemsize
        found = [block for block in blocks if block is not None]
        if len(found) < len(blocks):  # `fill` has just written all of them
            raise UserError(
                f"the embeddings in {self.folder} change while they are read; another program may be deleting them"
            )
        lengths = [len(block) // token_bytes for block in found]
        number_T = torch.frombuffer(bytearray(b"".join(found)), dtype=self._numbers)
        dtype = self.encoder.settings.dtype
        starts = [0, *itertools.accumulate(lengths)][:-1]
        return Packed(number_T.view(dtype).view(-1, self.dim), starts, lengths)


def _key(caption: str) -> bytes:
    return hashlib.blake2b(caption.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
