"""The settings of a mixture are named sources, their shares, and the source that a run is scored against.

The shares alone determine how many images of each source a batch has. A source's number of images is its share times
the batch size, rounded; later batches compensate for the rounding.

Sources are counted in the order of their names. For the first source, the number of images up to a step is the rounded
sum of its shares of all batches so far. For the second source, this number is the rounded sum of its shares of the
images that the first source left. The numbers of the other sources are computed in the same way. Each term lies between
zero and the number of images left, so a count never decreases. With a share of 0, a source gives no images, and with a
share of 1 it gives all images. With two sources, each count differs by at most half an image from the exact sum of
shares. Each further source adds at most one image to this difference.

The sums use integers, so they are equal on all machines and in runs of any length.

S: steps. N: sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PlainSerializer, SerializationInfo, StringConstraints, model_validator
from torch import Tensor

from tintype.data.scenes.source import ScenesSettings
from tintype.data.store.settings import StoreSettings
from tintype.schedule import Schedule
from tintype.settings import (
    DataPart,
    OneOf,
    Plain,
    PlanView,
    Settings,
    SourceUse,
    TrainSettings,
    kind_alone,
    plain,
)

SIZE = "size_px"
_UNIT = 1 << 30
"""Shares are integer multiples of 1 / `_UNIT`. The shares of 2^33 images together fit into 64 bits."""


class Share(Settings):
    """A source's share, relative to the other sources.

    At a step, it is rest + (share - rest) × the schedule's factor.
    """

    share: float = Field(1.0, ge=0, description="Share of this source in each batch, relative to the other sources")
    rest: float = Field(0.0, ge=0, description="Share of this source while the schedule's factor is 0")
    schedule: Schedule = Field(
        Schedule(), description="Schedule of the factor that changes the source's share over training"
    )


def _without_size(data: DataPart, info: SerializationInfo) -> Plain:
    """Serialize data without its size. The mixture sets one size for all sources."""
    return data.model_dump(mode=info.mode, exclude={SIZE})


class MixedSource(Share):
    """A source of a mixture with its share."""

    data: Annotated[
        DataPart, OneOf((ScenesSettings, StoreSettings), usual="scenes"), PlainSerializer(_without_size)
    ] = Field(
        ScenesSettings(), description="Data of this source, of any kind except mixture; size_px is set by the mixture"
    )

    def problems(self) -> Iterator[str]:
        if self.rest and self.schedule.kind == "constant":
            yield "rest is the share where the schedule's factor is 0; a constant schedule has no such step"

    @property
    def read(self) -> bool:
        """Whether the source ever has a share above 0. A short training may still read no image of the source."""
        return self.share > 0 or self.rest > 0

    @property
    def words(self) -> str:
        schedule = self.schedule
        when = "" if schedule.end is None else f" ({schedule.kind} from step {schedule.start} to {schedule.end}"
        when += f", then {self.rest:g})" if self.rest else ")" if when else ""
        return f"share {self.share:g}{when} of {self.data.words}"

    def describe_share(self) -> str:
        schedule = self.schedule
        if schedule.end is None:
            return f"{self.share:g}"
        first, last = self.share_at(0), self.share_at(schedule.end)
        return (
            f"{first:g} at first, {last:g} from step {schedule.end:,} on ({schedule.kind} from step {schedule.start:,})"
        )

    def share_at(self, step: int) -> float:
        return self.rest + (self.share - self.rest) * self.schedule.factor(step)

    def shares(self, steps: int) -> Tensor:
        """Return the share at each step, float64 [S]."""
        if self.schedule.kind == "constant":
            return torch.full((steps,), self.share_at(0), dtype=torch.float64)
        return torch.tensor([self.share_at(step) for step in range(steps)], dtype=torch.float64)


class MixtureSettings(DataPart):
    """Several named sources with shares. A share of 0 is only allowed for the source that the run is scored against."""

    has_sources: ClassVar[bool] = True

    kind: Literal["mixture"] = "mixture"
    sources: dict[Annotated[str, StringConstraints(pattern="^[a-z0-9][a-z0-9-]*$")], MixedSource] = Field(
        min_length=1, description="Sources of the mixture: a name of your choice, with the source's data and share"
    )
    evaluate: str = Field(
        "", description="Name of the source whose held-out images are the reference; by default the last source"
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: object) -> object:
        """Score the run against the last source by default, and give the mixture's size to its sources."""
        if not isinstance(given, Mapping) or not isinstance(given.get("sources"), Mapping):
            return given
        size_px = given.get(SIZE, cls.model_fields[SIZE].default)
        sources = {name: _sized(source, size_px) for name, source in given["sources"].items()}
        return {**given, "sources": sources, "evaluate": given.get("evaluate") or next(reversed(sources), "")}

    def problems(self) -> Iterator[str]:
        if self.evaluate not in self.sources:
            yield f"evaluate: there is no source '{self.evaluate}'; there are {', '.join(self.sources)}"
        for name, source in self.sources.items():
            if source.data.size_px != self.size_px:
                yield (
                    f"sources.{name}: its size_px is {source.data.size_px} and the mixture's is {self.size_px}; all "
                    "sources have the mixture's, so leave it out there"
                )
            if len(source.data.shapes) > 1:
                yield f"sources.{name}.data.buckets: a mixture has images of one shape; leave buckets out"
        if not self.read:
            yield "the shares of all sources are 0; give one of them a share"
        for name, source in self.sources.items():
            if not source.read and name != self.evaluate:
                yield (
                    f"sources.{name}: its share is 0, so it is never read; take it out, give it a share, or name it in "
                    "evaluate"
                )

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def words(self) -> str:
        sources = "; ".join(f"{name}: {source.words}" for name, source in self.sources.items())
        return f"mixture, scored on {self.evaluate}: {sources}"

    def in_diff(self) -> Plain:
        return {**plain(self), "sources": {name: source.words for name, source in self.sources.items()}}

    @property
    def read(self) -> tuple[str, ...]:
        """Sorted names of the sources that training reads. The order of the sources in the plan does not matter."""
        return tuple(sorted(name for name, source in self.sources.items() if source.read))

    @property
    def scored(self) -> DataPart:
        return self.sources[self.evaluate].data.scored

    @property
    def memorisable(self) -> DataPart:
        return self.sources[self.evaluate].data.memorisable

    @property
    def scored_name(self) -> str:
        own = super().scored_name
        return f"{own}/{self.evaluate}{self.sources[self.evaluate].data.scored_name.removeprefix(own)}"

    @property
    def resident_bytes(self) -> int:
        return sum(source.data.resident_bytes for source in self.sources.values())

    @property
    def of_scenes(self) -> bool:
        """Whether the source that the run is scored against has the captions of scenes."""
        return self.scored.of_scenes

    @property
    def at_hand(self) -> bool:
        """Whether this machine has the held-out images of the scored source. A report needs these images."""
        return self.scored.at_hand

    def at_size(self, size_px: int) -> MixtureSettings:
        sources = {
            name: source.model_copy(update={"data": source.data.at_size(size_px)})
            for name, source in self.sources.items()
        }
        return self.model_copy(update={SIZE: size_px, "sources": sources})

    def held_out(self, count: int, shaped: bool = False) -> DataPart:
        return self.scored.held_out(count, shaped)

    def at_most(self, count: int) -> dict[str, int]:
        return {
            f"sources.{name}.data.{key}": value
            for name, source in self.sources.items()
            for key, value in source.data.at_most(count).items()
        }

    def content(self) -> dict[str, Any]:
        """Return the settings without the shares. Mixtures that differ only in their shares can use the same caches."""
        sources = {name: _without(self.sources[name].data.content(), SIZE) for name in self.read}
        return {"kind": self.kind, SIZE: self.size_px, "sources": sources}

    def check(self, plan: PlanView) -> None:
        steps, batch = plan.train.steps, plan.train.batch
        if set(plan.train.batches) != {batch}:
            raise ValueError(
                "train.stages: a mixture needs the same batch size at all stages; leave `batch` out of the stages"
            )
        for name, count in self._images(steps, batch).items():
            if not count:
                source = self.sources[name]
                raise ValueError(
                    f"data.sources.{name} is never read in {steps} steps of {batch} images (share "
                    f"{source.share:g}, schedule '{source.schedule.kind}'); remove this source, or change "
                    f"its share or schedule"
                )

    def describe(self) -> str:
        return f"a mixture of {len(self.read)} sources of images with captions ({', '.join(self.read)})"

    def describe_held_out(self) -> str:
        return f"{self.scored.describe_held_out()} of the source {self.evaluate}"

    def uses(self, steps: int, train: TrainSettings) -> dict[str, SourceUse]:
        images = self._images(steps, train.batch)
        return {
            name: SourceUse(source.data, images.get(name), source.describe_share())
            for name, source in self.sources.items()
        }

    def _images(self, steps: int, batch: int) -> dict[str, int]:
        return dict(zip(self.read, images_before(self.shares, batch, steps)[-1].tolist(), strict=True))

    @property
    def shares(self) -> tuple[MixedSource, ...]:
        """The sources that training reads, in the order of their names."""
        return tuple(self.sources[name] for name in self.read)


