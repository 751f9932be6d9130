"""Choose one caption per sample, then optionally drop parts of it, truncate it, or drop all of it.

Every draw is a function of (seed, sample position), so the captions do not depend on the number of ranks and
micro-batches. The results are strings, which a cache of encoded texts can use as keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from tintype.schedule import Schedule
from tintype.seams import Draws, Record, TextEncoder
from tintype.settings import Part, PlanView

NULL_CAPTION = ""


class CaptionsPart(Part):
    """The kind chooses a caption.

    Then four settings that all kinds share apply, in the order parts, words, tokens, dropout.
    """

    keep_parts: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Probability of keeping each sentence or clause of a caption; at least one is always kept",
    )
    max_words: int | None = Field(
        None, ge=1, description="Largest number of words of a caption; longer captions are truncated; null: no limit"
    )
    max_tokens: int | None = Field(
        None,
        ge=2,
        description="Largest number of text-encoder tokens of a caption, including special tokens; longer "
        "captions are truncated",
    )
    dropout: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of training samples with the null caption in place of their own, as guidance needs",
    )

    @property
    def common(self) -> dict[str, Any]:
        """Return the settings that all kinds of captions share. A change of the kind keeps these settings."""
        return {key: getattr(self, key) for key in CaptionsPart.model_fields if key != "kind"}

    def check(self, plan: PlanView) -> None:
        """Raise ValueError if these captions do not fit the plan."""

    def pick(self, captions: Mapping[str, str], u: float, step: int) -> str:
        """Choose a caption by a uniform draw u in [0, 1). Return the null caption if the image has no caption."""
        raise NotImplementedError

    def columns(self) -> frozenset[str]:
        raise NotImplementedError


class ColumnSettings(CaptionsPart):
    """Every sample reads the same caption column."""

    kind: Literal["column"] = "column"
    column: str = Field("long", description="Caption column of the data that training reads")

    def pick(self, captions: Mapping[str, str], u: float, step: int) -> str:
        return captions.get(self.column, NULL_CAPTION)

    def columns(self) -> frozenset[str]:
        return frozenset({self.column})

    def describe(self) -> str:
        return f"column {self.column}"


def _are_weights(weights: dict[str, float]) -> dict[str, float]:
    if not weights:
        raise ValueError("give a weight for each caption column, for example weights.long=0.7,weights.short=0.3")
    for column, weight in weights.items():
        if weight <= 0:
            raise ValueError(
                f"the weight of '{column}' is {weight:g}, but a weight must be above 0; to leave a column out, "
                f"give it no weight"
            )
    return weights


Weights = Annotated[dict[str, float], AfterValidator(_are_weights)]


def describe_weights(weights: Mapping[str, float]) -> str:
    total = sum(weights.values())
    return ", ".join(f"{column} {weight / total:.3g} of the time" for column, weight in weights.items())


def pick_weighted(captions: Mapping[str, str], weights: Mapping[str, float], u: float) -> str:
    """Choose one of the non-empty captions at random by weight; return the null caption if all are empty.

    Columns are sorted by name, so their order in the plan does not matter.
    """
    there = [
        (captions[column], weight)
        for column, weight in sorted(weights.items())
        if weight > 0 and captions.get(column, NULL_CAPTION).strip()
    ]
    left = u * sum(weight for _, weight in there)
    for caption, weight in there:
        if left < weight:
            return caption
        left -= weight
    return there[-1][0] if there else NULL_CAPTION  # the weights' rounded sum may lie below u


class MixSettings(CaptionsPart):
    """Each sample reads one of the captions of its image, drawn by weight.

    A missing or empty caption is never drawn, and its weight goes to the image's other captions in proportion. PRX
    gives such a caption a weight of 1e-9, so PRX can still draw it.
    """

    kind: Literal["mix"] = "mix"
    weights: Weights = Field(description="Weight with which each caption column is drawn, relative to the others")

    def problems(self) -> Iterator[str]:
        if len(self.weights) == 1:
            yield f"a mix of '{next(iter(self.weights))}' alone is no mix; give another column a weight too"

    def pick(self, captions: Mapping[str, str], u: float, step: int) -> str:
        return pick_weighted(captions, self.weights, u)

    def columns(self) -> frozenset[str]:
        return frozenset(self.weights)

    def describe(self) -> str:
        return f"each sample reads one of its image's captions: {describe_weights(self.weights)}"


class CurriculumSettings(CaptionsPart):
    """Training first reads a single caption column, then gradually more of a mix of columns.

    PRX's authors advise ending training on a mix of long and short captions, but give no numbers. The start and the
    duration of the change are this project's choice. With the schedule's factor s, a sample reads the first column with
    weight 1 - s and the mix with weight s. With a falling schedule (cosine), training goes from the mix to the first
    column.
    """

    kind: Literal["curriculum"] = "curriculum"
    first: str = Field(description="Caption column that training reads at the start")
    weights: Weights = Field(description="Weight of each caption column in the mix that replaces the first column")
    schedule: Schedule = Field(
        description="Share of the samples that read the mix in place of the first column, by step"
    )

    def problems(self) -> Iterator[str]:
        if set(self.weights) == {self.first}:
            yield f"a curriculum from '{self.first}' to '{self.first}' changes nothing; add a column to it"
        if self.schedule.end is None:
            yield "a curriculum with a constant schedule is a mix: take the kind mix (caption-mix)"

    def check(self, plan: PlanView) -> None:
        if self.schedule.end is not None and self.schedule.end > plan.train.steps:
            raise ValueError(
                f"captions: the caption curriculum ends at step {self.schedule.end}, but the run has "
                f"{plan.train.steps} steps "
                "(train.steps); end the curriculum earlier, or train longer"
            )
        if len(self.schedule.factors_in(plan.train.steps)) == 1:
            raise ValueError(
                f"captions: the caption curriculum never changes in {plan.train.steps} steps (train.steps): "
                f"captions.schedule is '{self.schedule.kind}' from step {self.schedule.start} to "
                f"{self.schedule.end}; "
                "let the schedule change earlier, or use a constant mix (caption-mix)"
            )

    def weights_at(self, step: int) -> dict[str, float]:
        """Return the weight of each column at a step; the weights sum to 1."""
        share, total = self.schedule.factor(step), sum(self.weights.values())
        weights = {column: share * weight / total for column, weight in self.weights.items()}
        return {**weights, self.first: weights.get(self.first, 0.0) + 1 - share}

    def pick(self, captions: Mapping[str, str], u: float, step: int) -> str:
        """Choose a caption by the step's weights. If the image lacks all of these captions, choose from all columns."""
        every = {self.first: 1.0, **self.weights}
        return pick_weighted(captions, self.weights_at(step), u) or pick_weighted(captions, every, u)

    def columns(self) -> frozenset[str]:
        return frozenset({self.first, *self.weights})

    def describe(self) -> str:
        when = f"{self.schedule.kind} from step {self.schedule.start:,} to {self.schedule.end:,}"
        return f"column {self.first}, then a mix ({when}): {describe_weights(self.weights)}"


