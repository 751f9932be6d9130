"""Prompts are captions of held-out images, or come from a benchmark's prompt file.

GenEval's `.jsonl` (a prompt and a tag per line) and PartiPrompts' `.tsv` (Prompt, Category, Challenge) are read as
published. Plain text files have one prompt per line. Scores are grouped by the tags or categories of prompts.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tintype.errors import UserError, as_user_error
from tintype.seams import ImageSource

CAPTIONS = ("long", "short")
"""The caption columns of scenes. A store has columns of its own."""
_GROUPS = ("tag", "category", "challenge")
_TOGETHER = 1024


def is_caption(prompts: str) -> bool:
    """Return whether `prompts` names a caption column. Paths of prompt files always contain a dot or a slash."""
    return "." not in prompts and "/" not in prompts


@dataclass(frozen=True)
class PromptFile:
    prompts: tuple[str, ...]
    sha256: str
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps each grouping, such as tag or category, to the group of each prompt."""


def find_captions(source: ImageSource, captions: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return, for each caption, the id of the first image that has this caption, and the caption's column."""
    wanted, found = set(captions), dict[str, tuple[int, str]]()
    for first in range(0, len(source), _TOGETHER):
        ids = range(first, min(first + _TOGETHER, len(source)))
        for id_, record in zip(ids, source.records(ids), strict=True):
            for kind, text in record.captions.items():
                if text.strip() in wanted:
                    found.setdefault(text.strip(), (id_, kind))
    return found


def missing_captions(found: Container[str], captions: Sequence[str], name: str) -> str:
    """Return a problem if some training captions in a file were not found, else ''."""
    missing = [caption for caption in captions if caption not in found]
    if not missing:
        return ""
    return (
        f"memorisation.prompts: {len(missing)} of {len(captions)} captions of {name} belong to no training image; the "
        f"first is {missing[0]!r}"
    )


@lru_cache(maxsize=8)
def read_prompts(path: Path) -> PromptFile:
    with as_user_error(OSError, f"cannot read the prompts in {path}"):
        raw = path.read_bytes()
    with as_user_error(UnicodeDecodeError, f"the prompts in {path} are not UTF-8 text"):
        text = raw.decode("utf-8-sig")
    rows = _rows(text, path)
    if not rows:
        raise UserError(f"{path} contains no prompts")
    groups = {
        group: tuple(str(row[group] or "–") for row in rows) for group in _GROUPS if all(group in row for row in rows)
    }
    return PromptFile(tuple(str(row["prompt"]) for row in rows), hashlib.sha256(raw).hexdigest(), groups)


def _rows(text: str, path: Path) -> list[dict[str, object]]:
    suffix = path.suffix.lower()
    lines = [(number, line.strip()) for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1)]
    if suffix == ".jsonl":
        return [_json_row(line, f"{path}, line {number}") for number, line in lines if line]
    if suffix in (".tsv", ".csv"):
        return _table_rows(text, path, tabs=suffix == ".tsv")
    return [{"prompt": line} for _, line in lines if line]


def _json_row(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise UserError(
            f"{where}: the line has no prompt",
            'write a line as {"prompt": "a photo of a bench", "tag": "single_object"}',
        )
    return row


def _table_rows(text: str, path: Path, tabs: bool) -> list[dict[str, object]]:
    """Read a table with a header. In a tab-separated table, quotation marks are part of the prompt."""
    lines = io.StringIO(text)
    reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.DictReader(lines)
    try:
        rows = [{str(key).lower(): value for key, value in row.items()} for row in reader]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None
    for number, row in enumerate(rows, 2):
        if not (row.get("prompt") or "").strip():
            raise UserError(
                f"{path}, line {number}: the row has no prompt",
                "the header in the first line must name a column 'Prompt'",
            )
    return rows
