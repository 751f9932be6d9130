"""Texts: which cannot be captions, and how they are shown."""

from __future__ import annotations

import re

LONGEST = 20_000
"""Most characters of a caption; a longer text is a page that got into the wrong column."""
_TAGS = (
    "a|abbr|article|aside|b|blockquote|body|br|button|center|code|dd|div|dl|dt|em|figcaption|figure|font|footer|form|h[1-6]"
    "|head|header|hr|html|i|iframe|img|input|label|li|link|main|meta|nav|ol|p|pre|script|section|small|span|strong|style"
    "|sub|sup|svg|table|tbody|td|textarea|th|thead|title|tr|u|ul|video"
)
_HTML = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>|<!--|<!doctype\s", re.IGNORECASE)
"""Tags of HTML only: `<person>`, as some sets write for names, is a word."""


def unfit(text: str) -> str | None:
    """Return why a text cannot be a caption, or None where it can."""
    if len(text) > LONGEST:
        return f"has {len(text):,} characters; the most is {LONGEST:,}"
    if not is_utf8(text):
        return "is not text in UTF-8"
    if tag := _HTML.search(text):
        return f"has HTML in it: {tag.group()[:40]}"
    return None


def has_html(text: str) -> bool:
    return _HTML.search(text) is not None


def is_utf8(text: str) -> bool:
    """Return whether a text can be written: JSON can spell half of a surrogate pair, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shortened(text: str, most: int) -> str:
    """Return at most so many characters of a text, the last of them an ellipsis where more follow."""
    return text if len(text) <= most else text[: most - 1] + "…"