@dataclass(frozen=True)
class Captions:
    texts: list[str]
    lacking: int
    """Number of images without any caption, counted before dropout. Training uses the null caption for these images."""


def captions_of(
    records: Sequence[Record], settings: CaptionsPart, draws: Draws, step: int, text: TextEncoder
) -> Captions:
    """Return the caption of each sample. The host makes the draws, so that it does not wait for the GPU."""
    choice, drop = draws.uniform("caption", (2,)).unbind(1)
    texts = [settings.pick(record.captions, u, step) for record, u in zip(records, choice.tolist(), strict=True)]
    texts = [one if one.strip() else NULL_CAPTION for one in texts]
    lacking = texts.count(NULL_CAPTION)
    if settings.keep_parts < 1:
        texts = keep_some(texts, settings.keep_parts, draws)
    if settings.max_words is not None:
        texts = [first_words(one, settings.max_words) for one in texts]
    if settings.max_tokens is not None:
        texts = text.truncate(texts, settings.max_tokens)
    dropped = [u < settings.dropout for u in drop.tolist()]
    return Captions([NULL_CAPTION if gone else one for one, gone in zip(texts, dropped, strict=True)], lacking)


_BETWEEN_PARTS = re.compile(r"(?<=[.!?;,])\s+|(?<=[。！？；，、])\s*|(?<!\s)\s*\n\s*")


def parts_of(caption: str) -> list[str]:
    """Split a caption after sentence ends, commas and semicolons. A comma within a number does not end a clause."""
    return [part for part in _BETWEEN_PARTS.split(caption.strip()) if part]


def keep_some(texts: Sequence[str], probability: float, draws: Draws) -> list[str]:
    """Keep each part with this probability, in the original order. If no part remains, keep one random part."""
    parts = [parts_of(text) for text in texts]
    u_BP = draws.uniform("caption-parts", (1 + max(map(len, parts), default=0),)).tolist()
    return [_kept(text, its, probability, u) for text, its, u in zip(texts, parts, u_BP, strict=True)]


def _kept(text: str, parts: list[str], probability: float, u: Sequence[float]) -> str:
    """Keep each part whose draw in `u[1:]` is below the probability; if none is, keep the part that `u[0]` selects."""
    if not parts:
        return text
    kept = [part for part, own in zip(parts, u[1:], strict=False) if own < probability]
    kept = kept or [parts[int(u[0] * len(parts))]]
    return text if len(kept) == len(parts) else " ".join(kept).rstrip(",;，；、")


def first_words(text: str, count: int) -> str:
    """Truncate the text after its `count`-th word. Words are separated by white space."""
    ends = [found.end() for found in re.finditer(r"\S+", text)]
    return text if len(ends) <= count else text[: ends[count - 1]]
