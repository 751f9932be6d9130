"""Data, sizes and captions of a run in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tintype.data.captions import ColumnSettings
from tintype.data.mixture.settings import MixedSource, MixtureSettings
from tintype.export import public
from tintype.export.record import Source
from tintype.plan import Plan
from tintype.settings import CaptionsPart, DataPart, plain
from tintype.techniques.caption_curriculum import CurriculumSettings
from tintype.techniques.caption_mix import MixSettings


def subject(data: DataPart) -> str:
    """What it was trained on, within a sentence."""
    if isinstance(data, MixtureSettings):
        return f"a mixture of {len(data.read)} sources of pictures with captions ({', '.join(data.read)})"
    return "tintype's embedded scenes" if data.of_scenes else "a store of pictures with captions"


def kind(data: DataPart) -> str:
    if isinstance(data, MixtureSettings):
        return f"mixture of {', '.join(data.read)}"
    return "scenes, drawn and captioned by tintype" if data.of_scenes else data.kind


def held_out(data: DataPart) -> str:
    """What it is scored against."""
    pictures = "held-out scenes" if data.of_scenes else "held-out pictures of the store"
    return f"{pictures} of the source {data.evaluate}" if isinstance(data, MixtureSettings) else pictures


def sizes(plan: Plan) -> str:
    size_px, shapes = plan.data.size_px, plan.data.shapes
    full = f"{size_px} × {size_px} px"
    if len(shapes) > 1:
        listed = ", ".join(f"{height} × {width}" for height, width in shapes)
        return f"{len(shapes)} shapes (height × width in px): {listed}"
    early = [f"{one.size_px} × {one.size_px} px up to step {one.until:,}" for one in plan.train.stages]
    return ", ".join([*early, f"then {full}"]) if early else full


def source_rows(data: MixtureSettings, sources: Mapping[str, Source]) -> Iterator[list[str]]:
    for name, one in data.sources.items():
        seen = sources.get(name)
        count = "" if seen is None or seen.count is None else f"{seen.count:,}"
        yield [
            name + (" (scored against)" if name == data.evaluate else ""),
            in_words({key: value for key, value in public.settings(plain(one.data)).items() if key != "size_px"}),
            _share(one),
            count,
            f"{seen.images:,}{epochs(seen.images, seen.count)}" if seen is not None else "none",
            seen.identity if seen is not None else "",
        ]


def epochs(images: int, count: int | None) -> str:
    return f", {images / count:.3g} epochs" if count else ""


def _share(one: MixedSource) -> str:
    schedule = one.schedule
    if schedule.end is None:
        return f"{one.share:g}"
    first, last = one.share_at(0), one.share_at(schedule.end)
    return f"{first:g} at first, {last:g} from step {schedule.end:,} on ({schedule.kind} from step {schedule.start:,})"


def captions(part: CaptionsPart) -> list[tuple[str, str]]:
    rows = [("Captions", _policy(part))]
    if part.keep_parts < 1:
        rows.append(
            ("Parts", f"each sentence or clause is kept with a probability of {part.keep_parts:.0%}, one at least")
        )
    if part.max_words is not None:
        rows.append(("Cut", f"behind {part.max_words:,} words"))
    if part.max_tokens is not None:
        rows.append(("Cut", f"to {part.max_tokens:,} tokens"))
    return [*rows, ("Caption dropout", f"{part.dropout:.0%} of the samples read the empty caption")]


def _policy(part: CaptionsPart) -> str:
    if isinstance(part, ColumnSettings):
        return f"column {part.column}"
    if isinstance(part, MixSettings):
        return f"each sample reads one of its picture's: {_weights(part.weights)}"
    if isinstance(part, CurriculumSettings):
        when = f"{part.schedule.kind} from step {part.schedule.start:,} to {part.schedule.end:,}"
        return f"column {part.first}, then a mix ({when}): {_weights(part.weights)}"
    return in_words(public.settings({key: value for key, value in plain(part).items() if key not in part.common}))


def _weights(weights: Mapping[str, float]) -> str:
    total = sum(weights.values())
    return ", ".join(f"{column} {weight / total:.3g} of the time" for column, weight in weights.items())


def in_words(settings: Mapping[str, Any]) -> str:
    """`kind` first, then what is set; nothing is said of what is null, empty or default-less."""
    rest = {key: value for key, value in settings.items() if key != "kind" and value not in (None, "", [], {})}
    said = [f"{key} {in_plain(value)}" for key, value in rest.items()]
    kind = settings.get("kind")
    return ", ".join([*([str(kind)] if kind else []), *said])


def in_plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({in_words(value)})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_plain, value)) + "]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
