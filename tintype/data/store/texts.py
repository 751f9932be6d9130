"""Check whether a text can be a caption, and truncate texts for display."""

from __future__ import annotations

import re

LONGEST = 20_000
"""Most characters of a caption. A longer text is probably a whole page in the wrong column."""
_TAGS = (
    "a|abbr|article|aside|b|blockquote|body|br|button|center|code|dd|div|dl|dt|em|figcaption|figure|font|footer|form|h[1-6]"
    "|head|header|hr|html|i|iframe|img|input|label|li|link|main|meta|nav|ol|p|pre|script|section|small|span|strong|style"
    "|sub|sup|svg|table|tbody|td|textarea|th|thead|title|tr|u|ul|video"
)
_HTML = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>|<!--|<!doctype\s", re.IGNORECASE)
"""Matches HTML tags only: `<person>`, which some sets write for names, is a word."""


def unfit(text: str) -> str | None:
    """Return why a text cannot be a caption, or None if it can."""
    if len(text) > LONGEST:
        return f"has {len(text):,} characters; the limit is {LONGEST:,}"
    if not is_utf8(text):
        return "is not text in UTF-8"
    if tag := _HTML.search(text):
        return f"has HTML in it: {tag.group()[:40]}"
    return None


def has_html(text: str) -> bool:
    return _HTML.search(text) is not None


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded: JSON can spell half of a surrogate pair, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shortened(text: str, most: int) -> str:
    """Truncate a text to `most` characters, with an ellipsis as the last character."""
    return text if len(text) <= most else text[: most - 1] + "…"
