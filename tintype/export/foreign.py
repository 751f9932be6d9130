"""Read a PRX model from another tool, which is a folder in diffusers' format, or one safetensors file.

The folder holds a whole pipeline or only its transformer. The tensors have the names of diffusers or of PRX's training.
Only safetensors and JSON files are read.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from tintype.errors import UserError, as_user_error
from tintype.export.architecture import PrxConfig, denoiser_in, from_config
from tintype.export.trained import ABOUT_IN_HEADER
from tintype.pretrained.hub import json_object
from tintype.runtime.files import parse_object, sha256_of
from tintype.text import PARTS as TEXT_PARTS
from tintype.tokenizers import TOKENIZERS
from tintype.train.record import ABOUT
from tintype.wording import option

_WEIGHTS = "diffusion_pytorch_model.safetensors"
_PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".pkl")
_PREDICTIONS = {"PRXPipeline": "velocity", "PRXPixelPipeline": "x-prediction"}
PIPELINES_BY_CLEANING = {"prx": "PRXPipeline", "prx-pixel": "PRXPixelPipeline"}
"""Maps each value of `text.clean` to the pipeline that cleans prompts in the same way."""
_PIXEL_NOISE_SCALE = 2.0
"""Noise scale of PRXPixelPipeline. This value is used if a folder does not state a noise scale."""
_MOST_TOKENS = 1024
"""Largest accepted length of a tokenizer. A larger length counts as unlimited."""


Section: TypeAlias = dict[str, Any]
"""JSON from another tool, or a section of a plan made from such JSON. The content is checked when it is used."""


@dataclass(frozen=True)
class Foreign:
    place: Path
    tensors: dict[str, Tensor]
    """Tensors of the denoiser, under diffusers' names."""
    weights: str
    """`raw` or `average`, or `unknown` if the folder does not state the kind."""
    sha256: dict[str, str]
    about: Section
    """The record of a tintype export; empty if another tool wrote the folder."""
    config: PrxConfig | None
    """The transformer's settings; None if there are none."""
    sections: Section


def read_foreign(place: Path, weights: str | None) -> Foreign:
    config = None
    if place.is_dir():
        folder = place / "transformer" if (place / "transformer").is_dir() else place
        if not (folder / "config.json").is_file():
            raise UserError(
                f"{place} is not a PRX model of diffusers: transformer/config.json and config.json are both "
                f"missing. A run of tintype needs no import; for a single file, give the path of the file"
            )
        config = from_config(json_object(folder / "config.json"), str(folder / "config.json"))
        files, record = _shards(folder), place / ABOUT
        written = record.read_text(encoding="utf-8") if record.is_file() else None
    else:
        if place.suffix in _PICKLED:
            raise UserError(
                f"{place} is a pickle file. tintype never reads pickles, since loading one can run code",
                "if you trust the file, load it elsewhere and save its tensors with safetensors.torch.save_file",
            )
        if not place.is_file():
            raise UserError(
                f"{place} does not exist", "give a folder in the format of diffusers, or a .safetensors file"
            )
        files, record = [place], place
        with _readable(place), safe_open(place, "pt") as opened:
            written = (opened.metadata() or {}).get(ABOUT_IN_HEADER)
    tensors: dict[str, Tensor] = {}
    for file in files:
        with _readable(file):
            tensors |= load_file(file)
    about = _about(written, record) if written else {}
    denoiser, kind = denoiser_in(tensors, weights, str(place))
    if weights is not None and about and about.get("weights") != weights:
        raise UserError(
            f"{place} contains only the {about.get('weights')} weights of a run", f"leave {option('weights')} out"
        )
    digests = {str(file.relative_to(place)) if config else file.name: sha256_of(file) for file in files}
    sections = _recorded(about) | (_pipeline_sections(place, about) if config else {})
    return Foreign(place, denoiser, about.get("weights", kind), digests, about, config, sections)


def _shards(folder: Path) -> list[Path]:
    index = folder / f"{_WEIGHTS}.index.json"
    if index.is_file():
        listed = json_object(index).get("weight_map")
        names = sorted(set(listed.values())) if isinstance(listed, dict) else []
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise UserError(f"{index} does not list the weight files")
    else:
        names = [_WEIGHTS]
    lacking = [name for name in names if not (folder / name).is_file()]
    if lacking:
        raise UserError(
            f"{folder} has no {', '.join(lacking)}: tintype reads only safetensors files, since other formats "
            f"can run code"
        )
    return [folder / name for name in names]


