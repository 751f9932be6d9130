"""What cannot be a caption, or is not meant as one."""

from __future__ import annotations

import re

LONGEST = 20_000
"""In characters; what is longer is a page that got into the wrong column."""
_TAGS = (
    "a|abbr|article|aside|b|blockquote|body|br|button|center|code|dd|div|dl|dt|em|figcaption|figure|font|footer|form|h[1-6]"
    "|head|header|hr|html|i|iframe|img|input|label|li|link|main|meta|nav|ol|p|pre|script|section|small|span|strong|style"
    "|sub|sup|svg|table|tbody|td|textarea|th|thead|title|tr|u|ul|video"
)
_HTML = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>|<!--|<!doctype\s", re.IGNORECASE)
"""Tags of HTML only: `<person>`, as some sets write for names, is a word."""


def unfit(text: str) -> str | None:
    """Why a text cannot be a caption; None where it can."""
    if len(text) > LONGEST:
        return f"has {len(text):,} characters; the most is {LONGEST:,}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not text in UTF-8"
    if tag := _HTML.search(text):
        return f"has HTML in it: {tag.group()[:40]}"
    return None


def has_html(text: str) -> bool:
    return _HTML.search(text) is not None
