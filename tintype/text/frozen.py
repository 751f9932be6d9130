"""Frozen text encoders from transformers, which encode captions to token states.

The states come from the last layer after its norm, or from an earlier layer. States are computed in fixed arithmetic,
and a hash identifies everything that determines the states. As in PRX, captions get no chat template and no
instruction. The empty caption has at least one token with any tokenizer.

Tensor dimensions are B (captions that are encoded together), L (tokens), C (width of the encoder) and T (tokens of all
captions).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained.frozen import frozen_arithmetic
from tintype.pretrained.hub import Checkpoint, explained
from tintype.pretrained.packages import Untyped, transformers_package
from tintype.pretrained.settings import PretrainedPart
from tintype.pretrained.weights import digest
from tintype.runtime.identity import check_pin
from tintype.runtime.transfer import send
from tintype.seams import TextTokens, TransformersForm
from tintype.settings import ExportForm, Obstacle, Plain
from tintype.text import cleaning
from tintype.text.packing import Grouping, Packed, alone, by_length, spread
from tintype.text.part import TextPart
from tintype.wording import setting

_PROBES = ("A RED ball, 3.5 m off — naïve\tcafé's", "a ball on grass " * 500, "")
"""Test texts whose tokens show how a tokenizer treats case, accents, special tokens and truncation."""
_MOST_CUT = 1 << 17
"""Largest number of truncated captions in the cache. Captions are cached since they repeat in every epoch."""
_LONG = "one red ball and two blue cubes on the grass " * 200


class FrozenTextPart(PretrainedPart, TextPart):
    """Settings shared by all frozen text encoders."""

    is_frozen: ClassVar[bool] = True
    towers: ClassVar[Mapping[str, str]] = {}
    """Attribute of the text tower, by model type, for models with several towers."""

    tokenizer_subfolder: str | None = Field(
        None,
        description="Subfolder of the text tokenizer; by default the folder of the weights. In pipelines "
        "of diffusers: tokenizer",
    )
    max_tokens: int = Field(
        256,
        ge=2,
        description="Largest number of tokens of a caption, including special tokens; longer captions are truncated",
    )
    clean: cleaning.Cleaning = Field(
        False,
        description="true: remove HTML, web addresses and extra white space from captions; prx and prx-pixel: "
        "clean captions as diffusers' PRXPipeline and PRXPixelPipeline do",
    )
    skip_layers: int = Field(
        0,
        ge=0,
        description="Layer whose output is the embedding. 0: the last layer, after the final norm; 1: "
        "the layer before the last, without the norm; …",
    )

    @property
    def tokenizer_checkpoint(self) -> Checkpoint:
        apart = self.tokenizer_subfolder
        return self.checkpoint if apart is None else Checkpoint(self.weights, self.revision, subfolder=apart)

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        if self.skip_layers and form != "safetensors":
            yield Obstacle(
                f"text.skip_layers is {self.skip_layers}: the pipelines read the last layer after its norm "
                "(`last_hidden_state`) and no other",
                setting("text.skip_layers", 0),
            )

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return self.checkpoint, self.tokenizer_checkpoint

    def portable(self) -> Plain:
        return {key: value for key, value in super().portable().items() if key != "tokenizer_subfolder"}

    def limits(self) -> list[str]:
        return [
            f"It reads what its frozen text encoder reads, truncated to {self.max_tokens} tokens; how it follows "
            "prompts unlike its captions was not measured."
        ]

    def check_packages(self) -> None:
        transformers_package()

    def network(self) -> Untyped:
        """Load only the text tower from the checkpoint."""
        model = self.checkpoint.model(self.model_types, dtype=self.dtype)
        tower = self.towers.get(model.config.model_type)
        return getattr(model, tower) if tower else model

    def build(self, device: torch.device) -> FrozenTextEncoder:
        return FrozenTextEncoder(self, self.network(), device)


@dataclass(frozen=True)
class EncodedCaptions:
    """Token states of captions on the device, from which batches are made, in the dtype in which they were computed."""

    packed: Packed
    place: Mapping[str, int]
    """Index of each caption in `packed`."""
    length: int
    device: torch.device

    def batch(self, captions: Sequence[str]) -> TextTokens:
        """Return the token states of these captions as one batch."""
        return spread(self.packed, [self.place[caption] for caption in captions], self.length, self.device)


class FrozenTextEncoder:
    """A frozen network and its tokenizer; not an `nn.Module`, so it is not trained, averaged, sharded or saved."""

    def __init__(self, settings: FrozenTextPart, network: Untyped, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self._words = settings.checkpoint.words
        self._clean = cleaning.cleaner(settings.clean)
        self._check_length(network.config)
        self.dim = self._stated(network.config, "hidden_size")
        tokenizer = settings.tokenizer_checkpoint.tokenizer(self._stated(network.config, "vocab_size"))
        self.tokenizer = tokenizer
        self._padding = self._some_token(tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
        self._nothing = self._some_token(tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
        self._weights = digest(
            weight for name, weight in network.named_parameters() if POOLERS.isdisjoint(name.split("."))
        )
        self.identity = self.identity_at(settings.max_tokens)
        what = f"the weights, the tokenizer and the settings of {self._words}"
        check_pin("text.sha256", settings.sha256, what, self.identity, "take the right ones")
        network.config.use_cache = False  # no key-value cache: nothing is generated
        self.network: Untyped = network.eval().requires_grad_(False).to(device)
        self._cut = lru_cache(_MOST_CUT)(self._beginning)
        self._check_output()

    def transformers_form(self) -> TransformersForm:
        settings = self.settings
        return TransformersForm(
            self.network, self.tokenizer, self._nothing, settings.max_tokens, settings.clean, settings.compute
        )

    def encode(self, captions: Sequence[str]) -> TextTokens:
        return self.encode_all(captions).batch(captions)

    def encode_all(self, captions: Sequence[str]) -> EncodedCaptions:
        """Encode each distinct caption once, since captions repeat, especially the null caption."""
        place = {caption: index for index, caption in enumerate(dict.fromkeys(captions))}
        packed = self.packed(list(place), alone if self.device.type == "cpu" else by_length)
        return EncodedCaptions(packed, place, self.settings.max_tokens, self.device)

    def packed(self, captions: Sequence[str], grouping: Grouping) -> Packed:
        """Return the captions' token states on the device, without padding, in the dtype in which they are computed."""
        ids = self.token_ids(captions)
        lengths = [len(one) for one in ids]
        starts, states, total = [0] * len(ids), [], 0
        with frozen_arithmetic(self.device, self.settings.compute):
            for group in grouping(lengths):
                length = min(group.length, self.settings.max_tokens)  # the network may not have more positions
                state_BLC = self._states([ids[place] for place in group.members], length, group.rows)
                states.append(state_BLC.flatten(0, 1))
                for row, place in enumerate(group.members):
                    starts[place] = total + row * length
                total += len(states[-1])
        return Packed(torch.cat(states), starts, lengths)

    def truncate(self, captions: Sequence[str], max_tokens: int) -> list[str]:
        return [self._cut(caption, max_tokens) for caption in captions]

    def _beginning(self, caption: str, max_tokens: int) -> str:
        """Truncate a caption to `max_tokens` tokens by dropping letters from its end, even within a word."""
        (text,) = self._read([caption])
        if not self._is_longer(text, max_tokens):
            return caption
        if not self.tokenizer.is_fast:
            raise UserError(
                f"{self._words}: the text tokenizer does not map tokens to characters, so captions cannot be "
                f"truncated by tokens",
                "leave captions.max_tokens out, and use captions.max_words or text.max_tokens",
            )
        read = self.tokenizer(text, truncation=True, max_length=max_tokens, return_offsets_mapping=True)
        text = text[: max((end for _, end in read["offset_mapping"]), default=0)]
        while text and self._is_longer(text, max_tokens):
            text = text[:-1]
        return text

    def _is_longer(self, text: str, max_tokens: int) -> bool:
        return len(self.token_ids([text], max_tokens + 1)[0]) > max_tokens

    def token_ids(self, captions: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """Return the token ids of each caption, truncated to `max_tokens`; the default comes from the settings."""
        most = max_tokens or self.settings.max_tokens
        found = self.tokenizer(self._read(captions), truncation=True, max_length=most)["input_ids"]
        return [list(ids) or [self._nothing] for ids in found]

    def _read(self, captions: Sequence[str]) -> list[str]:
        """Return the cleaned captions in the form that the tokenizer expects, with invalid Unicode replaced."""
        return [self._clean(caption).encode("utf-8", "replace").decode() for caption in captions]

    def _states(self, ids: Sequence[Sequence[int]], length: int, rows: int) -> Tensor:
        id_BL = torch.full((rows, length), self._padding)
        mask_BL = torch.zeros(rows, length, dtype=torch.int64)
        for row in range(rows):
            one = ids[min(row, len(ids) - 1)]
            id_BL[row, : len(one)] = torch.tensor(one)
            mask_BL[row, : len(one)] = 1
        sent = {"input_ids": send(id_BL, self.device), "attention_mask": send(mask_BL, self.device)}
        skip = self.settings.skip_layers
        output = self.network(**sent, output_hidden_states=skip > 0)
        state_BLC: Tensor = output.hidden_states[-1 - skip] if skip else output.last_hidden_state
        return state_BLC

    def _check_output(self) -> None:
        """Encode an empty and a very long caption, so that a network that fails on them fails before a run begins."""
        with explained(self.settings.checkpoint):
            token_TC = self.packed(["", _LONG], alone).token_TC
        if token_TC.shape[1] != self.dim or not token_TC.isfinite().all():
            raise UserError(
                f"{self._words} gives token states of width {token_TC.shape[1]} in {self.settings.compute}, but "
                f"they must be finite and of width {self.dim}, as in its config",
                "check that its weights are complete, or try text.compute=fp32",
            )

    def _check_length(self, config: Untyped) -> None:
        most, depth = getattr(config, "max_position_embeddings", None), getattr(config, "num_hidden_layers", None)
        if isinstance(most, int) and self.settings.max_tokens > most:
            raise UserError(
                f"text.max_tokens is {self.settings.max_tokens}, but {self._words} reads at most {most} tokens",
                f"use {setting('text.max_tokens', most)}",
            )
        if isinstance(depth, int) and self.settings.skip_layers >= depth:
            raise UserError(
                f"text.skip_layers is {self.settings.skip_layers}, but {self._words} has {depth} layers, and at "
                f"least one must remain"
            )

    def _stated(self, config: Untyped, key: str) -> int:
        value = getattr(config, key, None)
        if not isinstance(value, int) or value < 1:
            raise UserError(
                f"{self._words}: the config of a '{getattr(config, 'model_type', '?')}' has the value {value!r} "
                f"for '{key}', so this model cannot be used as a text encoder",
                "name a text encoder (BERT, T5, a language model, …)",
            )
        return value

    def _some_token(self, *ids: int | None) -> int:
        """Return the first id that is not None, to be used for padding, and for a caption without tokens."""
        for found in ids:
            if found is not None:
                return int(found)
        raise UserError(
            f"{self._words}: the text tokenizer has no token for padding, beginning or end; the empty caption "
            f"needs one of them"
        )

    def identity_at(self, max_tokens: int) -> str:
        """Return the SHA-256 over the weights in their compute dtype, the tokenizer, and the relevant settings."""
        settings = self.settings
        vocabulary = hashlib.sha256(json.dumps(sorted(self.tokenizer.get_vocab().items())).encode()).hexdigest()
        content = [
            self._weights,
            vocabulary,
            self.token_ids(_PROBES, max_tokens),
            cleaning.identity(settings.clean),
            max_tokens,
            settings.skip_layers,
            settings.compute,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


POOLERS = frozenset({"pooler"})
"""Modules whose output is not used. Checkpoints often lack the weights of these modules."""
