"""Make the components of a diffusers pipeline from a run, namely text encoder, text tokenizer and autoencoder.

The pipelines pad to `model_max_length` and read `last_hidden_state`. Padding comes after the text, so each token has
the same position as in training.

`PRXPipeline` decodes latents / scaling_factor + shift_factor. Each of the two factors is one number for all channels.
If tintype has one number per channel, the numbers are folded into the 1 × 1 convolutions of an `AutoencoderKL`. The 1 ×
1 convolutions are between the latents and the networks, and are created if they do not exist. The folding is exact,
since the flow stays in the latent space of training, with noise of standard deviation 1. The numbers cannot be folded
into the denoiser's first and last layer instead. The noise would then need another standard deviation in each channel,
and the shift would need a term that depends on t.

C: channels.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained.hub import json_object
from tintype.runtime.files import write_json
from tintype.seams import TextEncoder, Tokenizer, TransformersForm

_T5GEMMA_ALONE = "t5_gemma_module"


def form_of(text: TextEncoder) -> TransformersForm:
    form = text.transformers_form()
    assert form is not None, "the plan's text encoder says that a pipeline can hold it"
    return form


def network_of(form: TransformersForm) -> Any:
    """Return the network as an object of a transformers class, since an exported folder must not contain code."""
    import transformers

    network = form.network
    name = type(network).__name__
    module = type(network).__module__
    if name != "T5GemmaEncoder" and not (module.startswith("transformers.") and name in dir(transformers)):
        raise UserError(
            f"text: the encoder has the class {module}.{name}, which the library transformers cannot load by name",
            "train with another text encoder",
        )
    return network


def tokenizer_of(form: TransformersForm) -> Any:
    tokenizer = copy.deepcopy(form.tokenizer)
    tokenizer.model_max_length = form.max_tokens
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:  # the states of padding are never used
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(form.nothing)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the settings of its last call would be saved with it
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def null_prompt(form: TransformersForm) -> str:
    """Return the negative prompt that gives the same tokens as the null caption in training.

    For the prompt '', some tokenizers return no token. The pipeline would then have no text, but training had one
    token.
    """
    tokenizer = form.tokenizer
    if tokenizer("")["input_ids"]:
        return ""
    text = str(tokenizer.convert_ids_to_tokens(form.nothing))
    if tokenizer(text)["input_ids"] != [form.nothing]:
        raise UserError(
            f"text: the tokenizer gives no token for the empty caption, but training used the token '{text}'. "
            f"The tokenizer does not parse that text as this token, so a pipeline cannot reproduce "
            f"tintype's guidance",
            "train with another text encoder",
        )
    return text


def mend_config(folder: Path) -> None:
    """Correct the config of a T5Gemma encoder that was saved without its decoder.

    Otherwise transformers, which expects an encoder and a decoder, would use the sizes of the 2B model.
    """
    import transformers

    stated = json_object(folder / "config.json")
    if stated.get("model_type") != _T5GEMMA_ALONE:
        return
    whole = transformers.T5GemmaConfig(encoder=stated, decoder=stated, vocab_size=stated["vocab_size"])
    written = {**whole.to_diff_dict(), "architectures": ["T5GemmaEncoder"], "encoder": stated}
    written |= {key: stated[key] for key in ("dtype", "transformers_version") if key in stated}
    write_json(folder / "config.json", written)


def for_pipeline(tokenizer: Tokenizer) -> Any:
    """Return the autoencoder in fp32. The tokenizer's network is changed in place, so load it again for other uses."""
    form = tokenizer.diffusers_form()
    assert form is not None, "the plan's tokenizer says that a pipeline can hold it"
    network, shift_C, scale_C = form.network.float(), form.shift_C, form.scale_C
    scale, shift = _one(scale_C), _one(shift_C)
    if type(network).__name__ == "AutoencoderDC":
        if scale is None or shift != 0:
            raise UserError(
                "AutoencoderDC has one scaling_factor and no shift, but this run's latents have a shift, or a "
                "scale for each channel (tokenizer.shift, tokenizer.scale). The networks of AutoencoderDC begin "
                "with convolutions larger than 1 × 1, into which a shift cannot be folded",
                "train with one tokenizer.scale and no tokenizer.shift",
            )
        network.register_to_config(scaling_factor=scale)
        return network
    if scale is None or shift is None:
        network = _folded(network, shift_C, scale_C)
        scale, shift = 1.0, 0.0
    network.register_to_config(scaling_factor=scale, shift_factor=shift, latents_mean=None, latents_std=None)
    return network


def _one(number_C: Tensor) -> float | None:
    """Return the value that all channels share; None if the channels differ."""
    return float(number_C[0]) if bool((number_C == number_C[0]).all()) else None


@torch.no_grad()
def _folded(network: Any, shift_C: Tensor, scale_C: Tensor) -> Any:
    """Fold the normalisation into the network, which then encodes to, and decodes from, (latent - shift) · scale.

    The posterior's standard deviation is scaled by the same factor as its mean.
    """
    scale_C, shift_C = scale_C.double(), shift_C.double()
    out_C = torch.cat([scale_C, torch.ones_like(scale_C)])  # for the mean, and for the logarithm of the variance
    added_C = torch.cat([-shift_C * scale_C, 2 * scale_C.abs().log()])
    weight_CC, bias_C = _matrix(network.quant_conv, len(out_C))
    network.quant_conv = _convolution(out_C[:, None] * weight_CC, out_C * bias_C + added_C)
    weight_CC, bias_C = _matrix(network.post_quant_conv, len(scale_C))
    network.post_quant_conv = _convolution(weight_CC / scale_C, weight_CC @ shift_C + bias_C)
    network.register_to_config(use_quant_conv=True, use_post_quant_conv=True)
    return network


def _matrix(layer: nn.Conv2d | None, channels: int) -> tuple[Tensor, Tensor]:
    if layer is None:
        return torch.eye(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    assert layer.bias is not None
    return layer.weight[:, :, 0, 0].double(), layer.bias.double()


def _convolution(weight_CC: Tensor, bias_C: Tensor) -> nn.Conv2d:
    layer = nn.Conv2d(weight_CC.shape[1], weight_CC.shape[0], 1)
    layer.weight.copy_(weight_CC[:, :, None, None])
    assert layer.bias is not None
    layer.bias.copy_(bias_C)
    return layer
