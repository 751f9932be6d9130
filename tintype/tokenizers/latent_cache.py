"""What a frozen tokenizer makes of the training images, kept on the disk by the id of the image.

Each row is the tokenizer's moments of one image in fp32 and a hash of the image that they were made of, so that a run
learns the same with the cache and without. A cache is a folder of two files: `latents.rows`, and `latents.json`, which
says what the rows were made of.

B: images asked for. M: those whose latents are missing. C: channels of the moments. H, W: latent rows and columns.
L: numbers in a row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.plan import Plan
from tintype.pretrained.frozen import encode_evenly
from tintype.pretrained.weights import cache_folder
from tintype.runtime.files import write_json
from tintype.runtime.rows import Content, DiskRows, fingerprint
from tintype.runtime.transfer import send
from tintype.seams import Draws, ImageSource, Tokenizer

ROWS_NAME, HEADER_NAME = "latents.rows", "latents.json"
FORMAT = 2
_HASH_BYTES = 16
_HASH_WORDS = _HASH_BYTES // 4
_SHOWN_DIGITS = 16
_SHOWN_DIFFERENCES = 4


def why_uncacheable(plan: Plan) -> str | None:
    """Why there are no latents to keep: they must cost something, and stay what they are. None where they can be kept.

    A run does without then, so that one setting serves all arms of a study.
    """
    if plan.tokenizer.kind == "pixels":
        return (
            "the tokenizer 'pixels' has no latents to cache: its latents are the pixels, four times as large on a disk "
            "and no work to make"
        )
    if plan.tuning is not None:
        return f"'{plan.tuning.kind}' trains the tokenizer: its latents change at every step, so none are cached"
    return None


@dataclass(frozen=True)
class KeptLatents:
    """The latents of all images of a source. Asks the tokenizer for what is not there yet."""

    folder: Path
    tokenizer: Tokenizer
    source: ImageSource
    rows: DiskRows
    shape: tuple[int, int, int]
    """Of the moments of an image."""
    device: torch.device
    batch: int
    """Images that a GPU encodes at once, always: those of a step."""

    def missing(self, ids: Sequence[int]) -> list[int]:
        """Those of the images whose rows are not there or damaged, each once."""
        id_B = torch.tensor(ids, dtype=torch.int64)
        return [int(id_) for id_ in id_B[~self.rows.has(id_B)].unique()]

    def fill(self, ids: Sequence[int]) -> int:
        """Encodes those of the images that are missing, and says how many they were."""
        missing = self.missing(ids)
        if missing:
            self.write(missing, send(self.source.images(missing), self.device))
        return len(missing)

    def write(self, ids: Sequence[int], image_MCHW: Tensor) -> None:
        """On a CPU the tokenizer itself sees to it that the batch does not matter."""
        if self.device.type == "cpu":
            moment_MCHW = self.tokenizer.moments(image_MCHW)
        else:
            moment_MCHW = encode_evenly(self.tokenizer.moments, image_MCHW, self.batch)
        row_ML = torch.cat([hashes(image_MCHW), moment_MCHW.cpu().flatten(1).contiguous().view(torch.int32)], dim=1)
        self.rows.write(torch.tensor(ids, dtype=torch.int64), row_ML)

    def changed(self, ids: Sequence[int]) -> list[int]:
        """Those of the images that are there, but of which the row was not made."""
        id_B = torch.tensor(ids, dtype=torch.int64)
        known = id_B[self.rows.has(id_B)]
        if not len(known):
            return []
        hash_B4 = hashes(self.source.images(known.tolist()))
        same_B = (self.rows.read(known)[:, :_HASH_WORDS] == hash_B4).all(dim=1)
        return [int(id_) for id_ in known[~same_B]]

    def __call__(self, ids: Sequence[int], draws: Draws) -> Tensor:
        """As the tokenizer would encode the images, on the device."""
        self.fill(ids)
        row_BL = self.rows.read(torch.tensor(ids, dtype=torch.int64))
        moment_BL = row_BL[:, _HASH_WORDS:].contiguous().view(torch.float32)
        return self.tokenizer.drawn(send(moment_BL, self.device).unflatten(1, self.shape), draws)


def hashes(image_BCHW: Tensor) -> Tensor:
    """BLAKE2b of each image's pixels, cut to 128 bits: int32 [B, 4]."""
    pixels = image_BCHW.cpu().contiguous().numpy()
    content = b"".join(hashlib.blake2b(one.data, digest_size=_HASH_BYTES).digest() for one in pixels)
    return torch.frombuffer(bytearray(content), dtype=torch.int32).view(-1, _HASH_WORDS)


