"""Implement `tintype data recaption`.

Ask about each image of a store, keep the answers, and add them as a caption column. Images are identified by the hash
of their bytes, so the model is asked only once about identical files. A journal holds the answers, and a stopped
command resumes from the journal. The column is added once every image has an answer, or a reason why it has no answer.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from tintype.config.strict import nearest
from tintype.data.recaption.answers import EMPTY, REFUSAL, judge
from tintype.data.recaption.asking import Asking, Captioner, Question, Reply
from tintype.data.recaption.journal import Entry, Journal, open_journal
from tintype.data.store.changes import add_column, check_column
from tintype.data.store.layout import CAPTION, AboutStore, Split, Store, open_store
from tintype.data.store.texts import LONGEST, is_utf8
from tintype.errors import UserError
from tintype.runtime.files import Json
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.wording import again, option

_MOST_FAILURES = 10
"""If this many images fail one after another, the command stops because of a failed server."""
_FAILED = "failed"
_ADDED_UP = ("empty", "refusals", "cleaned", "shortened", "input_tokens", "output_tokens")


@dataclass(frozen=True)
class Task:
    column: str
    asking: Asking
    tries: int = 3
    """Number of attempts per image if answers are not usable."""
    split: Split | None = None
    """Split whose images get captions."""
    only_empty: str | None = None
    """A kind of caption. Only images without a caption of this kind get questions; other images keep their caption."""
    limit: int | None = None
    """Maximum number of images, for a trial. The column is added only when all images have answers."""
    price_input: float | None = None
    """Price of a million prompt tokens, in any currency."""
    price_output: float | None = None
    overwrite: bool = False
    anew: bool = False


class Progress:
    def __init__(self, task: Task, total: int, before: Iterable[Entry]) -> None:
        self.total = total
        """Number of distinct images."""
        self.counts = Counter(dict.fromkeys(("pictures", "set_aside", "retried", *_ADDED_UP), 0))
        self.reasons: Counter[str] = Counter()
        self._task = task
        for entry in before:
            self.add(entry)
        self._first = self.done

    def add(self, entry: Entry) -> None:
        self.counts["pictures"] += 1
        for name in _ADDED_UP:
            self.counts[name] += getattr(entry, name)
        self.counts["retried"] += entry.tries > 1
        if entry.aside is not None:
            self.counts["set_aside"] += 1
            self.reasons[entry.aside.partition(":")[0]] += 1

    @property
    def done(self) -> int:
        return self.counts["pictures"]

    @property
    def new(self) -> int:
        return self.done - self._first

    @property
    def cost(self) -> float | None:
        prices = {"input_tokens": self._task.price_input, "output_tokens": self._task.price_output}
        if not any(price is not None for price in prices.values()):
            return None
        return sum(self.counts[name] * (price or 0.0) for name, price in prices.items()) / 1e6


@dataclass(frozen=True)
class Recaptioned:
    """Result of recaptioning a store."""

    column: str
    about: AboutStore | None
    """The content of `store.json` after the column was added; None before the column is added."""
    done: int = 0
    """Number of images with an answer, or with a reason why they have none."""
    new: int = 0
    """Number of images in `done` that this call has finished."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counts of tokens, empty answers, refusals, changed answers, repeated questions, and images set aside, by name."""
    cost: float | None = None
    """Cost of the tokens, in the currency of the given prices; None if no price was given."""
    seconds: float = 0.0
    examples: dict[str, str] = field(default_factory=dict)
    """Examples of captions, by source, as long as the column is not added."""
    already_done: bool = False
    """Whether an earlier call added the column."""


