"""Score a set of images against another set, without a run: `tintype evaluate --images A --reference B`.

N: images, F: size of a feature vector.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from tintype.data.image_sets import Images, open_images
from tintype.errors import UserError
from tintype.evaluation.progress import Counter, OnScoring
from tintype.evaluation.protocol import Definition, ImageProtocol, metric_label, nonfinite, warnings_of
from tintype.evaluation.reference import (
    ImageFeatures,
    is_cached,
    read_reference,
    refuse_other_encoder,
    set_features,
    write_reference,
)
from tintype.evaluation.results import EncoderInfo, ImageSet, ImageSetResult, numbers_of
from tintype.metrics.copies import copy_notes, copy_numbers
from tintype.metrics.metric import Measured
from tintype.metrics.pair import FeaturePair, Reference
from tintype.metrics.reconstruction import PairMetric, PairValues
from tintype.metrics.table import FEATURE_METRICS, PAIR_METRICS
from tintype.page import numerals
from tintype.runtime.cache import cache_folder
from tintype.runtime.notes import note
from tintype.seams import Encoder
from tintype.vision.lpips import SMALLEST_PX
from tintype.wording import option, setting

_WORTH_A_NOTE_S = 20.0


def image_definitions(protocol: ImageProtocol) -> dict[str, Definition]:
    found = {}
    for encoder in protocol.encoders:
        for kind in protocol.metrics:
            metric = FEATURE_METRICS[kind]
            found[f"{kind}_{encoder.title}"] = Definition(metric, metric_label(metric, encoder), metric.definition)
    for one in PAIR_METRICS if protocol.paired else ():
        found[one.name] = Definition(one, one.label, one.definition)
    return found


def evaluate_images(
    images: Path,
    reference: Path,
    protocol: ImageProtocol,
    device: torch.device,
    save_reference: Path | None = None,
    on_progress: OnScoring = lambda scoring: None,
    follow_links: bool = False,
) -> ImageSetResult:
    began, counter = time.perf_counter(), Counter(0, on_progress)
    saved = reference.suffix == ".safetensors"
    _refuse_conflicts(protocol, saved, save_reference)
    # quick checks first, since reading and encoding a large reference takes long
    fake = open_images(images, protocol.limit, follow_links)
    real = None if saved else open_images(reference, protocol.limit, follow_links)
    for settings in protocol.encoders:
        counter.begin(f"loading the encoder {settings.title}")
        encoder = settings.build(device)
        if real is None:
            about = read_reference(reference).about
            refuse_other_encoder(about, encoder, reference)
            _refuse_few(protocol, reference, about.count)
    for one in (fake, real):
        if one is not None:
            counter.begin(f"reading {one.path}")
            _refuse_few(protocol, one.path, one.fingerprint(counter.count)[1])
    if real is not None and protocol.paired and fake.fingerprint()[1] != real.fingerprint()[1]:
        raise _unpaired(fake, real)
    measured: dict[str, Measured] = {}
    encoders: dict[str, EncoderInfo] = {}
    for settings in protocol.encoders:
        encoder = settings.build(device)
        encoding_s = time.perf_counter()
        counter.begin(f"encoding {images} with {encoder.name}", fake.fingerprint()[1])
        made = set_features(fake, encoder, counter.count, cache=False)
        each_s = (time.perf_counter() - encoding_s) / made.about.count
        found = _reference(reference, real, encoder, counter, each_s)
        if save_reference:
            write_reference(save_reference, found)
        counter.begin(f"comparing ({encoder.name})")
        copy_N = copy_numbers(made.digests or ())
        pair = FeaturePair(made.feature_MF, Reference(found.feature_MF, device), copy_N=copy_N)
        for kind in protocol.metrics:
            measured[f"{kind}_{encoder.name}"] = FEATURE_METRICS[kind].measure(pair)
        encoders[encoder.name] = EncoderInfo(identity=encoder.identity, definition=encoder.definition)
    if real is not None and protocol.paired:
        counter.begin("comparing pairs", fake.fingerprint()[1])
        pair_copy_N = copy_numbers(list(zip(made.digests or (), found.digests or (), strict=False)))
        measured |= reconstruction(fake, real, device, pair_copy_N, counter.count)
    if bad := nonfinite(measured):
        raise UserError(f"{images} against {reference}: not finite: {', '.join(bad)}")
    meanings = image_definitions(protocol)
    return ImageSetResult(
        images=ImageSet(path=str(images), count=made.about.count, fingerprint=made.about.fingerprint),
        reference=ImageSet(path=str(reference), count=found.about.count, fingerprint=found.about.fingerprint),
        protocol=protocol,
        encoders=encoders,
        **numbers_of(measured),
        warnings=(
            *dict.fromkeys(words for one in (fake, real) if one is not None for words in _left_out(one)),
            *copy_notes(made.digests or (), found.digests),
            *warnings_of(measured, meanings),
        ),
        definitions={name: meaning.definition for name, meaning in meanings.items()},
        seconds=time.perf_counter() - began,
    )


def _reference(path: Path, images: Images | None, encoder: Encoder, counter: Counter, each_s: float) -> ImageFeatures:
    """Return the features of the reference. For features that are not cached, report how long the encoding will take.

    The time is estimated from `each_s`, the measured seconds per image of the other set.
    """
    if images is not None:
        count = images.fingerprint()[1]
        if is_cached(images, encoder):
            counter.begin(f"reading the cached features of {path}", count)
        else:
            expected_s = each_s * count
            if expected_s > _WORTH_A_NOTE_S:
                note(
                    f"{path}: the features of its {count:,} images by {encoder.name} are not cached yet; "
                    f"encoding the images takes about {numerals.duration(expected_s)} once; later calls "
                    f"read the features from {cache_folder()}"
                )
            counter.begin(f"encoding the reference {path} with {encoder.name}", count)
        return set_features(images, encoder, counter.count)
    return read_reference(path)


def _refuse_few(protocol: ImageProtocol, path: Path, count: int) -> None:
    needed = {name: FEATURE_METRICS[name].fewest for name in protocol.metrics}
    if short := [name for name in protocol.metrics if needed[name] > count]:
        fitting = [name for name in protocol.metrics if needed[name] <= count]
        fewer = f", or {setting('metrics', '[' + ','.join(fitting) + ']')}" if fitting else ""
        words = ", ".join(f"{name} needs {needed[name]}" for name in short)
        raise UserError(
            f"{path} has {count} image{'s' if count != 1 else ''}, too few: {words}", f"give more images{fewer}"
        )


def _left_out(images: Images) -> list[str]:
    return [f"{images.path / name} is left out: it is a contact sheet of other images" for name in images.left_out]


def _unpaired(fake: Images, real: Images) -> UserError:
    return UserError(
        f"{fake.path} and {real.path} contain different numbers of images, but paired sets need equal numbers"
    )


def _refuse_conflicts(protocol: ImageProtocol, saved: bool, save_reference: Path | None) -> None:
    """Raise on conflicting settings before any image is read, since reading can take hours."""
    if len(protocol.encoders) > 1 and (saved or save_reference):
        raise UserError(
            "a reference file contains the features of only one encoder",
            "use one encoder at a time with a reference file",
        )
    if saved and protocol.paired:
        raise UserError("paired=true needs the reference images, but a reference file contains only their features")
    if saved and protocol.limit:
        raise UserError("limit selects the first images of both sets, but a reference file can only be used whole")
    if save_reference and save_reference.suffix != ".safetensors":
        raise UserError(
            f"{option('save-reference', save_reference)} has the wrong ending", "name it with the ending .safetensors"
        )
    if save_reference and not save_reference.parent.is_dir():
        raise UserError(
            f"{option('save-reference', save_reference)}: the folder {save_reference.parent} does not exist"
        )


def reconstruction(
    fake: Images,
    real: Images,
    device: torch.device,
    copy_N: Tensor | None = None,
    on_pairs: Callable[[int], None] = lambda pairs: None,
) -> dict[str, Measured]:
    """Compare each image with the reference of the same index. `copy_N` numbers equal pairs by their content."""
    values: dict[PairMetric, list[Tensor]] = {metric: [] for metric in PAIR_METRICS}
    for index, (first, second) in enumerate(_pairs(fake, real)):
        if first.shape != second.shape or min(first.shape[1:]) < SMALLEST_PX["vgg16"]:
            sizes = " against ".join(f"{image.shape[2]} × {image.shape[1]}" for image in (first, second))
            raise UserError(
                f"pair {index}: {sizes} pixels; a reconstruction must have the size of its original, with both "
                f"sides of at least "
                f"{SMALLEST_PX['vgg16']} pixels"
            )
        for metric, of_metric in values.items():
            of_metric.append(metric.compare(first[None], second[None], device))
        on_pairs(1)
    found = {metric.name: metric.measure(PairValues(torch.cat(some), copy_N)) for metric, some in values.items()}
    return {
        name: one for name, one in found.items() if one.value != math.inf
    }  # PSNR is infinite if all pairs are equal


def _pairs(fake: Images, real: Images) -> Iterator[Sequence[Tensor]]:
    for index, (first, second) in enumerate(zip_longest(fake.named(), real.named())):
        if first is None or second is None:
            raise _unpaired(fake, real)
        names = [one.stem for one, _ in (first, second)]
        if None not in names and names[0] != names[1]:
            raise UserError(
                f"pair {index} is {first[0].name} and {second[0].name}: images are paired in the order of their "
                f"names, but these two names differ",
                "give both images of each pair the same name",
            )
        yield first[1], second[1]
