"""`tintype data inspect`: a store's content and problems, as plain numbers and words.

N: inspected records. Percentiles and shares refer to these records, and not to records that `where` or `skip` leave
out. The last bin of a histogram also holds the highest half per cent of values, however large they are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tintype
from tintype.data.order import ids_at
from tintype.data.store import inspect_result as results
from tintype.data.store.duplicates import Group, find_groups
from tintype.data.store.fingerprints import FORMATS, MODES, look_at
from tintype.data.store.layout import ATTRIBUTE, CAPTION, SPLITS, Store
from tintype.data.store.problems import LONG_WORDS, TINY_PX, find_problems, strange_text
from tintype.data.store.selection import REPEATS, Selection
from tintype.data.store.texts import shortened
from tintype.data.store.where import word_counts
from tintype.errors import UserError, as_user_error
from tintype.page.svg import linear_ticks
from tintype.runtime.files import write_text
from tintype.wording import option

_SHOWN_CAPTIONS, _SHOWN_NAMES = 5, 12
_SIZES_PX = (32, 64, 128, 192, 256, 512, 768, 1024)
_ASPECT_STEP = 0.25
"""Width of a bin of log2(width / height)."""
_ASPECT_END = 2.0
_BINS, _FARTHEST = 24, 1e300
_NUMBER = re.compile(r"\d[\d,.]*")
_MISFIT = re.compile(r"( is not of the kind \w+): .*", re.DOTALL)
_ANOTHER = re.compile(r"^it is the same (?:image|picture) as .*, which is in", re.DOTALL)


@dataclass(frozen=True)
class Asked:
    most_bits: int = 4
    """Largest distance in bits, of 64, between the hashes of nearly equal images."""
    samples: int = 24
    seed: int = 0


@dataclass(frozen=True)
class Inspection:
    """The numbers of a store, and its groups of equal or nearly equal images."""

    store: Store
    result: results.Result
    groups: list[Group]


def inspect_store(
    store: Store,
    selection: Selection,
    asked: Asked,
    stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Inspection:
    """Inspect the selected records. The looks of images are cached, also those of a stopped call."""
    rows = np.flatnonzero(selection.kept)
    if not len(rows):
        raise UserError(
            f"no record of {store.path} remains: of {len(store):,} records, {option('where')} excludes "
            f"{selection.by_where:,} and {option('skip')} excludes {selection.by_skip:,}"
        )
    looks = look_at(store, rows, stopped, on_progress)
    is_eval = np.zeros(len(store), dtype=np.bool_)
    is_eval[store.rows("eval")] = True
    pixels = np.array(store.table["pixels"].to_pylist(), dtype="U64")
    groups = find_groups(rows, looks, pixels, is_eval, asked.most_bits)
    samples = ids_at(asked.seed, 0, min(asked.samples, len(rows)), len(rows)).numpy()
    result: results.Result = {
        "store": str(store.path),
        "identity": store.identity,
        "tintype": tintype.__version__,
        "records": len(rows),
        "of": len(store),
        "left_out": {"where": selection.by_where, "skip": selection.by_skip, "note": selection.note},
        "splits": {split: len(selection.rows(store, split)) for split in SPLITS},
        "origins": _origins(store, rows),
        "set_aside": {"records": store.about.quarantined, "reasons": _set_aside(store)},
        "sizes": _sizes(store, rows),
        "aspects": _aspects(store, rows),
        "pixels": _counted(looks.mode[rows], MODES),
        "formats": _counted(looks.format[rows], FORMATS),
        "captions": {name: _captions(store, name, rows) for name in store.captions},
        "attributes": {name: _attribute(store, name, rows) for name in store.attributes},
        "duplicates": _duplicates(store, groups, is_eval, asked.most_bits),
        "samples": [_record(store, int(row)) for row in rows[samples]],
        "problems": [],
    }
    result["problems"] = find_problems(result)
    return Inspection(store, result, groups)


def _record(store: Store, row: int) -> results.Sample:
    width, height = (int(side[row]) for side in store.sizes())
    about = store.about_row(row)
    return {
        "split": about["split"],
        "sha256": about["sha256"],
        "source": about["source"],
        "row": row,
        "width": width,
        "height": height,
        "captions": store.captions_of(row),
        "attributes": store.attributes_of(row),
    }


def _origins(store: Store, rows: NDArray[np.int64]) -> results.Counts:
    origins = map(_origin, store.table["source"].take(rows).to_pylist())
    return [{"name": name, "records": count} for name, count in _most_common(origins)]


def _origin(source: str) -> str:
    """Return a.parquet for `a.parquet, row 3`, 0.tar for `0.tar:x.png`, and train/ for `train/x.png`."""
    if found := re.match(r"(.*?), (?:row|sample|line) \d+", source):
        return found[1]
    if ".tar:" in source:
        return source.partition(".tar:")[0] + ".tar"
    return f"{source.partition('/')[0]}/" if "/" in source else "the folder itself"


def _set_aside(store: Store) -> results.Counts:
    """Count the quarantined records by reason, most frequent first.

    Numbers in a reason become `N`, and the record's source becomes `it`, so that equal problems are counted together.
    """
    counts: Counter[str] = Counter()
    for said in store.quarantine():
        reason = _NUMBER.sub("N", _MISFIT.sub(r"\1", said["reason"].replace(said["source"], "it", 1)))
        counts[_ANOTHER.sub("it is the same image as another, which is in", shortened(reason, 120))] += 1
    return [{"reason": reason, "records": count} for reason, count in counts.most_common()]


def _spread(values: NDArray[np.float64] | NDArray[np.int32] | NDArray[np.int64]) -> results.Spread:
    return {
        "min": float(values.min()),
        "median": float(np.median(values)),
        "max": float(values.max()),
        "mean": float(values.mean()),
    }


def _with_histogram(values: NDArray[np.int32] | NDArray[np.int64]) -> results.SpreadAndHistogram:
    return {**_spread(values), "histogram": whole_histogram(values)}


def whole_histogram(values: NDArray[np.generic]) -> results.Histogram:
    """Count whole numbers in bins with round whole edges."""
    numbers = values.astype(np.float64)
    low, high = float(numbers.min()), float(np.percentile(numbers, 99.5))
    ticks = linear_ticks(low, max(high, low + 1), _BINS)
    step = max(1, round(ticks[1] - ticks[0])) if len(ticks) > 1 else 1
    return _binned(numbers, [index * step for index in range(math.floor(low / step), math.floor(high / step) + 2)])


def histogram(values: NDArray[np.float64]) -> results.Histogram | None:
    """Count numbers in bins; return None if the numbers lie too close together or too far apart for a histogram."""
    if np.abs(values).max() > _FARTHEST:
        return None
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return None
    ticks = linear_ticks(low, high, _BINS)
    step = ticks[1] - ticks[0]
    indices = range(math.floor(low / step), math.floor(high / step) + 2)
    return _binned(values, [float(f"{index * step:.12g}") for index in indices])


def _binned(values: NDArray[np.float64], edges: list[int] | list[float]) -> results.Histogram:
    index = np.clip(np.searchsorted(np.array(edges, np.float64), values, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(index, minlength=len(edges) - 1)
    return {"edges": edges, "counts": counts.tolist(), "open": bool(values.max() >= edges[-1])}


def _sizes(store: Store, rows: NDArray[np.int64]) -> results.Sizes:
    width, height = (side[rows] for side in store.sizes())
    short, long = np.minimum(width, height), np.maximum(width, height)
    return {
        "width": _spread(width),
        "height": _spread(height),
        "short": _with_histogram(short),
        "long": _with_histogram(long),
        "tiny": int((short < TINY_PX).sum()),
        "at_least": [{"px": px, "records": int((short >= px).sum())} for px in _SIZES_PX if px <= short.max()],
        "most_common": [
            {"width": int(size[0]), "height": int(size[1]), "records": count}
            for size, count in Counter(zip(width.tolist(), height.tolist(), strict=True)).most_common(_SHOWN_CAPTIONS)
        ],
        "bytes": sum(shard.bytes for shard in store.about.shards),
    }


def _aspects(store: Store, rows: NDArray[np.int64]) -> results.Aspects:
    """Return statistics of width / height. Bins are centred on round values, so that squares lie inside one bin."""
    width, height = (side[rows].astype(np.float64) for side in store.sizes())
    logs = np.log2(width / height)
    middles = np.arange(-_ASPECT_END, _ASPECT_END + _ASPECT_STEP / 2, _ASPECT_STEP)
    index = np.rint(np.clip(logs, -_ASPECT_END, _ASPECT_END) / _ASPECT_STEP).astype(np.int64)
    counts = np.bincount(index + int(_ASPECT_END / _ASPECT_STEP), minlength=len(middles))
    extreme = np.maximum(width / height, height / width)
    return {
        **_spread(width / height),
        "histogram": {"log2_middles": middles.tolist(), "counts": counts.tolist()},
        "above_3": int((extreme > 3).sum()),
        "example": store.about_row(int(rows[extreme.argmax()]))["source"],
    }


def _captions(store: Store, name: str, rows: NDArray[np.int64]) -> results.Captions:
    column = store.table[CAPTION + name].take(rows).fill_null("")
    words = word_counts(column).to_numpy().astype(np.int64)
    texts: list[str] = column.to_pylist()
    counts = Counter(texts)
    strange = [(row, what) for row, text in zip(rows.tolist(), texts, strict=True) if (what := strange_text(text))]
    often = [(text, count) for text, count in counts.most_common(_SHOWN_CAPTIONS) if count > 1 and text]
    return {
        "words": _with_histogram(words),
        "empty": int((words == 0).sum()),
        "distinct": len(counts),
        "long": int((words > LONG_WORDS).sum()),
        "shared": sum(count for text, count in counts.items() if count > 1 and text),
        "most_common": [{"text": text, "records": count} for text, count in often],
        "strange": dict(Counter(what for _, what in strange)),
        "strange_example": store.captions_of(strange[0][0])[name] if strange else None,
    }


def _attribute(store: Store, name: str, rows: NDArray[np.int64]) -> results.AttributeValues:
    column = store.table[ATTRIBUTE + name].take(rows)
    kind, there = store.attributes[name], column.drop_null()
    about: results.AttributeValues = {
        "kind": kind,
        "missing": column.null_count,
        "distinct": len(there.unique()),
        "spread": None,
        "histogram": None,
        "most_common": [],
    }
    if kind not in ("int", "float"):
        words = (str(value).lower() if isinstance(value, bool) else value for value in there.to_pylist())
        about["most_common"] = [{"value": value, "records": count} for value, count in _most_common(words)]
    elif len(values := there.to_numpy()):
        numbers = values.astype(np.float64)
        median = float(np.median(numbers / 2)) * 2
        about["spread"] = {"min": values.min().item(), "median": median, "max": values.max().item()}
        about["histogram"] = whole_histogram(numbers) if kind == "int" else histogram(numbers)
    return about


def _most_common(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return the most common names with their counts, and the rest as one entry."""
    counts = Counter(names)
    shown = counts.most_common(_SHOWN_NAMES)
    rest = counts.total() - sum(count for _, count in shown)
    return [*shown, (f"{len(counts) - len(shown):,} others", rest)] if rest else shown