def keep_latents(
    plan: Plan, tokenizer: Tokenizer, source: ImageSource, device: torch.device, batch: int
) -> KeptLatents:
    """Room for the latents of all images of the plan's data, or a `UserError` where there is none.

    Without `run.latents_folder` the folder is named by what the latents are made of. Either way it is checked.
    """
    assert why_uncacheable(plan) is None
    side = plan.data.size_px // tokenizer.stride_px
    shape = (tokenizer.moment_channels, side, side)
    made_of = _made_of(plan, tokenizer, source, device, shape)
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).digest()
    given = plan.run.latents_folder
    folder = cache_folder() / "latents" / key.hex()[:32] if given is None else Path(given).expanduser()
    _keep_header(folder, made_of)
    content = Content(
        words="latents",
        shape=(len(source), _HASH_WORDS + shape[0] * shape[1] * shape[2]),
        dtype=torch.int32,
        otherwise="set run.latents to none",
        stamp=key,
    )
    return KeptLatents(folder, tokenizer, source, DiskRows(folder / ROWS_NAME, content), shape, device, batch)


def _made_of(
    plan: Plan, tokenizer: Tokenizer, source: ImageSource, device: torch.device, shape: tuple[int, int, int]
) -> dict[str, Any]:
    """All that decides a row. What a source says of its content are the files of a store: how they are decoded and
    resized, a few images stand for."""
    return {
        "tokenizer": {
            "kind": plan.tokenizer.kind,
            "weights and normalisation": tokenizer.identity,
            "arithmetic": tokenizer.arithmetic,
        },
        "data": plan.data.content(),
        **({} if source.identity is None else {"content": source.identity}),
        "pictures": fingerprint(source),
        "images": len(source),
        "latents": list(shape),
        "device": device.type,
    }


def _keep_header(folder: Path, made_of: Mapping[str, Any]) -> None:
    """Writes it into a new folder, and holds it against that of an old one."""
    file = folder / HEADER_NAME
    try:
        names = [one.name for one in folder.iterdir() if not one.name.startswith(".")] if folder.is_dir() else []
        if file.exists():  # asked last: another process may be making the folder, and the header comes first
            _refuse_other(folder, _read_header(file), made_of)
        elif ROWS_NAME in names:
            raise UserError(
                f"{folder} has files but no {HEADER_NAME}, so it is not known what its latents were made of; "
                f"{_anew(folder)}"
            )
        elif names:
            raise UserError(
                f"{folder} is no cache of latents: it has files but no {HEADER_NAME}; set run.latents_folder to a new "
                "folder, or leave it out"
            )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(file, {"format": FORMAT, "made_of": made_of})
    except OSError as error:
        raise UserError(
            f"cannot write {file}: {error.strerror}; set TINTYPE_CACHE (or run.latents_folder) to a folder that can "
            "be written, or set run.latents to none"
        ) from None


def _read_header(file: Path) -> Mapping[str, Any]:
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise UserError(
                f"{file} is of format {header['format']}; this version of tintype has {FORMAT}; {_anew(file.parent)}"
            )
        found: dict[str, Any] = dict(header["made_of"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({type(error).__name__}: {error}); {_anew(file.parent)}") from None
    return found


def _refuse_other(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    old, new = _flat(there), _flat(here)
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if differing:
        shown = "; ".join(
            f"{key}: {_shown(old.get(key))} there, {_shown(new.get(key))} here"
            for key in differing[:_SHOWN_DIFFERENCES]
        )
        raise UserError(f"{folder} holds latents that were made of something else ({shown}); {_anew(folder)}")


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}".lstrip(".")).items()}


def _shown(value: Any) -> str:
    text = str(value)
    digest = len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
    return f"{text[:_SHOWN_DIGITS]}…" if digest else text


def _anew(folder: Path) -> str:
    return (
        f"to make it anew, delete {folder} and run `tintype tokenizer cache` (or just train); to keep it, set "
        "run.latents_folder to another folder, or leave it out"
    )
