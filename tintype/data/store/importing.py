"""`tintype data import`: store the items of an importer.

All files are written into a temporary folder, which is renamed when it is complete: a store is complete or does not
exist. Progress is saved shard by shard, so an import that was stopped or ran out of space resumes with the same
command.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from tintype.config.strict import nearest
from tintype.data.decoding.threads import MOST_PIXELS_AT_ONCE
from tintype.data.image_file import LIMITS, Limits, pixels_stated
from tintype.data.image_sets import map_prefetched
from tintype.data.importers import open_importer
from tintype.data.importers.importer import Importer, Item, Listed, Reading
from tintype.data.store.attributes import Attribute, MisfitError, Settled, Value, check_names, fit, settle
from tintype.data.store.encode import Prepared, Refused, Sizing, prepare
from tintype.data.store.layout import ABOUT, SPLITS, AboutStore, Split, is_store, open_store, refuse_built_in
from tintype.data.store.texts import unfit
from tintype.data.store.writer import Writer, has_kept
from tintype.errors import StoppedError, UserError
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.wording import again, option

_SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("eval", "evaluation", "test", "val", "valid", "validation", "dev"), "eval"),
}

_SHOWN_REASONS = 3
Pairs: TypeAlias = Mapping[str, str] | Sequence[str]


@dataclass(frozen=True)
class ImportOptions:
    captions: Mapping[str, str] = field(default_factory=dict)
    """Kinds of captions and their columns; by default the importer's usual ones."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    split_column: str | None = None
    """Column that holds the split. By default, the image's hash decides."""
    splits: Mapping[str, Split] = field(default_factory=dict)
    """Further values of `split_column`, and their splits."""
    eval_share: float = 0.1
    limit: int | None = None
    sizing: Sizing = field(default_factory=Sizing)
    limits: Limits = LIMITS
    most_pixels_at_once: int = MOST_PIXELS_AT_ONCE
    """Most pixels that all threads decode at the same time."""
    most_bad: float = 0.05
    """Largest fraction of bad records. With a larger fraction, the import stops with an error."""
    follow_links: bool = False
    preset: str | None = None
    """Name of the preset, if the source is its public set."""
    format: str | None = None
    """Format of the source; by default it is detected from the files."""
    listed: Listed | None = None


@dataclass(frozen=True)
class Progress:
    done: int
    total: int
    quarantined: int


@dataclass(frozen=True)
class Imported:
    """A store that was imported."""

    done: int
    """Number of records of the source, stored or set aside."""
    about: AboutStore
    already_done: bool = False
    """Whether an earlier call made this store, so that this call imported nothing."""


def import_images(
    source: Path,
    out: Path,
    options: ImportOptions,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Imported:
    """Store the images of a source, resuming an earlier attempt."""
    importer = open_importer(source, Reading(options.limits, options.follow_links, options.format, options.listed))
    captions = _captions(importer, options.captions, source)
    attributes = _attributes(importer, options.attributes, captions, source)
    if options.split_column is not None:
        given = option("split-column", options.split_column)
        _check_column(given, options.split_column, importer.columns, f"{source} has no text column")
    total = importer.count if options.limit is None else min(options.limit, importer.count)
    request = _request(source, importer, captions, attributes, options)
    if is_store(out):
        return _already(out, request)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"{out} contains other files and is not a store", f"choose an empty or new folder for {option('out')}"
        )
    work = out.with_name(f".{out.name}.importing")
    with locked(work), _tidied(work):
        writer = Writer(work, request)
        sorter, written = _Sorter(captions, attributes, options, writer), writer.written
        taken = [*captions.values(), *(one.column for one in attributes.values())]
        columns = dict.fromkeys([*taken, *([options.split_column] if options.split_column else [])])
        items = islice(importer.items(columns, written.items), total - written.items)
        on_progress(Progress(written.items, total, written.quarantined))
        _check_bad(writer, options.most_bad, total)
        for item, image in _prepared(items, options):
            sorter.put(item, image)
            on_progress(Progress(written.items, total, written.quarantined))
            _check_bad(writer, options.most_bad, total)
            if interrupt.signal is not None:
                break
        writer.keep()
        if written.items < total:
            raise StoppedError(f"{written.items:,} records are kept", f"{again()} to resume")
        return Imported(written.items, writer.finish(out))


