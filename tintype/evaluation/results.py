"""The result of an evaluation, as a typed value that is stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Literal, TypedDict

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from tintype.config.strict import first_problem
from tintype.evaluation.protocol import ImageProtocol, Protocol
from tintype.evaluation.samples import step_name
from tintype.metrics.memorisation import Rate, Verdict
from tintype.metrics.metric import Measured
from tintype.metrics.misread import Misread
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import check_sha256, damaged, read_checked, write_checked
from tintype.train.record import EVALUATION, RESULT

FORMAT: Literal[3] = 3
_BESIDE = "beside"
"""Key of a stored result that names the other files written with the result."""

PER_IMAGE_FILE = "per_image.json"
"""File next to a result, with metrics of each image, to compare arms of a study."""

MISREAD_FILE = "misread.json"
"""File next to a result, with the words of the prompts that the preview images got wrong."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class EncoderInfo(_Record):
    """An encoder, as a result records it."""

    identity: str
    """SHA-256 of the encoder's weights and preprocessing."""
    definition: str
    text: str = ""
    """SHA-256 of the encoder's tokenizer, if the encoder reads text."""


class WrongWords(_Record):
    """Words of a prompt that an image shows wrongly."""

    start: int
    """Index of the first character in the prompt."""
    end: int
    """Index after the last character in the prompt."""
    words: str
    """The mistake in words, such as "drawn red, asked blue"."""


class AverageInfo(_Record):
    length: float
    residual: float


class CopyPair(_Record):
    image: str
    """Path of the PNG file, relative to the run's folder."""
    sha256: str
    caption: str
    guidance: float
    distance: float
    """Distance to the training image, divided by the mean distance to the nearest unseen images."""
    own: bool
    """Whether the training image is the image of the caption."""
    counts: bool
    """Whether the pair counts as a near-copy."""


ALL_SCALES = "all"
_FOUND: Mapping[Verdict, str] = {
    "copies": "copies of training images",
    "none found": "no copies shown beyond those of unseen images",
    "unlike the data": "the samples are unlike the data, so nothing is known about copies",
}


class Copies(_Record):
    """Near-copies of training images that one encoder found."""

    verdict: Verdict
    captions: int
    images: int
    """Number of training images whose near-copies were searched for."""
    unlike: float
    """Fraction of the samples of training captions that do not resemble the data."""
    any: dict[str, Rate]
    """Rate of near-copies of any training image, overall and for each guidance scale."""
    own: dict[str, Rate]
    """Rate of near-copies of the caption's own image."""
    pairs: list[CopyPair]
    """Samples with their nearest training images, the closest pairs first."""

    @property
    def words(self) -> str:
        return _FOUND[self.verdict]

    def within(self, folder: str) -> Copies:
        """Return the copies with paths relative to a parent folder, in which the run's path is `folder`."""
        pairs = [pair.model_copy(update={"image": f"{folder}/{pair.image}"}) for pair in self.pairs]
        return self.model_copy(update={"pairs": pairs})