@lru_cache(maxsize=16)
def images_before(shares: tuple[MixedSource, ...], batch: int, steps: int) -> Tensor:
    """Return each source's number of images before each step and after the last step, as int64 [S + 1, N]."""
    share_SN = torch.stack([share.shares(steps) for share in shares], dim=1)
    nothing = (share_SN.sum(1) <= 0).nonzero()
    if len(nothing):
        raise ValueError(
            f"data: at step {int(nothing[0])} the shares of all sources are 0; at least one must be above 0"
        )
    left_S = torch.full((steps,), batch)
    counts: list[Tensor] = []
    for index in range(len(shares) - 1):
        of_rest_S = share_SN[:, index] / share_SN[:, index:].sum(1).clamp_min(1e-300)
        sum_S = ((of_rest_S * _UNIT).round().long() * left_S).cumsum(0)
        rounded_S = (sum_S + _UNIT // 2) // _UNIT
        counts.append(rounded_S.diff(prepend=torch.zeros(1, dtype=torch.int64)))
        left_S = left_S - counts[-1]
    count_SN = torch.stack([*counts, left_S], dim=1)
    return torch.cat([torch.zeros(1, len(shares), dtype=torch.int64), count_SN.cumsum(0)])


def _without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}


def _sized(source: object, size_px: object) -> object:
    if isinstance(source, Mapping) and isinstance(data := kind_alone(source.get("data", {})), Mapping):
        return {**source, "data": {SIZE: size_px, **data}}
    return source
