"""Fit a protocol to the data of a run, and list its problems before anything is trained or sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import cast

import torch

from tintype.data.sources import open_held_out, open_source
from tintype.errors import UserError
from tintype.evaluation.prompts import CAPTIONS, find_captions, is_caption, missing_captions, read_prompts
from tintype.evaluation.protocol import FEWEST, Protocol
from tintype.seams import ImageSource, TextImageEncoder
from tintype.settings import DataPart
from tintype.vision.encoders import general_encoder
from tintype.vision.part import EncoderPart
from tintype.vision.scene_encoder import SceneEncoderSettings
from tintype.wording import option

FEWEST_SAMPLES = 2
_SQUARE = ("shapes=square",)
_LARGER_SPLIT = (
    "import into a new folder with a larger share (`tintype data import SOURCE --out DIR --eval-share 0.3`), or leave "
    "fewer images out (data.where, data.skip)"
)


@dataclass(frozen=True)
class Problem:
    """A reason why an evaluation cannot run. `fixes` are overrides `key=value` that solve the problem."""

    text: str
    fixes: tuple[str, ...] = ()

    def within(self, section: str) -> Problem:
        """Return the problem with fixes for a file that has the protocol in a section, such as a study's file."""
        return Problem(self.text, tuple(f"{section}.{fix}" for fix in self.fixes))


@dataclass(frozen=True)
class Fitted:
    protocol: Protocol
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def fit_protocol(protocol: Protocol, data: DataPart) -> Fitted:
    """Choose the settings that the user did not give, so that they work with this data. On scenes, change nothing.

    On a store, choose captions that the store has, at most as many images as are held out, and an encoder that reads
    any kind of image. Settings that the user gave are kept; `data_problems` lists those that do not work with this
    data.
    """
    unset = {"prompts", "count", "also", "reference_count", "validation_count", "encoders"} - protocol.model_fields_set
    if data.of_scenes or not unset or not data.at_hand:
        return Fitted(protocol)
    source = open_held_out(data, protocol.held_out_count, torch.device("cpu"), protocol.shaped)
    given = (protocol.encoders, "", ())
    of_scenes = any(isinstance(encoder, SceneEncoderSettings) for encoder in protocol.encoders)
    encoders, note, problems = _encoders(len(source)) if "encoders" in unset and of_scenes else given
    most = max(len(source), FEWEST if encoders else FEWEST_SAMPLES)  # `data_problems` reports if there are too few
    chosen: dict[str, object] = {
        "prompts": _caption(source),
        "count": min(protocol.count, most),
        "also": (),
        "reference_count": min(protocol.reference_count, most),
        "validation_count": min(protocol.validation_count, most),
        "encoders": encoders,
    }
    notes = (note,) if note else ()
    return Fitted(protocol.model_copy(update={key: chosen[key] for key in unset}), notes, problems)


def _caption(source: ImageSource) -> str:
    """Return the caption column `long`, else `short`, else the first column of the store."""
    return next((name for name in CAPTIONS if name in source.columns), min(source.columns, default=CAPTIONS[0]))


def _encoders(held_out: int) -> tuple[tuple[EncoderPart, ...], str, tuple[Problem, ...]]:
    """Return the encoders for a number of held-out images, a note, and the problems if no encoder can be used."""
    if held_out < FEWEST:
        return (), _no_distances(held_out), ()
    try:
        encoder, note = general_encoder()
    except UserError as error:
        return (), "", (Problem(f"{error.marked}; or measure the validation loss alone", ("encoders=[]",)),)
    return (encoder,), note, ()


def _no_distances(held_out: int) -> str:
    return (
        f"the store holds out {held_out} images, and distances between sets of images need at least {FEWEST}: only the "
        f"validation loss is measured. For FID, {_LARGER_SPLIT}"
    )


def held_out_note(count: int) -> str:
    """Return a note on metrics that need more than `count` held-out images; '' if there are none."""
    if count < FEWEST_SAMPLES:
        return _too_few(count)
    return _no_distances(count) if count < FEWEST else ""


def data_problems(data: DataPart, source: ImageSource, protocol: Protocol) -> list[Problem]:
    """List a protocol's problems on a store's evaluation split: unreadable images, missing captions, high counts."""
    found = list((_scene_problems if data.of_scenes else _store_problems)(source, protocol))
    if protocol.shaped and len(data.scored.shapes) == 1:
        found.append(Problem("shapes: buckets, but the data has no data.buckets: its images are square", _SQUARE))
    return found


def _scene_problems(source: ImageSource, protocol: Protocol) -> Iterator[Problem]:
    """List the problems of a protocol on scenes. The number of images has no limit: any number can be drawn."""
    for name in _captions(protocol):
        if name not in CAPTIONS:
            known = ", ".join(CAPTIONS)
            yield Problem(f"scenes have the captions {known}, and none called '{name}'", ("prompts=long",))


