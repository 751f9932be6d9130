"""Each technique has its own file, and an entry in a table. A new technique needs a file, a line, and a test."""

from dataclasses import replace
from importlib import import_module

from tintype.plugins.table import Table
from tintype.techniques.technique import SHARED_SEAMS, Technique

FILES = (
    "bf16_storage",
    "caption_curriculum",
    "caption_mix",
    "caption_parts",
    "caption_tokens",
    "caption_truncation",
    "contrastive",
    "dispersive",
    "ema",
    "epsilon_prediction",
    "fp8",
    "fp32",
    "haste",
    "immiscible",
    "irepa",
    "island",
    "jit_time",
    "long_captions",
    "loss_space",
    "lpips",
    "min_snr",
    "mixture",
    "muon",
    "noise_scale",
    "no_qk_norm",
    "normuon",
    "other_images",
    "perceptual_dino",
    "power_ema",
    "reg",
    "registers",
    "repa",
    "repa_burn_in",
    "repa_e",
    "resolution_aware",
    "resolution_stages",
    "self_alignment",
    "sft",
    "shared_adaln",
    "short_captions",
    "sprint",
    "swiglu",
    "synthetic_then_real",
    "text_encoder",
    "tokenizer",
    "tread",
    "uniform_time",
    "value_residual",
    "x_prediction",
)


class Techniques(Table[Technique]):
    """Built-in techniques by name, followed by the techniques of plugins. The table sets the name of each technique."""

    def __getitem__(self, name: str) -> Technique:
        found = super().__getitem__(name)
        return found if found.name == name else replace(found, name=name)


TECHNIQUES = Techniques(
    "techniques",
    {
        name: replace(import_module(f"{__name__}.{file}").TECHNIQUE, name=name)
        for name, file in ((file.replace("_", "-"), file) for file in FILES)
    },
    Technique,
)

__all__ = ["SHARED_SEAMS", "TECHNIQUES", "Technique"]
