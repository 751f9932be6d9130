"""The settings of a mixture: named sources, their shares, and which of them a run is scored against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer, model_validator

from tintype.data.mixture.shares import images_before
from tintype.data.scenes.settings import ScenesSettings
from tintype.data.store.settings import StoreSettings
from tintype.schedule import Schedule
from tintype.settings import DataPart, OneOf, PlanView, Settings, SourceUse, kind_alone, plain

SIZE = "size_px"


class MixedSource(Settings):
    """One source. At a step it weighs rest + (share - rest) × the schedule's factor, relative to the others."""

    share: float = Field(1.0, ge=0, description="Its share, relative to those of the other sources")
    rest: float = Field(0.0, ge=0, description="What is left of it where the schedule's factor is 0")
    schedule: Schedule = Field(Schedule(), description="How the share changes with the step")
    data: Annotated[DataPart, OneOf((ScenesSettings, StoreSettings), usual="scenes")] = Field(
        ScenesSettings(), description="Any data but another mixture; its size_px is the mixture's"
    )

    @model_validator(mode="after")
    def _rest_is_reached(self) -> MixedSource:
        if self.rest and self.schedule.kind == "constant":
            raise ValueError("rest is the share where the schedule's factor is 0; a constant schedule has no such step")
        return self

    @model_serializer(mode="wrap")
    def _without_size(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the size, which the mixture states once, so that it can be overridden there."""
        content: dict[str, Any] = handler(self)
        if isinstance(content.get("data"), dict):
            content["data"].pop(SIZE, None)
        return content

    @property
    def read(self) -> bool:
        """Whether it has any share at all; whether it is reached, the steps decide."""
        return self.share > 0 or self.rest > 0

    @property
    def words(self) -> str:
        """All of it on one line."""
        schedule = self.schedule
        when = "" if schedule.end is None else f" ({schedule.kind} from step {schedule.start} to {schedule.end}"
        when += f", then {self.rest:g})" if self.rest else ")" if when else ""
        return f"share {self.share:g}{when} of {in_words(self.data)}"

    def describe_share(self) -> str:
        """Return the share over the training in words."""
        schedule = self.schedule
        if schedule.end is None:
            return f"{self.share:g}"
        first, last = self.share_at(0), self.share_at(schedule.end)
        return (
            f"{first:g} at first, {last:g} from step {schedule.end:,} on ({schedule.kind} from step {schedule.start:,})"
        )

    def share_at(self, step: int) -> float:
        return self.rest + (self.share - self.rest) * self.schedule.factor(step)


class MixtureSettings(DataPart):
    """Named sources with shares. A source of share 0 is allowed where it is the one that the run is scored against."""

    kind: Literal["mixture"] = "mixture"
    sources: dict[Annotated[str, StringConstraints(pattern="^[a-z0-9][a-z0-9-]*$")], MixedSource] = Field(min_length=1)
    evaluate: str = Field("", description="The source whose held-out images are the reference; by default the last")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: object) -> object:
        """Evaluate the last source by default, and hand the size down."""
        if not isinstance(given, Mapping) or not isinstance(given.get("sources"), Mapping):
            return given
        size_px = given.get(SIZE, cls.model_fields[SIZE].default)
        sources = {name: _sized(source, size_px) for name, source in given["sources"].items()}
        return {**given, "sources": sources, "evaluate": given.get("evaluate") or next(reversed(sources), "")}

    @model_validator(mode="after")
    def _consistent(self) -> MixtureSettings:
        if self.evaluate not in self.sources:
            raise ValueError(f"evaluate: there is no source '{self.evaluate}'; there are {', '.join(self.sources)}")
        for name, source in self.sources.items():
            if source.data.size_px != self.size_px:
                raise ValueError(
                    f"sources.{name}: its size_px is {source.data.size_px} and the mixture's is {self.size_px}; all "
                    "sources have the mixture's, so leave it out there"
                )
            if len(source.data.shapes) > 1:
                raise ValueError(f"sources.{name}.data.buckets: a mixture has images of one shape; leave buckets out")
        if not self.read:
            raise ValueError("the shares of all sources are 0; give one of them a share")
        for name, source in self.sources.items():
            if not source.read and name != self.evaluate:
                raise ValueError(
                    f"sources.{name}: its share is 0, so it is never read; take it out, give it a share, or name it in "
                    "evaluate"
                )
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def read(self) -> tuple[str, ...]:
        """The names of the sources that training reads, in an order that does not depend on how they were written."""
        return tuple(sorted(name for name, source in self.sources.items() if source.read))

    @property
    def scored(self) -> DataPart:
        return self.sources[self.evaluate].data

    @property
    def scored_name(self) -> str:
        return f"{super().scored_name}/{self.evaluate}"

    @property
    def of_scenes(self) -> bool:
        """Whether the scored source has the captions of scenes."""
        return self.scored.of_scenes

    @property
    def at_hand(self) -> bool:
        """A report needs the held-out images, and they are of the source that is scored against."""
        return self.scored.at_hand

    def at_size(self, size_px: int) -> MixtureSettings:
        sources = {
            name: source.model_copy(update={"data": source.data.at_size(size_px)})
            for name, source in self.sources.items()
        }
        return self.model_copy(update={SIZE: size_px, "sources": sources})

    def held_out(self, count: int) -> DataPart:
        return self.scored.held_out(count)

    def at_most(self, count: int) -> dict[str, int]:
        return {
            f"sources.{name}.data.{key}": value
            for name, source in self.sources.items()
            for key, value in source.data.at_most(count).items()
        }

    def in_hash(self) -> dict[str, Any]:
        content = plain(self)
        for name, source in self.sources.items():
            content["sources"][name]["data"] = _without(source.data.in_hash(), SIZE)
        return content

    def content(self) -> dict[str, Any]:
        """Return the content without shares: they do not change the images, so caches are shared."""
        sources = {name: _without(self.sources[name].data.content(), SIZE) for name in self.read}
        return {"kind": self.kind, SIZE: self.size_px, "sources": sources}

    def check(self, plan: PlanView) -> None:
        steps, batch = plan.train.steps, plan.train.batch
        counts = images_before(self.shares, batch, steps)[-1].tolist()
        for name, count in zip(self.read, counts, strict=True):
            if not count:
                source = self.sources[name]
                raise ValueError(
                    f"data.sources.{name} is never read in {steps} steps of {batch} images: its share is "
                    f"{source.share:g}, its schedule '{source.schedule.kind}'; take it out, or change them"
                )

    def describe(self) -> str:
        return f"a mixture of {len(self.read)} sources of images with captions ({', '.join(self.read)})"

    def describe_held_out(self) -> str:
        return f"{self.scored.describe_held_out()} of the source {self.evaluate}"

    def uses(self, steps: int, batch: int) -> dict[str, SourceUse]:
        counts = images_before(self.shares, batch, steps)[-1].tolist()
        images = dict(zip(self.read, counts, strict=True))
        return {
            name: SourceUse(source.data, images.get(name), source.describe_share())
            for name, source in self.sources.items()
        }

    @property
    def shares(self) -> tuple[MixedSource, ...]:
        """The sources in `read`, in their order."""
        return tuple(self.sources[name] for name in self.read)


def in_words(data: DataPart) -> str:
    """Return data on one line, without the size."""
    settings = {
        key: value for key, value in plain(data).items() if key not in ("kind", SIZE) and value not in (None, [])
    }
    return f"{data.kind} ({', '.join(f'{key} {value}' for key, value in settings.items())})"


def _without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}


def _sized(source: object, size_px: object) -> object:
    if isinstance(source, Mapping) and isinstance(data := kind_alone(source.get("data", {})), Mapping):
        return {**source, "data": {SIZE: size_px, **data}}
    return source