def _counted(index_N: NDArray[np.uint8], names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(index_N, minlength=len(names)).tolist()
    return dict(sorted(((n, c) for n, c in zip(names, counts, strict=True) if c), key=lambda one: -one[1]))


def _duplicates(store: Store, groups: list[Group], is_eval: NDArray[np.bool_], most_bits: int) -> results.Duplicates:
    leaks = [group for group in groups if group.leaks]
    leaking = sum(int((~is_eval[list(group.rows)]).sum()) for group in leaks)
    return {
        "most_bits": most_bits,
        "groups": len(groups),
        "exact": sum(len(group.rows) - group.distinct for group in groups),
        "near": sum(group.distinct - 1 for group in groups),
        "leaking_groups": len(leaks),
        "leaking": leaking,
        "first": [[store.about_row(row) for row in group.rows[:_SHOWN_NAMES]] for group in groups[:_SHOWN_NAMES]],
    }


def skip_lines(store: Store, groups: list[Group]) -> list[str]:
    """Return a skip list of all but the first row of each group. One `repeats` line covers a file's exact copies."""
    lines: dict[str, str] = {}
    for group in groups:
        first = store.about_row(group.rows[0])
        for row in group.rows[1:]:
            about = store.about_row(row)
            entry = f"{about['sha256']} {REPEATS}" if about["sha256"] == first["sha256"] else about["sha256"]
            remark = f"{about['split']}, {about['source']}: like {first['split']}, {first['source']}"
            lines.setdefault(entry, f"{entry}  # {_printable(remark)}")
    return list(lines.values())


def _printable(text: str) -> str:
    """Replace unprintable characters, so that the text stays on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def write_skip_list(path: Path, store: Store, groups: list[Group]) -> int:
    lines = skip_lines(store, groups)
    head = [f"# Copies in the store {store.identity}; use it with data.skip in a plan."]
    with as_user_error(OSError, f"cannot write {path}", f"choose another {option('write-skip')}"):
        write_text(path, "\n".join([*head, *lines]) + "\n")
    return len(lines)
