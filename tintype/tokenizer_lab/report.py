"""Compare tokenizers on images by quality of the reconstruction, compression, speed and latents.

`tintype tokenizer report` writes `results.json` and one HTML file. All tokenizers are measured on the same images.

Tensor dimensions are N (images), B (images of a batch), C (channels), H (rows), W (columns) and F (size of a feature
vector).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from tintype.config.strict import Document, assignments_in, nearest, parse
from tintype.data.store.layout import is_store
from tintype.errors import UserError
from tintype.metrics.copies import copy_notes, copy_numbers, pixel_digest
from tintype.metrics.frechet_distance import FD
from tintype.metrics.metric import Measured
from tintype.metrics.pair import FeaturePair, Reference
from tintype.metrics.reconstruction import LPIPS, PSNR, PairValues, pair_name
from tintype.metrics.table import PAIR_METRICS
from tintype.plugins.load import added
from tintype.pretrained.weights import Known, at_hand
from tintype.runtime.clock import synchronized_s
from tintype.runtime.files import write_json, write_text
from tintype.runtime.locks import locked
from tintype.runtime.machine import environment
from tintype.runtime.transfer import send
from tintype.seams import Draws, Encoder, Tokenizer
from tintype.settings import Plain, Settings, plain
from tintype.tokenizer_lab.images import SCENES, OnImages, measured_images
from tintype.tokenizer_lab.report_html import to_html
from tintype.tokenizers import TOKENIZERS
from tintype.tokenizers.part import TokenizerPart, channel_statistics
from tintype.tokenizers.rae import RaeSettings
from tintype.tokenizers.small_vae import SmallVaeSettings, is_trained
from tintype.vision import inception, lpips
from tintype.vision.encoders import EncoderChoice
from tintype.vision.features import feature_matrix
from tintype.vision.inception import InceptionSettings
from tintype.vision.scene_encoder import SceneEncoderSettings
from tintype.wording import setting

FAR_MEAN, FAR_STD = 0.25, 1.5
"""A note reports latents if the mean is further from 0, or the standard deviation (as a ratio) further from 1."""


class ReportSettings(Settings):
    """Settings of a report."""

    data: str = Field(
        SCENES, min_length=1, description="Images: scenes, or the path of a folder, .tar file, .parquet file or store"
    )
    size_px: int = Field(
        64,
        ge=lpips.SMALLEST_PX["vgg16"],
        le=4096,
        description="Side of the images in pixels; images are never enlarged",
    )
    count: int = Field(256, ge=2, description="Largest number of images to use")
    batch: int = Field(16, ge=1, description="Batch size; the measured speed depends on it")
    encoders: tuple[EncoderChoice, ...] | None = Field(
        None,
        description="Encoders of the Fréchet distances; by default scenes, plus inception if its weights are available",
    )
    shown: int = Field(8, ge=1, le=64, description="Number of images shown side by side")


@dataclass(frozen=True)
class RoundTrip:
    """All images after encoding and decoding by one tokenizer."""

    image_NCHW: Tensor
    latent_mean_C: Tensor
    latent_std_C: Tensor
    latent_shape: torch.Size
    encode_images_per_s: float
    decode_images_per_s: float


@dataclass(frozen=True)
class TokenizerReport:
    """The content of `results.json`."""

    settings: Plain
    images: dict[str, Any]
    environment: dict[str, Any]
    definitions: dict[str, str]
    """Definitions of the metrics, by name."""
    notes: list[str]
    left_out: dict[str, str]
    """The reason why a column is missing, by the column's name."""
    tokenizers: list[dict[str, Any]]
    """The `name`, `metrics`, `errors`, `compression`, speeds, latents and `notes` of each tokenizer."""


def report_tokenizers(
    specs: list[str],
    settings: ReportSettings,
    out: Path,
    device: torch.device,
    on_images: OnImages = lambda doing, done, total: None,
) -> TokenizerReport:
    """Measure every tokenizer, and write both files."""
    parts = dict(zip(tokenizer_names(specs), map(read_tokenizer, specs), strict=True))
    built = {name: part.build(device) for name, part in parts.items()}
    for name, tokenizer in built.items():
        _refuse_indivisible(name, tokenizer, settings.size_px)
    with locked(out):
        image_NCHW, total = measured_images(settings.data, settings.size_px, settings.count, device, on_images)
        count = len(image_NCHW)
        on_images("loading the encoders", 0, count)
        comparison = Comparison(image_NCHW, settings, device)
        rows, trips = [], []
        for name, tokenizer in built.items():
            on_batch = partial(on_images, f"encoding and decoding with {name}")
            trip = round_trip(tokenizer, image_NCHW, settings.batch, device, on_batch)
            on_images(f"measuring {name}", 0, count)
            rows.append(_row(name, parts[name], trip, comparison, settings, total))
            trips.append(trip.image_NCHW[: settings.shown])
        result = TokenizerReport(
            settings=plain(settings),
            images={"data": settings.data, "count": len(image_NCHW), "of": total, "size_px": settings.size_px},
            environment=environment(device),
            definitions=comparison.definitions,
            notes=comparison.notes,
            left_out=comparison.left_out,
            tokenizers=rows,
        )
        write_json(out / "results.json", asdict(result))
        write_text(out / "report.html", to_html(result, image_NCHW[: settings.shown], trips))
    return result


