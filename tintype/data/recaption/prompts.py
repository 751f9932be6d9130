"""Built-in prompts. A prompt's text is part of the settings, and is stored with the captions."""

from __future__ import annotations

from pathlib import Path

from tintype.config.strict import nearest, read_yaml
from tintype.errors import UserError, as_user_error
from tintype.wording import option

_BUILT_IN = read_yaml(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"), "prompts.yaml").data
PROMPTS: dict[str, str] = {name: prompt["words"] for name, prompt in _BUILT_IN.items()}
MAX_TOKENS: dict[str, int] = {name: prompt["max_tokens"] for name, prompt in _BUILT_IN.items()}
"""Default token limit of an answer, for each prompt. A user's own prompt has the limit of `long`."""
_LONGEST = 20_000


def find_prompt(name: str | None, file: Path | None) -> tuple[str, str]:
    if file is not None:
        if name is not None:
            raise UserError(f"{option('prompt')} and {option('prompt-file')} both set the question", "give one of them")
        return str(file), _read(file)
    name = name or "long"
    if name not in PROMPTS:
        raise UserError(f"{option('prompt', name)}: unknown prompt", nearest(name, PROMPTS))
    return name, PROMPTS[name]


def _read(file: Path) -> str:
    not_text = as_user_error(UnicodeDecodeError, f"{option('prompt-file', file)} is not UTF-8 text")
    with as_user_error(OSError, f"cannot read {option('prompt-file', file)}"), not_text:
        text = file.read_text(encoding="utf-8").strip()
    if not text:
        raise UserError(f"{option('prompt-file', file)} is empty", "write the question for the model into it")
    if len(text) > _LONGEST:
        raise UserError(f"{option('prompt-file', file)} has {len(text):,} characters; the limit is {_LONGEST:,}")
    return text
