"""Tokenizers as a user names them: a kind with options, or the folder of a trained small-vae."""

from __future__ import annotations

from pathlib import Path

from tintype.config.strict import Document, assignments_in, nearest, parse
from tintype.errors import UserError
from tintype.tokenizers import TOKENIZERS
from tintype.tokenizers.part import TokenizerPart
from tintype.tokenizers.small_vae import SmallVaeSettings, is_trained


def read_tokenizer(spec: str) -> TokenizerPart:
    """`pixels`, `small-vae:folder=DIR,sha256=…`, or just `DIR`."""
    if "/" in spec.partition(":")[0] or is_trained(Path(spec).expanduser()):
        return SmallVaeSettings(folder=spec).resolved()
    kinds = {part.kind_name(): part for part in TOKENIZERS}
    kind, _, rest = spec.partition(":")
    if kind not in kinds:
        raise UserError(
            f"unknown tokenizer '{kind}': it is neither a kind nor a folder of a trained small-vae; "
            f"{nearest(kind, kinds)}"
        )
    document = Document(f"tokenizer {spec}", {"kind": kind})
    for assignment in assignments_in(rest):
        document.override(assignment, option=f"tokenizer {kind}:")
    return parse(kinds[kind], document).resolved()


def tokenizer_names(specs: list[str]) -> list[str]:
    """A short name for each, of which no two are alike: a folder's last part or the kind where that is enough."""
    short = [_short(spec) for spec in specs]
    names = [name if short.count(name) == 1 else spec for name, spec in zip(short, specs, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"the tokenizer '{name}' is given twice; give each once")
    return names


def _short(spec: str) -> str:
    kind = spec.partition(":")[0]
    return Path(spec).name if "/" in kind else kind