def read_tokenizer(spec: str) -> TokenizerPart:
    """Parse `pixels`, `small-vae:folder=DIR,sha256=…`, or only `DIR`."""
    folder = Path(spec).expanduser()
    if RaeSettings.files.is_trained(folder):
        return RaeSettings(folder=spec).resolved()
    if "/" in spec.partition(":")[0] or is_trained(folder):
        return SmallVaeSettings(folder=spec).resolved()
    kinds: dict[str, type[TokenizerPart]] = {part.kind_name(): part for part in TOKENIZERS}
    kinds |= {name: one.part for name, one in added("tokenizers").items()}
    kind, _, rest = spec.partition(":")
    if kind not in kinds:
        raise UserError(
            f"unknown tokenizer '{kind}': this is neither a kind of tokenizer nor the folder of a trained tokenizer",
            nearest(kind, kinds),
        )
    document = Document(f"tokenizer {spec}", {"kind": kind})
    for assignment in assignments_in(rest):
        document.override(assignment, prefix=f"tokenizer {kind}:")
    return parse(kinds[kind], document).resolved()


def tokenizer_names(specs: list[str]) -> list[str]:
    """Return a distinct short name for each tokenizer (a folder's last component, the kind, or the whole text)."""
    short = [_short(spec) for spec in specs]
    names = [name if short.count(name) == 1 else spec for name, spec in zip(short, specs, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"the tokenizer '{name}' is given twice", "give each once")
    return names


def _short(spec: str) -> str:
    kind = spec.partition(":")[0]
    return Path(spec).name if "/" in kind else kind


def _refuse_indivisible(name: str, tokenizer: Tokenizer, size_px: int) -> None:
    if size_px % tokenizer.stride_px:
        fitting = size_px // tokenizer.stride_px * tokenizer.stride_px or tokenizer.stride_px
        raise UserError(
            f"size_px is {size_px}, but '{name}' needs a multiple of {tokenizer.stride_px} px",
            f"use {setting('size_px', fitting)}, or another size that suits all tokenizers",
        )


def round_trip(
    tokenizer: Tokenizer,
    image_NCHW: Tensor,
    batch: int,
    device: torch.device,
    on_images: Callable[[int, int], None] = lambda done, total: None,
) -> RoundTrip:
    """Encode and decode the images. The measured speeds leave out a warm-up batch, and copies to the device."""
    count = len(image_NCHW)
    latents: list[Tensor] = []
    made: list[Tensor] = []
    encode_s = decode_s = 0.0
    position_N = torch.arange(count, device=device)
    tokenizer.decode(tokenizer.encode(send(image_NCHW[:batch], device), Draws(0, position_N[:batch])))
    for chunk_BCHW, position_B in zip(image_NCHW.split(batch), position_N.split(batch), strict=True):
        image_BCHW = send(chunk_BCHW, device)
        began = synchronized_s(device)
        z_BCHW = tokenizer.encode(image_BCHW, Draws(0, position_B))
        between = synchronized_s(device)
        seen_BCHW = tokenizer.decode(z_BCHW)
        encode_s, decode_s = encode_s + between - began, decode_s + synchronized_s(device) - between
        made.append(seen_BCHW.cpu())
        latents.append(z_BCHW.cpu())
        on_images(int(position_B[-1]) + 1, count)
    statistics = channel_statistics(latents)
    return RoundTrip(torch.cat(made), *statistics, z_BCHW.shape[1:], count / encode_s, count / decode_s)


class Comparison:
    """Comparison of reconstructions with the images, whose features are computed only once."""

    def __init__(self, image_NCHW: Tensor, settings: ReportSettings, device: torch.device) -> None:
        self._image_NCHW, self._batch, self._device = image_NCHW, settings.batch, device
        self.left_out: dict[str, str] = {}
        digests = [pixel_digest(image_CHW) for image_CHW in image_NCHW.cpu()]
        self._copy_N = copy_numbers(digests)
        self.notes: list[str] = copy_notes(digests)
        has_lpips = self._at_hand(LPIPS.name, "LPIPS", lpips.WEIGHTS["vgg16"])
        self._pair_metrics = [metric for metric in PAIR_METRICS if metric is not LPIPS or has_lpips]
        self.definitions = {pair_name(metric): metric.definition for metric in self._pair_metrics}
        encoders = settings.encoders
        if encoders is None:
            has_inception = self._at_hand("fd_inception", "FID's Inception", inception.WEIGHTS)
            encoders = (SceneEncoderSettings(), *([InceptionSettings()] if has_inception else []))
        self._references: dict[Encoder, Reference] = {}
        for encoder in [part.build(device) for part in encoders]:
            reference = self._references[encoder] = Reference(feature_matrix(encoder, [image_NCHW]), device)
            compared = f"{FD.definition}; reconstructions against their originals"
            self.definitions[_fd_name(encoder)] = f"{compared}; {encoder.definition}"
            if len(reference) <= reference.size:
                self.notes.append(
                    f"{len(reference)} images give no full covariance of {reference.size} features ({encoder.name}); "
                    "compare its Fréchet distance at equal counts only"
                )

    def _at_hand(self, column: str, network: str, weights: Known) -> bool:
        """Return whether the weights need no download; otherwise record the reason why the column is left out."""
        if not at_hand(weights):
            self.left_out[column] = f"the weights of {network} are not at hand. {weights.advice}"
        return column not in self.left_out

    def measure(self, seen_NCHW: Tensor) -> dict[str, Measured]:
        pairs = list(zip(self._image_NCHW.split(self._batch), seen_NCHW.split(self._batch), strict=True))
        found = {}
        for metric in self._pair_metrics:
            value_N = torch.cat([metric.compare(*pair, self._device) for pair in pairs])
            found[pair_name(metric)] = metric.measure(PairValues(value_N, self._copy_N))
        for encoder, reference in self._references.items():
            pair = FeaturePair(feature_matrix(encoder, [seen_NCHW]), reference, copy_N=self._copy_N)
            one = FD.measure(pair)  # drop its notes on bias, which apply to sets without shared images
            found[_fd_name(encoder)] = Measured(one.value, one.error, one.method)
        return found


def _fd_name(encoder: Encoder) -> str:
    return f"{FD.name}_{encoder.name}"


def _row(
    name: str, part: TokenizerPart, trip: RoundTrip, comparison: Comparison, settings: ReportSettings, total: int
) -> dict[str, Any]:
    measured = comparison.measure(trip.image_NCHW)
    numbers_in, numbers_out = 3 * settings.size_px**2, math.prod(trip.latent_shape)
    return {
        "name": name,
        "settings": plain(part),
        # JSON has no infinity; `exact` marks it
        "metrics": {key: one.value if math.isfinite(one.value) else None for key, one in measured.items()},
        "errors": {key: one.error for key, one in measured.items() if one.error is not None},
        "exact": measured[pair_name(PSNR)].value == math.inf,
        "latent_shape": list(trip.latent_shape),
        "numbers_in": numbers_in,
        "numbers_out": numbers_out,
        "compression": numbers_in / numbers_out,
        "encode_images_per_s": trip.encode_images_per_s,
        "decode_images_per_s": trip.decode_images_per_s,
        "latent_mean": trip.latent_mean_C.tolist(),
        "latent_std": trip.latent_std_C.tolist(),
        "notes": [
            *(note for one in measured.values() for note in one.warnings),
            *_latent_notes(part, trip),
            *_seen_in_training(part, settings, total),
        ],
    }


def _latent_notes(part: TokenizerPart, trip: RoundTrip) -> Iterator[str]:
    """Yield a note about latents with a mean far from 0 or a standard deviation far from 1."""
    far_C = (trip.latent_mean_C.abs() > FAR_MEAN) | (trip.latent_std_C > FAR_STD) | (trip.latent_std_C < 1 / FAR_STD)
    if (far := int(far_C.sum())) and not part.scale_is_convention:
        yield (
            f"{far} of {len(far_C)} channels of the latents are far from mean 0 and deviation 1 "
            f"(mean beyond ±{FAR_MEAN:g}, or deviation beyond {1 / FAR_STD:.2f} to {FAR_STD:g})"
        )


def _seen_in_training(part: TokenizerPart, settings: ReportSettings, total: int) -> Iterator[str]:
    """Yield a note if the tokenizer was trained on some of these images; scenes and stores have a separate split."""
    trained = part.training_record()
    theirs = trained.get("settings", {}).get("data", SCENES)
    if SCENES in (theirs, settings.data) or is_store(Path(settings.data).expanduser()):
        return
    if Path(theirs).resolve() != Path(settings.data).resolve():
        return
    if (limit := trained["settings"]["limit"]) is not None:
        yield f"it was trained on the first {limit} images of this set, and may have seen some of those here"
    elif min(settings.count, total) > (held_out := int(trained["held_out"])):
        yield (
            f"it was trained on this set, and held only {held_out} images out: some of those here it has seen. "
            f"Measure on those alone with count={held_out}, or on another set"
        )