class MetricValues(_Record):
    """Metrics by name, with their sampling errors, the encoders that read the images, and warnings."""

    metrics: dict[str, float]
    errors: dict[str, float]
    intervals: dict[str, tuple[float, float]] = {}
    error_methods: dict[str, str] = {}
    biases: dict[str, float] = {}
    """Known biases: the finite number of images makes a metric too large by its bias. The dump omits an empty field."""
    encoders: dict[str, EncoderInfo]
    warnings: tuple[str, ...]
    seconds: float

    def dump(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json", exclude=set() if self.biases else {"biases"})


class EvaluationResult(MetricValues):
    """The scores of a run at a step."""

    format: Literal[3] = FORMAT
    plan: str = ""
    step: int
    size_px: int | None = None
    """Image size if the protocol uses the stage's size, else None. The dump leaves out None."""
    weights: str
    ema: AverageInfo | None = None
    """The average computed from snapshots; None for the weights of a checkpoint. The dump leaves out None."""
    protocol: Protocol
    protocol_hash: str
    details: dict[str, dict[str, float]]
    """Breakdowns of a metric by attribute, by time, or by group of prompts."""
    samples: dict[str, str]
    """Folder of each sampling's images, relative to the run's folder."""
    real: dict[str, dict[str, float]]
    """The same metrics on real images, with their breakdowns. `overall` is the value over all real images."""
    time_split: dict[str, float]
    previews: tuple[str, ...]
    """Paths of PNG files, relative to the run's folder."""
    previews_sha256: tuple[str, ...] = ()
    copies: dict[str, Copies] = {}
    """Near-copies of training images, by encoder. The field is left out of the dump if nothing was measured."""

    def dump(self) -> dict[str, JsonValue]:
        absent = {name for name in ("ema", "size_px") if getattr(self, name) is None}
        absent |= {name for name in ("copies", "biases") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=absent)

    @property
    def scale(self) -> str:
        """Return the protocol's hash, and the stage's image size if any. Only equal scales are comparable."""
        return self.protocol_hash if self.size_px is None else f"{self.protocol_hash} at {self.size_px} px"


class ImageSet(_Record):
    path: str
    count: int
    fingerprint: str


class ImageSetResult(MetricValues):
    images: ImageSet
    reference: ImageSet
    protocol: ImageProtocol
    definitions: dict[str, str]


class _Numbers(TypedDict):
    metrics: dict[str, float]
    errors: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    error_methods: dict[str, str]
    biases: dict[str, float]


def numbers_of(measured: Mapping[str, Measured]) -> _Numbers:
    """Return measured numbers as the fields of `MetricValues`."""
    return {
        "metrics": {name: one.value for name, one in measured.items()},
        "errors": {name: one.error for name, one in measured.items() if one.error is not None},
        "intervals": {name: one.interval for name, one in measured.items() if one.interval is not None},
        "error_methods": {name: one.method for name, one in measured.items() if one.method},
        "biases": {name: one.bias for name, one in measured.items() if one.bias is not None},
    }


def result_file(path: Path, protocol: Protocol, step: int, weights: str = "") -> Path:
    return path / EVALUATION / f"{protocol.hash}-{step_name(step, weights)}" / RESULT


def result_of(content: Mapping[str, JsonValue]) -> EvaluationResult:
    """Parse the result that was dumped to `content`."""
    return EvaluationResult.model_validate_json(json.dumps(content))  # JSON's rules: a list may fill a tuple


def write_result(
    file: Path,
    result: EvaluationResult,
    per_image: Mapping[str, Sequence[float]] | None = None,
    fence: Fence = OPEN,
) -> None:
    """Write the numbers of each image, by metric, to a second file, then the result."""
    if per_image is not None:
        rounded = {name: [float(f"{value:.7g}") for value in values] for name, values in per_image.items() if values}
        write_checked(file.with_name(PER_IMAGE_FILE), {"metrics": rounded}, fence=fence)
    beside = [name for name in (PER_IMAGE_FILE, MISREAD_FILE) if (file.parent / name).exists()]
    write_checked(file, {**result.dump(), _BESIDE: beside}, FORMAT, fence)


def read_per_image(file: Path) -> dict[str, list[float]]:
    """Return the numbers of each image of a stored result, by metric; empty if the result has none."""
    content = read_checked(file.with_name(PER_IMAGE_FILE), _remake(file))
    return dict(content["metrics"]) if content else {}


def write_misread(
    file: Path, prompts: Sequence[str], misread: Sequence[Sequence[Misread]], fence: Fence = OPEN
) -> None:
    """Write the words that a result's preview images got wrong to a second file, if any image was read.

    An image without wrong words has an empty list.
    """
    if misread:
        images = [
            {"prompt": prompt, "wrong": [one._asdict() for one in of_image]}
            for prompt, of_image in zip(prompts, misread, strict=False)
        ]
        write_checked(file.with_name(MISREAD_FILE), {"images": images}, fence=fence)


def read_misread(file: Path) -> list[list[WrongWords]]:
    """Return the words that each preview image of a stored result got wrong; empty if the images were not read."""
    content = read_checked(file.with_name(MISREAD_FILE), _remake(file))
    return [[WrongWords(**one) for one in image["wrong"]] for image in content.get("images", [])]


def _remake(file: Path) -> str:
    run = quote(str(file.parents[2]))
    return f"run `tintype evaluate {run}` with the same settings, or its study again, to score it again"


def read_result(file: Path) -> EvaluationResult:
    """Return a stored result; raise if its numbers, preview images or other files have changed."""
    remake = _remake(file)
    content = read_checked(file, remake, FORMAT)
    if not content:
        raise damaged(file, "the file is missing or empty", remake)
    for name in content.pop(_BESIDE, ()):
        if not (file.parent / name).is_file():
            raise damaged(file.parent / name, "it is missing", remake)
    try:
        result = result_of(content)
    except ValidationError as error:  # the result is of another version
        raise damaged(file, first_problem(error), remake) from None
    pairs = [(pair.image, pair.sha256) for one in result.copies.values() for pair in one.pairs]
    for name, wanted in (*zip(result.previews, result.previews_sha256, strict=False), *pairs):
        check_sha256(file.parent / Path(name).name, wanted, remake)
    return result
