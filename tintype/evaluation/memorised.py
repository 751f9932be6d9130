"""Search for copies of training images. Sample with captions of training images, and with captions of unseen images.

Both sets of captions are drawn by the same rule. Both sets get equally many samples, with the same noises and guidance
scales. A third set of unseen images shows how similar images of this data are to each other.

M: images to search for copies of, N: samples, C: channels, H, W: rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from tintype.data.captions import NULL_CAPTION
from tintype.data.mixture.settings import MixtureSettings
from tintype.data.sources import open_source, open_unseen
from tintype.errors import UserError
from tintype.evaluation.prompts import find_captions, missing_captions
from tintype.evaluation.protocol import Protocol, Sampling
from tintype.evaluation.reference import BLOCK, ScoredData, data_fingerprint, shared_features, source_features
from tintype.evaluation.samples import Samples, samples_of
from tintype.metrics.memorisation import Asked, Recall, recall
from tintype.plan import Plan
from tintype.seams import Encoder, ImageSource
from tintype.settings import DataPart

MOST_PAIRS = 8
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Question:
    """Images whose copies are searched for, and captions of some of these images."""

    source: ImageSource
    ids: Sequence[int]
    own_N: Sequence[int]
    """For each caption, the index in `ids` of the caption's image."""
    captions: Sequence[str]


@dataclass(frozen=True)
class Questions:
    training: Question
    unseen: Question
    others: Sequence[int]
    """Further images of the unseen source, for comparison."""
    trained_on: int
    data: DataPart
    note: str = ""
    """The reason why no copy can be found; empty if copies can be found."""


@dataclass(frozen=True)
class AskedSamples:
    questions: Questions
    scales: Sequence[float]
    training: Sequence[Samples]
    """Samples of training captions, with one set per guidance scale."""
    unseen: Sequence[Samples]

    @property
    def every(self) -> list[Samples]:
        return [*self.training, *self.unseen]


@dataclass(frozen=True)
class NearestPair:
    """A sample of a training caption, and the training image that is nearest to it."""

    image_CHW: Tensor
    """Sample and training image side by side. The sample is on the left."""
    caption: str
    scale: float
    distance: float
    own: bool
    """Whether the training image is the image of the caption."""
    copy: bool