def _readable(file: Path) -> AbstractContextManager[None]:
    return as_user_error(
        (SafetensorError, OSError), f"{file} cannot be read as safetensors", "check that the file is complete"
    )


def _about(text: str, place: Path) -> Section:
    with as_user_error(ValueError, f"{place}: tintype's metadata cannot be read"):
        read = parse_object(text)
    if read.get("format") != 1:
        raise UserError(f"{place} was written by another version of tintype; this version reads format 1")
    return read


def _stated(file: Path) -> Section:
    return json_object(file) if file.is_file() else {}


def _recorded(about: Section) -> Section:
    if not about:
        return {}
    named = {key: value for key, value in about["text"].items() if key not in ("dim", "identity")}
    tokenizer = {key: value for key, value in about["tokenizer"].items() if key not in ("identity", "tuned")}
    if tokenizer["kind"] == "pixels":
        tokenizer = {"kind": "pixels"}
    return {
        "data": {"size_px": about["size_px"]},
        "model": about["model"],
        "objective": about["objective"],
        "time": about["time"],
        "sampling": about.get("sampling", {"shift": about["time"]["shift"]}),  # older exports had one shift for both
        "text": named,
        "tokenizer": tokenizer,
    }


def _pipeline_sections(place: Path, about: Section) -> Section:
    """Return a plan's sections that follow from a pipeline's folder, after the record of a tintype export."""
    index = place / "model_index.json"
    if not (stated := _stated(index)):
        return {}
    pipeline = stated.get("_class_name")
    if pipeline not in _PREDICTIONS:
        raise UserError(f"{index} describes a pipeline '{pipeline}'; only {' and '.join(_PREDICTIONS)} can be imported")
    sections: Section = {"text": _text(place, stated, about.get("text", {}))}
    sections["tokenizer"] = (
        {"kind": "pixels"} if pipeline == "PRXPixelPipeline" else _autoencoder(place, about.get("tokenizer", {}))
    )
    if not about:
        if sections["text"]:
            sections["text"]["clean"] = next(one for one, name in PIPELINES_BY_CLEANING.items() if name == pipeline)
        sections["objective"] = {"kind": _PREDICTIONS[pipeline]}
        if pipeline == "PRXPixelPipeline":
            sections["objective"]["noise_scale"] = stated.get("noise_scale", _PIXEL_NOISE_SCALE)
        if scheduler := _stated(place / "scheduler" / "scheduler_config.json"):
            shift = float(scheduler.get("shift", 1.0))
            sections["time"], sections["sampling"] = {"shift": shift}, {"shift": shift}
        if isinstance(size := stated.get("default_sample_size"), int):
            sections["data"] = {"size_px": size}
    return {key: value for key, value in sections.items() if value}


def _text(place: Path, stated: Section, recorded: Section) -> Section:
    if not (config := _stated(place / "text_encoder" / "config.json")):
        return {}
    known = (part.kind_name() for part in TEXT_PARTS if config.get("model_type") in part.model_types)
    kind = recorded.get("kind") or next(known, "transformers")
    section = {"kind": kind, "weights": str(place.absolute()), "subfolder": "text_encoder"}
    if (place / "tokenizer").is_dir():
        section["tokenizer_subfolder"] = "tokenizer"
    length = stated.get("prompt_max_tokens")
    if length is None:
        length = _stated(place / "tokenizer" / "tokenizer_config.json").get("model_max_length")
    if isinstance(length, int) and 2 <= length <= _MOST_TOKENS:
        section["max_tokens"] = length
    section |= {key: recorded[key] for key in ("clean", "compute", "max_tokens") if key in recorded}
    return section


def _autoencoder(place: Path, recorded: Section) -> Section:
    file = place / "vae" / "config.json"
    if not (config := _stated(file)):
        return {}
    held = {part.class_name: part.kind_name() for part in reversed(TOKENIZERS) if part.why_not_exported is None}
    kind = held.get(config.get("_class_name"))
    if kind is None:
        raise UserError(
            f"{file} describes a '{config.get('_class_name')}', but PRX uses AutoencoderKL or AutoencoderDC"
        )
    blocks = config.get("encoder_block_out_channels") or config.get("block_out_channels")
    channels = config.get("latent_channels")
    if not isinstance(blocks, list) or not isinstance(channels, int):
        raise UserError(f"{file} does not state the number of channels and blocks of the autoencoder")
    size = {"channels": channels, "stride_px": 2 ** (len(blocks) - 1)}
    kept: Section = {key: recorded[key] for key in ("posterior", "compute") if key in recorded}
    return {"kind": kind, "weights": str(place.absolute()), "subfolder": "vae", **size, **kept}
