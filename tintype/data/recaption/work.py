"""`tintype data recaption`: ask about each image of a store, keep the answers, and add them as a column.

Images are known by the hash of their bytes: copies are asked about once. What has been answered is in a journal, from
which the work resumes; the column is added when every image has its answer, or the reason why it has none.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tintype.config.strict import nearest
from tintype.data.recaption.answers import EMPTY, REFUSAL, judge
from tintype.data.recaption.asking import Asking, Captioner, Question, Reply
from tintype.data.recaption.journal import Entry, Journal, open_journal
from tintype.data.store.columns import add_column, check_name
from tintype.data.store.layout import CAPTION, AboutStore, AddedColumn, Split, Store, open_store
from tintype.data.store.texts import LONGEST, is_utf8
from tintype.errors import UserError
from tintype.runtime.files import Json
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked

_MOST_FAILURES = 10
"""Failed images in a row after which the server counts as failed."""
_FAILED = "failed"
_ADDED_UP = ("empty", "refusals", "cleaned", "shortened", "input_tokens", "output_tokens")


@dataclass(frozen=True)
class Choice:
    """The images to ask about."""

    split: Split | None = None
    only_empty: str | None = None
    """Ids of the images whose caption of this kind is empty; all others keep theirs."""
    limit: int | None = None
    """The first so many, as a trial: the column is not added before all are answered."""


@dataclass(frozen=True)
class Prices:
    """Prices of a million tokens, in any currency."""

    input: float | None = None
    output: float | None = None

    def cost(self, input_tokens: int, output_tokens: int) -> float | None:
        if self.input is None and self.output is None:
            return None
        return (input_tokens * (self.input or 0.0) + output_tokens * (self.output or 0.0)) / 1e6


@dataclass(frozen=True)
class Task:
    column: str
    asking: Asking
    choice: Choice = field(default_factory=Choice)
    tries: int = 3
    """Attempts per image, where an answer is not usable."""
    prices: Prices = field(default_factory=Prices)
    overwrite: bool = False
    anew: bool = False


@dataclass(frozen=True)
class Progress:
    done: int
    total: int
    """Different images."""
    new: int
    """Answered since the command was started."""
    aside: int
    retried: int
    input_tokens: int
    output_tokens: int
    cost: float | None


@dataclass(frozen=True)
class Outcome:
    progress: Progress
    seconds: float
    about: AboutStore | None
    """Present when the column was added."""
    examples: Mapping[str, str]
    """The first answers of a trial, by source."""
    already_done: bool = False


def recaption(
    path: Path,
    task: Task,
    captioner: Captioner,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Ask, resuming an earlier attempt. Return unfinished when a signal came, or at the limit of a trial."""
    store = open_store(path)
    _check_task(store, task)
    settings = {**captioner.identity(), **asdict(task.asking), "tries": task.tries}
    work = path / f".recaption-{task.column}"
    if (there := _done_before(store, task, settings, work)) is not None:
        return there
    began = time.monotonic()
    with locked(work, "take another --column"), open_journal(work / "journal.jsonl", settings, task.anew) as journal:
        keys = store.texts("sha256")
        asked = _asked_rows(store, task.choice)
        wanted = _first_of_each(keys, asked)
        tried = set(list(wanted)[: task.choice.limit])
        tally = _Tally(journal.entries.values(), tried, task.prices)
        on_progress(tally.progress())
        if open_ := {key: row for key, row in wanted.items() if key in tried and key not in journal.entries}:
            captioner.check()
            for entry in _answered(store, open_, task, captioner, interrupt):
                journal.add(entry)
                tally.add(entry)
                on_progress(tally.progress())
        about = None
        if all(key in journal.entries for key in wanted):
            about = _commit(store, task, settings, captioner.where, journal, asked, tally)
    if about is not None:
        shutil.rmtree(work)
    elif task.choice.limit is None and interrupt.signal is None:
        raise AssertionError("images were left without an answer and without a reason")
    examples = {entry.source: entry.caption or f"({entry.aside})" for entry in list(journal.entries.values())[:3]}
    return Outcome(tally.progress(), time.monotonic() - began, about, examples if about is None else {})


def _check_task(store: Store, task: Task) -> None:
    check_name(task.column)
    if task.column in store.about.imported:
        raise UserError(
            f"--column {task.column}: {store.path} has captions of this name from its import, which are not written "
            "over; take another name"
        )
    if task.column in store.attributes:
        raise UserError(f"--column {task.column}: this is an attribute of {store.path}; take another name")
    empty = task.choice.only_empty
    if empty is not None and empty not in store.captions:
        raise UserError(f"--only-empty {empty}: {store.path} has no such captions; {nearest(empty, store.captions)}")
    if not _asked_rows(store, task.choice):
        raise UserError(f"{store.path} has no image that is to be asked about: see --split and --only-empty")


def _done_before(store: Store, task: Task, settings: Mapping[str, Json], work: Path) -> Outcome | None:
    """Return the outcome where this very work was done; refuse a column of the same name by another work."""
    added = store.about.find_added(task.column)
    if added is None or task.overwrite:
        return None
    same = added.made_by.get("settings") == dict(settings) and added.made_by.get("choice") == _choice_of(task)
    if task.anew or not same:
        raise UserError(
            f"--column {task.column}: {store.path} has these captions already, {_words(added)}. Take another name, or "
            "replace them with --overwrite"
        )
    shutil.rmtree(work, ignore_errors=True)  # what a kill just before the end has left
    count = int(added.made_by["counts"]["pictures"])
    return Outcome(Progress(count, count, 0, 0, 0, 0, 0, None), 0.0, store.about, {}, already_done=True)


