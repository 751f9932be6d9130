"""Clean captions from the web by removing markup and web addresses, but no words.

Differs: PixArt, DeepFloyd and PRX also lower-case captions, and drop punctuation and Chinese, Japanese and Korean
characters. Such cleaning loses information for encoders that read capitals, commas and other languages, so it is not
the default. A model that was trained on such captions needs prompts that are cleaned in the same way. `prx` and
`prx-pixel` clean in the same way as diffusers' PRX pipelines.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import Literal

from tintype.pretrained.packages import optional_package
from tintype.text.prx_rules import clean_as_prx

VERSION = 1
"""Version of the cleaning rules, in the identity of encoders that clean; change it when the rules change."""

Cleaning = Literal[False, True, "prx", "prx-pixel"]
"""False: no cleaning. True: `clean`. `prx`, `prx-pixel`: the rules of diffusers' PRXPipeline and PRXPixelPipeline."""
_PROBE = """ "The RED-ball_of my-cute_cat": caf\u00c3\u00a9 &amp;quot;x&quot; <b>A</b> @me #123 #12345 1234567 \u7ea2
https://example.org/a_b \u2014 example.com/x.png 10.0.0.1 jc6640 jc6640vc 66vc23 free shipping page 3 3x4 ...
click on this (a) [b] {c} |d| *e* free download jpg image a1b2c3d .x : y,z 50%+off 7:45 """
"""A test text that every rule changes; its cleaned form identifies the rules, also those of the installed ftfy."""

_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_MARKUP = re.compile(rf"<!--.*?-->|{_TAG.pattern}", re.DOTALL)
_ADDRESS = re.compile(r"\b(?:https?://|ftp://|www\.)\S*[^\s.,;:!?)\]}'\"]", re.IGNORECASE)
_NO_CHARACTER = re.compile(r"&#[0-9]{1000,};?")
_SPACE = re.compile(r"\s+")


def clean(caption: str) -> str:
    """Decode HTML entities, remove tags and web addresses, and normalise white space and Unicode.

    Control characters and runs of white space become one space; letters and their combining marks are composed.
    """
    plain = _unescaped(_unescaped(caption))  # twice: `&amp;quot;` is common
    plain = _without_tags(plain)
    plain = _ADDRESS.sub(" ", plain)
    plain = "".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in plain)
    return _SPACE.sub(" ", unicodedata.normalize("NFC", plain)).strip()


def _unescaped(text: str) -> str:
    """Decode HTML entities; replace numeric entities with very many digits, which Python cannot parse."""
    return html.unescape(_NO_CHARACTER.sub("\ufffd", text))


def _without_tags(text: str) -> str:
    """Replace tags and comments with spaces. Comments are not searched for after the last `-->`, to save time."""
    last = text.rfind("-->") + 3 if "-->" in text else 0
    return _MARKUP.sub(" ", text[:last]) + _TAG.sub(" ", text[last:])


def cleaner(cleaning: Cleaning) -> Callable[[str], str]:
    """Return the function that cleans captions according to this setting."""
    if cleaning is False:
        return str
    if cleaning is True:
        return clean
    fix_text: Callable[[str], str] = optional_package(
        "ftfy", "export", "cleaning captions as PRX's pipelines do (text.clean)"
    ).fix_text

    def repair(caption: str) -> str:
        return _unescaped(_unescaped(fix_text(caption))).strip()

    return repair if cleaning == "prx-pixel" else partial(clean_as_prx, repair=repair)


def identity(cleaning: Cleaning) -> int | list[str] | None:
    """Return the values that identify the cleaning rules. These values are part of an encoder's identity."""
    if isinstance(cleaning, bool):
        return VERSION if cleaning else None
    return [cleaning, hashlib.sha256(cleaner(cleaning)(_PROBE).encode()).hexdigest()]
