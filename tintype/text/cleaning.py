"""Captions from the web, made plain: what markup and addresses leave, without a change to what is said.

Differs: PixArt and DeepFloyd (and PRX after them) also lower-case and drop punctuation and Chinese, Japanese and Korean
characters. Encoders that read capitals, commas and other languages lose by that, so it is left out.
"""

from __future__ import annotations

import html
import re
import unicodedata

VERSION = 1
"""A part of the identity of an encoder that cleans: change it with the rules."""

_TAG = re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>", re.DOTALL)
_ADDRESS = re.compile(r"\b(?:https?://|ftp://|www\.)\S*[^\s.,;:!?)\]}'\"]", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


def clean(caption: str) -> str:
    """HTML entities written out, tags and web addresses left out, control characters and runs of white space one space,
    and letters with marks in their composed form."""
    plain = html.unescape(html.unescape(caption))  # twice: `&amp;quot;` is common
    plain = _TAG.sub(" ", plain)
    plain = _ADDRESS.sub(" ", plain)
    plain = "".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in plain)
    return _SPACE.sub(" ", unicodedata.normalize("NFC", plain)).strip()
