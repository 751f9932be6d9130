"""The rules by which diffusers' PRXPipeline cleans a prompt, in the order of the pipeline.

PRX adopted DeepFloyd's rules (`deepfloyd_if/modules/t5.py`). Differs: PRX's training code also straightens curly quotes
first, and strips white space once more before the last rules. diffusers has neither rule, and this module follows
diffusers, since prompts pass through the pipeline of diffusers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from urllib.parse import unquote_plus

Rule = tuple[re.Pattern[str], str]


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), by) for pattern, by in pairs)


_IMAGE_FILE = "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
_DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58"
    "\ufe63\uff0d"
)
_BEFORE = _rules(
    ("<person>", "person"),
    (  # web addresses
        r"\b((?:https?|www):(?:/{1,3}|[a-zA-Z0-9%])|"
        r"[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@))",
        "",
    ),
    (r"@\w+\b", ""),  # names
    ("[\u31c0-\u9fff]", ""),  # Chinese and Japanese characters; kana before this block stay
    (f"[{_DASHES}]+", "-"),
    ("[`´«»¨]", '"'),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.{_IMAGE_FILE}", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~)(\]\[}{|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
"""Rules for the lower-cased text, which run before broken letters and HTML entities are repaired."""
_JOINTS = re.compile("[-_]")
_MOST_JOINTS = 3
"""If a text has more dashes and underscores than this, it counts as a file name, and they become spaces."""
_AFTER = _rules(
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # jc6640
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),  # jc6640vc
    (r"\b\d+[a-zA-Z]+\d+\b", ""),  # 6640vc231
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b{_IMAGE_FILE}(\simage[s]?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),  # j2d1a2a
    ("\\b\\d+\\.?\\d*[x\u0445×]\\d+\\.?\\d*\\b", ""),  # sizes, with a Latin or a Cyrillic x
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)
"""Rules for the text, which run after broken letters and HTML entities are repaired."""


def clean_as_prx(caption: str, repair: Callable[[str], str]) -> str:
    """Clean a caption. `repair` fixes broken letters, decodes HTML entities and strips white space."""
    text = _apply(_BEFORE, unquote_plus(caption).strip().lower())
    if len(_JOINTS.findall(text)) > _MOST_JOINTS:
        text = _JOINTS.sub(" ", text)
    return _apply(_AFTER, repair(text)).strip()


def _apply(rules: Sequence[Rule], text: str) -> str:
    for pattern, by in rules:
        text = pattern.sub(by, text)
    return text