@contextmanager
def _tidied(work: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        if not has_kept(work):
            shutil.rmtree(work, ignore_errors=True)
        raise


def _prepared(items: Iterator[Item], options: ImportOptions) -> Iterator[tuple[Item, Prepared | Refused]]:
    def cost(item: Item) -> int:
        """Return the larger of an item's pixels and bytes, since an image with few pixels may be a large file."""
        content = item.content or b""
        return max(pixels_stated(content), len(content))

    return map_prefetched(
        lambda item: (item, prepare(item, options.sizing, options.limits)), items, cost, options.most_pixels_at_once
    )


def _check_bad(writer: Writer, most_bad: float, total: int) -> None:
    """Raise as soon as too many records are bad. Progress is saved for a rerun."""
    bad, done = writer.written.bad, writer.written.items
    if bad <= most_bad * total:
        return
    writer.keep()
    share = min(100, -(-bad * 100 // done // 10) * 10 or 10)  # the share so far in per cent, rounded up to tens
    reasons = "; ".join(writer.first_bad(_SHOWN_REASONS))
    raise UserError(
        f"{bad:,} of the first {done:,} records were rejected, which is more than "
        f"{option('most-bad', f'{100 * most_bad:.3g}%')} of all {total:,}. The first: {reasons}. "
        f"{writer.quarantine} lists all rejected records so far. No store was made",
        f"to import the other records, {again()} with a larger share, such as "
        f"{option('most-bad', f'{share}%')}; the import resumes. If the source is wrong, fix it, remove "
        f"{writer.quarantine.parent}, and import again",
    )


class _RefusedError(Exception):
    """A record that cannot be stored; the message gives the reason."""


@dataclass(frozen=True)
class _Sorter:
    """Puts items into the store or the quarantine. Copies of an image are never in different splits."""

    captions: Mapping[str, str]
    attributes: Mapping[str, Settled]
    options: ImportOptions
    writer: Writer

    def put(self, item: Item, image: Prepared | Refused) -> None:
        if isinstance(image, Refused):
            self.writer.refuse(item.source, image.reason, image.bad)
            return
        try:
            texts, known = self._texts(item), self._fitted(item)
            self.writer.add(image, item.source, self._split_of(item, image), texts, known)
        except _RefusedError as reason:
            self.writer.refuse(item.source, str(reason))

    def _texts(self, item: Item) -> dict[str, str]:
        texts = {name: _text(item, column) for name, column in self.captions.items()}
        if lacking := [f"{name} (column {self.captions[name]})" for name, text in texts.items() if not text]:
            raise _RefusedError(f"the record has no caption {', '.join(lacking)}")
        for name, text in texts.items():
            if reason := unfit(text):
                raise _RefusedError(f"the caption {name} (column {self.captions[name]}) {reason}")
        return texts

    def _fitted(self, item: Item) -> dict[str, Value]:
        found = {}
        for name, asked in self.attributes.items():
            try:
                found[name] = fit(item.values[asked.column], asked.kind)
            except MisfitError as value:
                its = f"the attribute {name} (column {asked.column})"
                raise _RefusedError(f"{its} is not of the kind {asked.kind}: {value}") from None
        return found

    def _split_of(self, item: Item, image: Prepared) -> Split:
        split = self._asked_split(item, image)
        there, first = self.writer.first_seen.setdefault(image.pixels, (split, item.source))
        if there != split:
            raise _RefusedError(f"it is the same image as {first}, which is in the split {there}, not {split}")
        return split

    def _asked_split(self, item: Item, image: Prepared) -> Split:
        column = self.options.split_column
        if column is None:
            return "eval" if int(image.pixels[:16], 16) < self.options.eval_share * 2**64 else "train"
        value = _text(item, column)
        if not value:
            raise _RefusedError(f"the column {column}, which states the split, is empty")
        names = _SPLIT_NAMES | {name.lower(): split for name, split in self.options.splits.items()}
        if value.lower() not in names:
            raise UserError(
                f"{item.source}: the column {column} has the value '{value}', which is not a known name of a "
                f"split (known: {', '.join(_SPLIT_NAMES)})",
                f"declare its split: {option('split', f'{value}=train')} or {option('split', f'{value}=eval')}",
            )
        return names[value.lower()]


def _text(item: Item, column: str) -> str:
    value = item.values[column]
    return value.strip() if isinstance(value, str) else ""


def _captions(importer: Importer, asked: Mapping[str, str], source: Path) -> Mapping[str, str]:
    captions = asked or importer.usual_captions
    if not captions:
        raise UserError(f"{source}: {importer.no_captions}")
    for name, column in captions.items():
        refuse_built_in(name, "caption", f"={column}")
        given = option("caption", f"{name}={column}")
        _check_column(given, column, importer.columns, f"{source} has no text column")
    return captions


def _attributes(
    importer: Importer, asked: Mapping[str, Attribute], captions: Mapping[str, str], source: Path
) -> dict[str, Settled]:
    check_names(asked, captions)
    hint = ". After the column may stand what it holds: NAME=COLUMN:float, or :text, :int, :bool"
    for name, one in asked.items():
        problem = f"{source} has no column of texts, numbers or booleans"
        _check_column(option("attribute", f"{name}={one.column}"), one.column, importer.kinds, problem, hint)
    return {name: settle(name, one, importer.kinds[one.column]) for name, one in asked.items()}


def _check_column(given: str, column: str, columns: Collection[str], problem: str, hint: str = "") -> None:
    if column not in columns:
        has = f"it has {', '.join(columns)}" if len(columns) <= 12 else nearest(column, columns)
        raise UserError(f"{given}: {problem} '{column}'", f"{has}{hint}")


def _request(
    source: Path,
    importer: Importer,
    captions: Mapping[str, str],
    attributes: Mapping[str, Settled],
    options: ImportOptions,
) -> dict[str, Any]:
    """Return all settings that determine the stored content."""
    files = json.dumps(importer.fingerprint)
    asked = {**asdict(options), "captions": dict(captions), "splits": dict(options.splits)}
    asked["attributes"] = {name: asdict(one) for name, one in attributes.items()}
    for name in ("most_pixels_at_once", "most_bad", "follow_links"):  # do not affect the stored content
        del asked[name]
    return {
        "source": str(source.resolve()) if source.exists() else str(source),
        "source_files_sha256": hashlib.sha256(files.encode()).hexdigest(),
        **asked,
    }


def _already(out: Path, request: Mapping[str, Any]) -> Imported:
    about = open_store(out).about
    if about.made_from != request:
        raise UserError(
            f"{out} is a store imported from another source or with other options ({ABOUT} records them)",
            f"choose another {option('out')}",
        )
    return Imported(sum(about.counts.values()) + about.quarantined, about, already_done=True)


def read_pairs(of: str, values: Pairs, example: str) -> dict[str, str]:
    """Parse the `NAME=VALUE` of an option that can be given several times. A mapping is taken as it is."""
    if isinstance(values, Mapping):
        return dict(values)
    found: dict[str, str] = {}
    for value in [values] if isinstance(values, str) else values:
        name, equals, other = (part.strip() for part in value.partition("="))
        if not equals or not name or not other:
            raise UserError(
                f"{option(of, value)} does not have the form NAME=VALUE", f"write it as {option(of, example)}"
            )
        if name in found:
            raise UserError(f"{option(of)}: {name} is given twice", "give it once")
        found[name] = other
    return found


def read_share(of: str, value: str) -> float:
    """Parse a share such as `5%` or `0.05`."""
    number = value.strip().removesuffix("%")
    try:
        share = float(number) / (100 if value.strip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"{option(of, value)} is not a share", "give a share from 0% to 100%, such as 5% or 0.05")
    return share


def read_splits(values: Pairs) -> dict[str, Split]:
    found: dict[str, Split] = {}
    for name, split in read_pairs("split", values, "extra=train").items():
        if split not in SPLITS:
            raise UserError(
                f"{option('split', f'{name}={split}')}: there is no split '{split}'", f"valid: {', '.join(SPLITS)}"
            )
        found[name] = "train" if split == "train" else "eval"
    return found