def recaption(
    path: Path,
    task: Task,
    captioner: Captioner,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Recaptioned:
    """Ask for all missing answers. Resume an earlier attempt. Return early on a signal, or at the limit of a trial."""
    store = open_store(path)
    _check_task(store, task)
    settings = {**captioner.identity(), **asdict(task.asking), "tries": task.tries}
    origin = {"settings": settings, "choice": {"split": task.split, "only_empty": task.only_empty}}
    work = path / f".recaption-{task.column}"
    if _done_before(store, task, origin, work):
        return Recaptioned(task.column, store.about, already_done=True)
    began = time.monotonic()
    with (
        locked(work, f"take another {option('column')}"),
        open_journal(work / "journal.jsonl", settings, task.anew) as journal,
    ):
        keys = store.texts("sha256")
        asked = _asked_rows(store, task)
        wanted: dict[str, int] = {}
        for row in asked:
            wanted.setdefault(keys[row], row)
        tried = dict(islice(wanted.items(), task.limit))
        progress = Progress(task, len(tried), (entry for key, entry in journal.entries.items() if key in tried))
        on_progress(progress)
        if open_ := {key: row for key, row in tried.items() if key not in journal.entries}:
            captioner.check()
            for entry in _answered(store, open_, task, captioner, interrupt):
                journal.add(entry)
                progress.add(entry)
                on_progress(progress)
        about = None
        if all(key in journal.entries for key in wanted):
            about = _commit(store, task, {**origin, "where": captioner.where}, journal, asked, progress)
    if about is not None:
        shutil.rmtree(work)
    elif task.limit is None and interrupt.signal is None:
        raise AssertionError("images have neither an answer nor a reason why there is none")
    examples = {entry.source: entry.caption or f"({entry.aside})" for entry in list(journal.entries.values())[:3]}
    return Recaptioned(
        task.column,
        about,
        progress.done,
        progress.new,
        dict(progress.counts),
        progress.cost,
        time.monotonic() - began,
        examples if about is None else {},
    )


def _check_task(store: Store, task: Task) -> None:
    check_column(store, task.column)
    empty = task.only_empty
    if empty is not None and empty not in store.captions:
        raise UserError(
            f"{option('only-empty', empty)}: {store.path} has no caption column with this name",
            nearest(empty, store.captions),
        )
    if not _asked_rows(store, task):
        raise UserError(
            f"{store.path} has no images to caption",
            f"{option('split')} and {option('only-empty')} decide which images are captioned",
        )


def _done_before(store: Store, task: Task, origin: Mapping[str, Json], work: Path) -> bool:
    """Return whether an earlier call added this column with the same settings. Raise if its settings differ."""
    added = store.about.find_added(task.column)
    if added is None or task.overwrite:
        return False
    made_by = added.made_by
    if task.anew or any(made_by.get(key) != value for key, value in origin.items()):
        model, date = made_by.get("settings", {}).get("model", "?"), made_by.get("date", "?")
        raise UserError(
            f"{option('column', task.column)}: {store.path} already has captions with this name, written by "
            f"{model} on {date}",
            f"choose another name, or replace them with {option('overwrite')}",
        )
    shutil.rmtree(work, ignore_errors=True)  # left by a kill just before the end
    return True


def _asked_rows(store: Store, task: Task) -> list[int]:
    rows: list[int] = store.rows(task.split).tolist()
    if task.only_empty is not None:
        texts = store.texts(CAPTION + task.only_empty)
        rows = [row for row in rows if not texts[row].strip()]
    return rows


def _answered(
    store: Store, open_: Mapping[str, int], task: Task, captioner: Captioner, interrupt: Interrupt
) -> Iterator[Entry]:
    """Yield the outcome of each image that needs no further attempt."""
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
        yield from failed  # the server answers other images, so these images caused the failures
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
        f"{last.source}: {(last.aside or '').removeprefix(f'{_FAILED}: ')}. {len(failed)} images in a row got "
        f"no answer. All earlier answers are kept",
        f"check the server, then {again()} to resume",
    )


def _commit(
    store: Store, task: Task, origin: Mapping[str, Json], journal: Journal, asked: list[int], progress: Progress
) -> AboutStore:
    keys = store.texts("sha256")
    texts = [""] * len(store) if task.only_empty is None else store.texts(CAPTION + task.only_empty)
    for row in asked:
        texts[row] = journal.entries[keys[row]].caption
    made_by = {
        **origin,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": dict(progress.counts),
        "set_aside": dict(progress.reasons),
        "not_asked": len(store) - len(asked),
        "empty_captions": sum(not text for text in texts),
        "cost": progress.cost,
    }
    return add_column(store.path, task.column, texts, made_by, journal.path.read_bytes())