def _words(added: AddedColumn) -> str:
    return f"written by {added.made_by.get('settings', {}).get('model', '?')} on {added.made_by.get('date', '?')}"


def _choice_of(task: Task) -> dict[str, str | None]:
    return {"split": task.choice.split, "only_empty": task.choice.only_empty}


def _asked_rows(store: Store, choice: Choice) -> list[int]:
    rows: list[int] = list(range(len(store))) if choice.split is None else store.rows(choice.split).tolist()
    if choice.only_empty is not None:
        texts = store.texts(CAPTION + choice.only_empty)
        rows = [row for row in rows if not texts[row].strip()]
    return rows


def _first_of_each(keys: list[str], rows: list[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found.setdefault(keys[row], row)
    return found


def _answered(
    store: Store,
    open_: Mapping[str, int],
    task: Task,
    captioner: Captioner,
    interrupt: Interrupt,
) -> Iterator[Entry]:
    """Yield the outcome for each image, when no more is asked about it."""
    fresh = iter(open_.items())
    again: deque[Question] = deque()
    drafts: dict[str, Entry] = {}
    failed: list[Entry] = []

    def pull() -> Question | None:
        if again:
            return again.popleft()
        key, row = next(fresh, (None, 0))
        return None if key is None else Question(key, store.encoded(row))

    for reply in captioner.replies(pull, interrupt):
        question = reply.question
        source = store.about_row(open_[question.key])["source"]
        draft = drafts.pop(question.key, Entry(key=question.key, source=source, caption="", tries=0))
        entry = _take_in(draft, reply)
        if reply.failure is not None:
            failed.append(entry)
            if len(failed) >= _MOST_FAILURES:
                raise _fails(failed)
            continue
        if entry.aside is not None and entry.tries < task.tries:
            drafts[question.key] = entry
            again.append(Question(question.key, question.image, question.attempt + 1))
            continue
        yield entry
        yield from failed  # the server answers other images, so that it was these
        failed.clear()
    if failed and interrupt.signal is None:
        if not captioner.alive():
            raise _fails(failed)
        yield from failed


def _take_in(draft: Entry, reply: Reply) -> Entry:
    judged = judge(reply.text, reply.cut_off, reply.refused)
    changed = judged.cleaned or judged.shortened or judged.problem is not None
    return draft.model_copy(
        update={
            "caption": judged.caption,
            "aside": f"{_FAILED}: {reply.failure}" if reply.failure else judged.problem,
            "answer": reply.text[:LONGEST] if changed and reply.text and is_utf8(reply.text) else None,
            "cleaned": judged.cleaned,
            "shortened": judged.shortened,
            "tries": draft.tries + 1,
            "empty": draft.empty + (reply.failure is None and judged.problem == EMPTY),
            "refusals": draft.refusals + (judged.problem == REFUSAL),
            "input_tokens": draft.input_tokens + reply.input_tokens,
            "output_tokens": draft.output_tokens + reply.output_tokens,
        }
    )


def _fails(failed: list[Entry]) -> UserError:
    last = failed[-1]
    return UserError(
        f"{last.source}: {(last.aside or '').removeprefix(f'{_FAILED}: ')}. {len(failed)} images in a row had no "
        "answer. All answers so far are kept; look at the server, then run the same command to resume"
    )


class _Tally:
    """Counts the outcomes for the wanted images."""

    def __init__(self, entries: Iterable[Entry], wanted: set[str], prices: Prices) -> None:
        self._wanted, self._prices = wanted, prices
        self.counts = Counter(dict.fromkeys(("pictures", "set_aside", "retried", *_ADDED_UP), 0))
        self.reasons: Counter[str] = Counter()
        for entry in entries:
            if entry.key in wanted:
                self.add(entry)
        self._first = self.counts["pictures"]

    def add(self, entry: Entry) -> None:
        self.counts["pictures"] += 1
        for name in _ADDED_UP:
            self.counts[name] += getattr(entry, name)
        self.counts["retried"] += entry.tries > 1
        if entry.aside is not None:
            self.counts["set_aside"] += 1
            self.reasons[entry.aside.partition(":")[0]] += 1

    @property
    def cost(self) -> float | None:
        return self._prices.cost(self.counts["input_tokens"], self.counts["output_tokens"])

    def progress(self) -> Progress:
        counts = self.counts
        return Progress(
            counts["pictures"],
            len(self._wanted),
            counts["pictures"] - self._first,
            counts["set_aside"],
            counts["retried"],
            counts["input_tokens"],
            counts["output_tokens"],
            self.cost,
        )


def _commit(
    store: Store,
    task: Task,
    settings: Mapping[str, Json],
    where: str,
    journal: Journal,
    asked: list[int],
    tally: _Tally,
) -> AboutStore:
    keys = store.texts("sha256")
    base = task.choice.only_empty
    texts = [""] * len(store) if base is None else store.texts(CAPTION + base)
    for row in asked:
        texts[row] = journal.entries[keys[row]].caption
    made_by = {
        "settings": dict(settings),
        "choice": _choice_of(task),
        "where": where,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": dict(tally.counts),
        "set_aside": dict(tally.reasons),
        "not_asked": len(store) - len(asked),
        "empty_captions": sum(not text for text in texts),
        "cost": tally.cost,
    }
    return add_column(store.path, task.column, texts, made_by, journal.content())
