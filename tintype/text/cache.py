"""Token states of captions by a frozen text encoder, cached on the disk by the text.

They are stored without padding, in the type that they were computed in, so that a run learns the same with the cache
and without: on a CPU to the last bit. On a GPU they are computed in groups of one size, whichever captions are missing.
The folder is named by all that decides them, so any change starts a new one; arms of a study and ranks share it.

T: tokens of all captions. C: width of the encoder.
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
"""Captions that are encoded before they are written."""
_PLACE_BYTES = 7
"""Bytes of a key that say which byte of a file its lock is on; two keys with one lock wait for each other."""
_OTHERWISE = "set run.text_embeddings to live"


class CachedText:
    """A text encoder with a cache; captions that are missing are encoded by another one."""

    def __init__(self, encoder: FrozenTextEncoder) -> None:
        settings = encoder.settings
        self._made_of = {
            "format": FORMAT,
            "kind": settings.kind,
            "weights, tokenizer and settings": encoder.identity,
            "compute": settings.compute,
            "device": encoder.device.type,
        }
        """All that decides an embedding, the text aside."""
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
        """Encode the captions that are missing, and return how many of them this process encoded.

        Of processes that miss the same ones, each encodes some.
        """
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
        if len(found) < len(blocks):  # they were there a moment ago
            raise UserError(f"the embeddings in {self.folder} change while they are read; does something delete them?")
        lengths = [len(block) // token_bytes for block in found]
        number_T = torch.frombuffer(bytearray(b"".join(found)), dtype=self._numbers)
        dtype = self.encoder.settings.dtype
        starts = [0, *itertools.accumulate(lengths)][:-1]
        return Packed(number_T.view(dtype).view(-1, self.dim), starts, lengths)


def _key(caption: str) -> bytes:
    return hashlib.blake2b(caption.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