def _store_problems(source: ImageSource, protocol: Protocol) -> Iterator[Problem]:
    held_out = len(source)
    if held_out < FEWEST_SAMPLES:
        yield Problem(_too_few(held_out))
        return
    if any(isinstance(encoder, SceneEncoderSettings) for encoder in protocol.encoders):
        yield Problem(
            "encoders: 'scenes' was trained on the embedded scenes; its distances between other images mean nothing. "
            "inception (FID) and vgg16 need no hub; clip and dinov2 can be named too",
            ("encoders=[inception]",) if held_out >= FEWEST else (),
        )
    for name in _captions(protocol):
        if name not in source.columns:
            fixes = [f"prompts={_caption(source)}"] if name == protocol.prompts else []
            fixes += ["also=[]"] if any(one.prompts == name for one in protocol.also) else []
            yield Problem(
                f"captions called '{name}' are read, and the store has {', '.join(sorted(source.columns))}; import it "
                f"with `tintype data import SOURCE --out DIR --caption {quote(f'{name}=COLUMN')}`",
                tuple(fixes),
            )
    if protocol.encoders and held_out < FEWEST:
        yield Problem(
            f"encoders: distances between sets of images need at least {FEWEST} held-out images, and the store holds "
            f"out {held_out}; {_LARGER_SPLIT}, or measure the validation loss alone",
            ("encoders=[]",),
        )
    yield from _count_problems(held_out, protocol)


def _count_problems(held_out: int, protocol: Protocol) -> Iterator[Problem]:
    limit = max(held_out, FEWEST) if protocol.encoders else held_out  # below FEWEST, the encoders report the problem
    counts = {key: getattr(protocol, key) for key in ("count", "reference_count", "validation_count")}
    wrong = {f"{key}={count}": f"{key}={held_out}" for key, count in counts.items() if count > limit}
    for one in protocol.conditions[1:]:
        if (one.count or 0) > held_out:
            wrong[f"also ({one.name}): count={one.count}"] = "also=[]"
    if wrong:
        yield Problem(
            f"{', '.join(wrong)}: the store holds out {held_out:,} images; take no more, or {_LARGER_SPLIT}",
            tuple(dict.fromkeys(wrong.values())),
        )


def readiness_problems(protocol: Protocol, data: Sequence[DataPart], device: torch.device) -> list[Problem]:
    """List why a protocol would not work, such as unsuitable data, missing prompt files and missing weights.

    The encoders are built for this check, so their weights are downloaded once.
    """
    found = [
        problem
        for one in data
        for problem in data_problems(
            one, open_held_out(one, protocol.held_out_count, torch.device("cpu"), protocol.shaped), protocol
        )
    ]
    found += file_problems(protocol) or [problem for one in data for problem in _asked_problems(one, protocol)]
    for settings in protocol.encoders:
        try:
            encoder = settings.build(device)
            if settings.reads_text:
                cast(TextImageEncoder, encoder).encode_text(["an image"])
        except UserError as error:
            found.append(Problem(f"encoders: {error.marked}"))
    return list(dict.fromkeys(found))


def _asked_problems(data: DataPart, protocol: Protocol) -> Iterator[Problem]:
    """List captions in the memorisation metrics' prompt file that belong to no training image."""
    asked = protocol.memorisation
    if protocol.reads_training_images and (file := asked.prompt_file) is not None:
        found = find_captions(open_source(data.memorisable, "train", torch.device("cpu")), file.prompts)
        if text := missing_captions(found, file.prompts, asked.prompts or ""):
            yield Problem(text, ("memorisation.prompts=null",))


def file_problems(protocol: Protocol) -> list[Problem]:
    found = []
    for path in protocol.prompt_files:
        try:
            read_prompts(Path(path))
        except UserError as error:
            fix = "memorisation.prompts=null" if path == protocol.memorisation.prompts else "also=[]"
            found.append(Problem(error.marked, (fix,)))
    return found


def _too_few(count: int) -> str:
    return (
        f"the store holds out {count} image{'' if count == 1 else 's'}, and an evaluation needs at least "
        f"{FEWEST_SAMPLES}; {_LARGER_SPLIT}"
    )


def _captions(protocol: Protocol) -> list[str]:
    return [name for name in dict.fromkeys(one.prompts for one in protocol.conditions) if is_caption(name)]


def refuse(problems: Sequence[Problem], what: str = "the evaluation") -> None:
    """Raise one error that lists all problems and the overrides that fix them. `what` is the subject of the message."""
    if not problems:
        return
    fixes = dict.fromkeys(fix for problem in problems for fix in problem.fixes)
    listed = "".join(f"\n- {problem.text}" for problem in problems)
    overrides = " ".join(option("set", fix) for fix in fixes)
    raise UserError(f"{what} is not possible:{listed}", f"\nOverrides: {overrides}" if overrides else "")
