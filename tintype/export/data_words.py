"""Data, sizes and captions of a run in words."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from tintype.data.captions import CaptionsPart
from tintype.export import public
from tintype.export.record import RunRecord
from tintype.plan import Plan
from tintype.settings import Part, plain


def sizes(plan: Plan) -> str:
    size_px, shapes = plan.data.size_px, plan.data.shapes
    full = f"{size_px} × {size_px} px"
    if len(shapes) > 1:
        listed = ", ".join(f"{height} × {width}" for height, width in shapes)
        return f"{len(shapes)} shapes (height × width in px): {listed}"
    early = [f"{one.size_px} × {one.size_px} px up to step {one.until:,}" for one in plan.train.stages]
    return ", ".join([*early, f"then {full}"]) if early else full


def source_rows(record: RunRecord) -> Iterator[list[str]]:
    for name, one in record.sources.items():
        scored = record.plan.data.scored_name == f"data/{name}"
        yield [
            name + " (scored against)" * scored,
            in_words({key: value for key, value in public.settings(plain(one.data)).items() if key != "size_px"}),
            one.share,
            "" if one.count is None else f"{one.count:,}",
            "none" if one.images is None else f"{one.images:,}{epochs(one.images, one.count)}",
            one.identity,
        ]


def epochs(images: int, count: int | None) -> str:
    return f", {images / count:.3g} epochs" if count else ""


def captions(part: CaptionsPart) -> list[tuple[str, str]]:
    rows = [("Captions", described(part, part.common))]
    if part.keep_parts < 1:
        rows.append(
            ("Parts", f"each sentence or clause is kept with a probability of {part.keep_parts:.0%}, one at least")
        )
    if part.max_words is not None:
        rows.append(("Truncated", f"after {part.max_words:,} words"))
    if part.max_tokens is not None:
        rows.append(("Truncated", f"to {part.max_tokens:,} tokens"))
    return [*rows, ("Caption dropout", f"{part.dropout:.0%} of the samples read the empty caption")]


def described(part: Part, without: Container[str] = ()) -> str:
    """Return a part in its own words, or its settings where it has none."""
    own = {key: value for key, value in plain(part).items() if key not in without}
    return part.describe() or in_words(public.settings(own))


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