@dataclass(frozen=True)
class FoundCopies:
    recall: Recall
    asked: AskedSamples

    @cached_property
    def pairs(self) -> list[NearestPair]:
        """Return samples with their nearest training images, the closest first, with each training image once."""
        near, samples, question = self.recall.training, self.asked.training, self.asked.questions.training
        count, shown = len(question.captions), dict[int, NearestPair]()
        for place in near.distance_N.argsort(stable=True).tolist():
            row, index = int(near.nearest_N[place]), place % count
            if row in shown:
                continue
            sample_CHW = samples[place // count].read(index, index + 1)[0]
            real_CHW = question.source.images([question.ids[row]])[0].cpu()
            shown[row] = NearestPair(
                torch.cat([sample_CHW, _gap(sample_CHW), real_CHW], dim=2),
                question.captions[index],
                self.asked.scales[place // count],
                float(near.distance_N[place]),
                question.own_N[index] == row,
                bool(near.any_N[place]),
            )
            if len(shown) == MOST_PAIRS:
                break
        return list(shown.values())


def _gap(image_CHW: Tensor) -> Tensor:
    channels, height, width = image_CHW.shape
    return image_CHW.new_full((channels, height, max(2, width // 16)), 255)


def ask_for_copies(
    folder: Path, step: int, plan: Plan, scored: ScoredData, protocol: Protocol, weights: str = ""
) -> AskedSamples | None:
    """Return the samples to search for copies, not generated yet; None without a memorisation metric.

    `folder` holds the samples of all conditions.
    """
    if not protocol.reads_training_images:
        return None
    asked, found, main = protocol.memorisation, _questions(plan, scored, protocol), protocol.conditions[0]
    sides: list[list[Samples]] = []
    for name, question in (("training", found.training), ("unseen", found.unseen)):
        made = []
        for scale in asked.guidance:
            guidance = main.sampler.guidance.model_copy(update={"scale": scale})
            sampler = main.sampler.model_copy(update={"guidance": guidance})
            title = f"{name} captions, guidance {scale:g}"
            sampling = Sampling(title, f"{name}-captions", len(question.captions), 1, sampler, False)
            size_px = scored.data.size_px
            made.append(samples_of(folder, step, sampling, question.captions, protocol.seed, size_px, weights))
        sides.append(made)
    return AskedSamples(found, asked.guidance, *sides)


def _questions(plan: Plan, scored: ScoredData, protocol: Protocol) -> Questions:
    """Choose images and captions. For a mixture, choose them from the source that the run is scored against.

    The images are spread evenly over the training images. If they are fewer than the captions to sample, each caption
    is sampled several times with different noises.
    """
    data, asked = scored.data.memorisable.squared, protocol.memorisation
    train = open_source(data, "train", _CPU)
    wanted = min(len(train), protocol.training_count)
    unseen = open_unseen(data, max(wanted, asked.captions) + protocol.reference_count, _CPU)
    images = min(wanted, len(unseen) // 2)
    controls = min(max(images, asked.captions), len(unseen) // 2)  # at least one image per caption, if there are enough
    others = range(controls, min(len(unseen), controls + protocol.reference_count))
    if len(others) < 2:
        raise UserError(
            f"memorised: the data has {len(unseen)} held-out images, but the search for copies needs at least 4",
            "hold out more images, or leave memorised out of metrics",
        )
    if (file := asked.prompt_file) is not None:
        training, kind = _of_file(train, file.prompts, images, asked.prompts or "")
        count = len(file.prompts)
    else:
        kind = asked.prompts or _kind_read(plan, protocol)
        training = _spread(train, [index * len(train) // images for index in range(images)], kind, asked.captions)
        count = asked.captions
    note = ""
    if isinstance(scored.data, MixtureSettings) and scored.data.evaluate not in scored.data.read:
        note = f"memorised: the search for copies reads the source '{scored.data.evaluate}', but training never does"
    return Questions(training, _spread(unseen, range(controls), kind, count), others, len(train), data, note)


def _kind_read(plan: Plan, protocol: Protocol) -> str:
    """Return the caption column that training reads. If training reads several, prefer the protocol's column."""
    read = plan.captions.columns()
    return protocol.prompts if protocol.prompts in read else min(read)


def _spread(source: ImageSource, ids: Sequence[int], kind: str, count: int) -> Question:
    """Choose images that have a caption of this kind. The images are spread evenly over the ids."""
    texts = [record.captions.get(kind, NULL_CAPTION) for record in source.records(ids)]
    known = [row for row, text in enumerate(texts) if text.strip()]
    if not known:
        raise UserError(f"memorised: none of {len(ids)} images has a caption called '{kind}' (memorisation.prompts)")
    rows = [known[index * len(known) // count if count <= len(known) else index % len(known)] for index in range(count)]
    return Question(source, ids, rows, [texts[row] for row in rows])


def _of_file(source: ImageSource, captions: Sequence[str], images: int, name: str) -> tuple[Question, str]:
    """Choose the images whose captions are in a file. Also return the column from which these captions come."""
    found = find_captions(source, captions)
    if problem := missing_captions(found, captions, name):
        raise UserError(problem)
    own = list(dict.fromkeys(found[caption][0] for caption in captions))
    if len(own) > images:
        raise UserError(
            f"memorised: {name} has captions of {len(own)} images, but the search for copies covers only "
            f"{images} (training_count, and half of the held-out images)",
            "give fewer captions",
        )
    spread = (index * len(source) // images for index in range(images))
    ids = [*own, *(id_ for id_ in spread if id_ not in set(own))][:images]
    rows = [ids.index(found[caption][0]) for caption in captions]
    return Question(source, ids, rows, list(captions)), found[captions[0]][1]


def find_copies(
    asked: AskedSamples, encoder: Encoder, on_images: Callable[[int], None] = lambda images: None
) -> FoundCopies | None:
    """Find near-copies with an encoder. The ranks share the work, and the first rank has the result."""
    found, questions = list[Asked | None](), asked.questions
    for words, question, samples in (
        ("training images", questions.training, asked.training),
        ("unseen images", questions.unseen, asked.unseen),
    ):
        image_MF = _features(question.source, question.ids, words, questions.data, encoder)
        fakes = [shared_features(encoder, one.blocks(BLOCK), one.read, on_images) for one in samples]
        own_N = torch.tensor([*question.own_N] * len(samples))
        known = [fake_NF for fake_NF in fakes if fake_NF is not None]
        found.append(None if image_MF is None else Asked(torch.cat(known).cpu(), image_MF.cpu(), own_N))
    others_RF = _features(questions.unseen.source, questions.others, "other images", questions.data, encoder)
    training, unseen = found
    if training is None or unseen is None or others_RF is None:
        return None
    scales = [scale for scale in asked.scales for _ in questions.training.captions]
    return FoundCopies(recall(training, unseen, others_RF.cpu(), scales, questions.trained_on), asked)


def _features(source: ImageSource, ids: Sequence[int], words: str, data: DataPart, encoder: Encoder) -> Tensor | None:
    of_data = f"{data.model_dump_json()} {data_fingerprint(data, source)}"
    return source_features(source, ids, words, of_data, encoder)
