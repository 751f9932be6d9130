"""Prepare a run's text encoder and tokenizer for a pipeline.

The pipelines pad to `model_max_length` and read `last_hidden_state`. Padding goes to the right, so that a token has the
place that it had in training.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tintype.errors import UserError
from tintype.pretrained.hub import json_object
from tintype.runtime.files import write_json
from tintype.seams import TextEncoder, TransformersForm

_T5GEMMA_ALONE = "t5_gemma_module"


def form_of(text: TextEncoder) -> TransformersForm:
    form = text.transformers_form()
    if form is None:
        raise TypeError(f"{type(text).__name__} is no model of transformers")
    return form


def network_of(form: TransformersForm) -> Any:
    """Return the network, of a class that transformers itself can load: no code comes with the folder."""
    import transformers

    network = form.network
    name = type(network).__name__
    module = type(network).__module__
    if name != "T5GemmaEncoder" and not (module.startswith("transformers.") and name in dir(transformers)):
        raise UserError(
            f"text: the encoder is a {module}.{name}, which transformers does not offer to load by its name; train "
            "with another text encoder"
        )
    return network


def tokenizer_of(form: TransformersForm) -> Any:
    tokenizer = copy.deepcopy(form.tokenizer)
    tokenizer.model_max_length = form.max_tokens
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:  # its states are never seen
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(form.nothing)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # what its last call left would be saved with it
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def null_prompt(form: TransformersForm) -> str:
    """Return the negative prompt that reads as the null caption did in training.

    A tokenizer that makes nothing of '' leaves the pipeline without any text to look at, where training had one token.
    """
    tokenizer = form.tokenizer
    if tokenizer("")["input_ids"]:
        return ""
    text = str(tokenizer.convert_ids_to_tokens(form.nothing))
    if tokenizer(text)["input_ids"] != [form.nothing]:
        raise UserError(
            f"text: the tokenizer makes nothing of the empty caption, for which training had the token '{text}', and "
            "it does not read that text as this token, so a pipeline cannot guide as tintype does; train with another "
            "text encoder"
        )
    return text


def mend_config(folder: Path) -> None:
    """Fix the config of a T5Gemma encoder saved by itself.

    It is read back with the sizes of the 2B model, whatever it says, unless it is one of encoder and decoder.
    """
    import transformers

    stated = json_object(folder / "config.json")
    if stated.get("model_type") != _T5GEMMA_ALONE:
        return
    whole = transformers.T5GemmaConfig(encoder=stated, decoder=stated, vocab_size=stated["vocab_size"])
    written = {**whole.to_diff_dict(), "architectures": ["T5GemmaEncoder"], "encoder": stated}
    written |= {key: stated[key] for key in ("dtype", "transformers_version") if key in stated}
    write_json(folder / "config.json", written)
