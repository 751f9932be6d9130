"""Find problems of a store in the result of its inspection: the worst first, each with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from tintype.data.store.inspect_result import Problem, Result, Severity
from tintype.data.store.texts import has_html, shortened
from tintype.data.store.where import written
from tintype.wording import option, rendered

LONG_WORDS = 256
"""Words above which a caption counts as long. CLIP reads about 55 words of a caption, T5 and Qwen 200 to 400."""
TINY_PX = 64
_SHOWN = 120
_OFTEN = 10
"""If this many records have the same caption, the caption is probably a placeholder."""
_STRANGE = {
    "entities of HTML, such as &amp;": re.compile(r"&(?:amp|lt|gt|quot|nbsp|apos|#\d{1,6}|#x[0-9a-f]{1,6});", re.I),
    "web addresses": re.compile(r"https?://|www\.\w", re.IGNORECASE),
    "letters that were decoded wrongly": re.compile("\ufffd|Ã[\u0080-\u00bf]|â€[\u0090-\u00ff™œ“”]"),
}


def strange_text(text: str) -> str | None:
    """Return the kind of markup or decoding error in a caption, or None."""
    if has_html(text):
        return "tags of HTML"
    return next((what for what, sign in _STRANGE.items() if sign.search(text)), None)


def find_problems(result: Result) -> list[Problem]:
    """Return problems: first those that change scores, then those that harm training, then those that lose data."""
    found = [*_of_splits(result), *_of_captions(result), *_of_images(result)]
    return sorted(found, key=lambda problem: (problem["severity"] != "alarm", -problem["rank"]))


def _problem(severity: Severity, rank: float, title: str, why: str, do: str, records: int) -> Problem:
    return {"severity": severity, "rank": rank, "title": title, "why": why, "do": do, "records": records}


def _percent(part: int, whole: int) -> str:
    share = 100 * part / max(whole, 1)
    return "less than 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %"


def _s(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _of_splits(result: Result) -> Iterator[Problem]:
    splits, total = result["splits"], result["records"]
    same, store = result["duplicates"], result["store"]
    remedy = (
        f"`tintype data inspect {quote(str(store))} --write-skip skip.txt`, then `--set data.skip=skip.txt` in "
        "training: of each group one record stays"
    )
    if same["leaking"]:
        title = f"{_s(same['leaking'], 'training image')} also in the evaluation split"
        why = "Scores on images that are also in training reward memorisation, so the model looks better than it is."
        yield _problem("alarm", 10, title, why, f"Leave them out of training: {remedy}.", same["leaking"])
    for split, what in (("train", "train on"), ("eval", "score with")):
        if not splits[split]:
            why = f"There is nothing to {what}."
            shares = f"{option('eval-share')} or {option('split-column')}"
            do = rendered(f"Import again with another {shares}, or change {option('where')} and {option('skip')}.")
            yield _problem("alarm", 9, f"The split {split} is empty", why, do, 0)
    copies = same["exact"] + same["near"]
    if copies:
        title = f"{_s(copies, 'copy', 'copies')} of other images ({_percent(copies, total)})"
        why = (
            f"{same['exact']:,} have the same pixels as another image, {same['near']:,} have nearly the same. "
            f"The model trains on repeated images more often and memorises them sooner."
        )
        severity: Severity = "alarm" if copies > total / 10 else "notice"
        yield _problem(severity, 6, title, why, f"{remedy}.", copies)
    aside = result["set_aside"]["records"]
    if aside > (aside + result["of"]) / 20:
        title = f"{_s(aside, 'record')} set aside by the import ({_percent(aside, aside + result['of'])})"
        why = "So many rejected records are rarely chance: a column or an option of the import may be wrong."
        do = f"Look at the reasons below and in {store}/quarantine.jsonl, fix the source, and import it again."
        yield _problem("notice", 4, title, why, do, aside)


def _of_captions(result: Result) -> Iterator[Problem]:
    total = result["records"]
    for name, about in result["captions"].items():
        of, column = f"the caption {name}", written(name)
        if about["empty"]:
            title = f"{_s(about['empty'], 'record')} without {of} ({_percent(about['empty'], total)})"
            why = "For these images the model reads the null caption (as for guidance) and learns nothing about words."
            do = f'Leave them out: `data.where="words({column}) > 0"`. Or caption them and import again.'
            yield _problem("alarm", 8, title, why, do, about["empty"])
        if about["long"]:
            title = f"{_s(about['long'], 'caption')} {name} of more than {LONG_WORDS} words"
            why = (
                f"Text encoders truncate captions that long; the longest caption has "
                f"{about['words']['max']:,.0f} words."
            )
            do = f'Shorten them, or leave them out: `data.where="words({column}) <= {LONG_WORDS}"`.'
            yield _problem("notice", 3, title, why, do, about["long"])
        often = [one for one in about["most_common"] if one["records"] >= _OFTEN]
        if total > 1 and about["distinct"] < total / 2:
            title = f"Few distinct captions {name}: {about['distinct']:,} on {total:,} records"
            why = "Many images have the same caption, so the caption does not distinguish them."
            column = rendered(option("caption"))
            do = f"Fine for class names; otherwise check that the right column was imported ({column})."
            yield _problem("notice", 5, title, why, do, total - about["distinct"])
        elif often:
            records = sum(one["records"] for one in often)
            title = f"The same caption {name} on many images, {often[0]['records']:,} times the most common"
            why = f"“{shortened(often[0]['text'], _SHOWN)}” says nothing specific about any of these images."
            begin = re.split("[\"'`\n]", often[0]["text"])[0][:60]
            do = f"If it is a placeholder, leave it out: `data.where=\"not starts({column}, '{begin}')\"`."
            yield _problem("notice", 4.5, title, why, do, records)
        for what, count in about["strange"].items():
            title = f"{_s(count, 'caption')} {name} with {what}"
            example = shortened(about["strange_example"] or "", _SHOWN)
            why = f"The model would learn these characters as if they were words. For example: “{example}”"
            do = "Clean the texts at their source and import again."
            yield _problem("notice", 3.5, title, why, do, count)


_ALL_TINY = "Import larger ones, or train with a data.size_px that all of them have."


def _of_images(result: Result) -> Iterator[Problem]:
    total = result["records"]
    tiny = result["sizes"]["tiny"]
    if tiny:
        title = f"{_s(tiny, 'image')} with a short side of less than {TINY_PX} px ({_percent(tiny, total)})"
        why = (
            "Images are never enlarged: tintype refuses a plan with a larger data.size_px unless these images "
            "are left out."
        )
        do = f'Leave them out: `data.where="min(width, height) >= {TINY_PX}"`.' if tiny < total else _ALL_TINY
        yield _problem("notice", 5.5, title, why, do, tiny)
    extreme = result["aspects"]["above_3"]
    if extreme:
        title = f"{_s(extreme, 'image')} more than three times as long as wide, or as wide as long"
        example = result["aspects"]["example"]
        why = f"A square crop from the middle of such an image shows little of it, for example of {example}."
        do = 'Leave them out: `data.where="max(width, height) <= 3 * min(width, height)"`.'
        yield _problem("notice", 4, title, why, do, extreme)
    kinds = {name: count for name, count in result["pixels"].items() if name != "RGB"}
    if kinds:
        count = sum(kinds.values())
        said = ", ".join(f"{number:,} {name}" for name, number in kinds.items())
        title = f"{_s(count, 'image')} with pixels other than RGB ({said})"
        why = (
            "Such images are converted to RGB on reading. L is greyscale, P has a palette; colours converted "
            "from CMYK are approximate."
        )
        do = "Nothing, if this is what you expect. Convert CMYK with its colour profile before the import."
        yield _problem("notice", 2 if "CMYK" in kinds else 1, title, why, do, count)
