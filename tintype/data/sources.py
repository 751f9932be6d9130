"""Open the images of a plan's data, of any kind. Check that their identity equals the one that the run recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain

import torch
from torch import Tensor

from tintype.data.buckets import Bucketed, Shape
from tintype.data.mixture.settings import SIZE, MixtureSettings
from tintype.data.mixture.source import Mixed, MixtureSource, identity_of_parts
from tintype.data.order import Shuffled
from tintype.data.scenes.source import SceneSource, ScenesSettings, Split
from tintype.data.store.changes import earlier_identities
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource, TooSmallError
from tintype.errors import UserError
from tintype.seams import ImageSource, Order
from tintype.settings import DataPart, TrainSettings


@lru_cache(maxsize=16)
def open_source(
    data: DataPart, split: Split, device: torch.device, stage_shapes: tuple[Shape, ...] | None = None
) -> ImageSource:
    """Return one source per (data, split, device) in a process, so that the runs of a study share images.

    `stage_shapes` are the shapes of a store's buckets in an earlier stage. An image stays in its bucket in all stages.
    """
    if isinstance(data, StoreSettings):
        held_out = split != "train"  # a store's held-out images come from the same distribution as its training images
        return StoreSource(data, "eval" if held_out else "train", device, stage_shapes=stage_shapes)
    if isinstance(data, ScenesSettings):
        return SceneSource(data, split, device)
    assert isinstance(data, MixtureSettings), f"data of the kind {data.kind} has no source"
    parts: dict[str, ImageSource] = {}
    for name in data.read:
        with _naming(data, name):
            parts[name] = open_source(data.sources[name].data, split, device)
    return MixtureSource(parts, device)


def forget_sources() -> None:
    open_source.cache_clear()


def open_held_out(
    data: DataPart,
    count: int,
    device: torch.device,
    shaped: bool = False,
    stage_shapes: tuple[Shape, ...] | None = None,
) -> ImageSource:
    """Open the held-out images against which a run is scored. For a mixture, these are the images of one source.

    Images are square by default. With `shaped`, they have the shapes of training, or of an earlier stage.
    """
    with _naming(data, data.evaluate) if isinstance(data, MixtureSettings) else _naming_other(data):
        try:
            return open_source(data.held_out(count, shaped), "eval", device, stage_shapes if shaped else None)
        except TooSmallError as error:
            if shaped or len(data.shapes) == 1:
                raise
            problem, fix = error.parts
            raise UserError(problem, f"{fix}; or score images in the shapes of training (shapes=buckets)") from None


def open_unseen(data: DataPart, count: int, device: torch.device) -> ImageSource:
    """Open square images that training never reads: `count` unseen scenes, or a store's whole evaluation split."""
    return open_source(data.held_out(count), "unseen", device)


def buckets_of(source: ImageSource) -> Tensor | None:
    """Return the bucket of each image, which is the same in every stage; None if all images have one shape."""
    return source.bucket_N if isinstance(source, StoreSource) else None


def ids_by_shape(source: ImageSource, ids: Iterable[int]) -> list[tuple[Shape | None, list[int]]]:
    """Group ids by bucket, with the bucket's shape (None without buckets), in the same order in every stage.

    In a stage of small images, several buckets may have one shape.
    """
    if not isinstance(source, StoreSource) or (bucket_N := buckets_of(source)) is None:
        return [(None, list(ids))]
    found: dict[int, list[int]] = {}
    for id_ in ids:
        found.setdefault(int(bucket_N[id_]), []).append(id_)
    ordered = sorted(found, key=lambda bucket: source.buckets[bucket])
    return [(source.shape(found[bucket][0]), found[bucket]) for bucket in ordered]


def scored_identity(data: DataPart) -> dict[str, str]:
    """Return the identity of a separate evaluation store; empty if there is none, or if the store is elsewhere."""
    if data.scored_name == "data" or not isinstance(data.scored, StoreSettings) or not data.at_hand:
        return {}
    store = data.scored.open()
    return {data.scored_name: data.scored.select(store).identity(store.identity)}


@contextmanager
def _naming_other(data: DataPart) -> Iterator[None]:
    """Name the setting in errors about a separate evaluation store."""
    try:
        yield
    except UserError as error:
        if data.scored_name == "data":
            raise
        problem, fix = (part.replace("data.sha256", "data.evaluate_sha256") for part in error.parts)
        if isinstance(error, TooSmallError):
            fix = (
                f"use a smaller size, or import the data again without images that are too small: `tintype data "
                f"import SOURCE --out DIR --min-px {data.size_px:d}`"
            )
        raise UserError(f"data.evaluate_path: {problem}", fix) from None


@contextmanager
def _naming(data: MixtureSettings, source: str) -> Iterator[None]:
    """Name the mixture's source in errors. For example, `data.where` becomes `data.sources.NAME.data.where`."""
    try:
        yield
    except UserError as error:
        place = f"data.sources.{source}"
        keys = "|".join(sorted(set(type(data.sources[source].data).model_fields) - {SIZE}))
        own = re.compile(rf"(?<![\w./-])data\.(?=(?:{keys})\b)")
        problem, fix = (own.sub(f"{place}.data.", part) for part in error.parts)
        raise UserError(problem if problem.startswith(place) else f"{place}: {problem}", fix) from None


def open_order(seed: int, data: DataPart, train: TrainSettings, source: ImageSource) -> Order:
    """Return the order of the training images. `source` is the source of the training split."""
    if (bucket_N := buckets_of(source)) is not None:
        unit = train.alike if len(data.shapes) > 1 else train.batch // train.accumulate
        return Bucketed(seed, bucket_N, unit)
    if isinstance(data, MixtureSettings) and isinstance(source, MixtureSource):
        return Mixed(seed, data, train.batch, train.steps, {name: len(part) for name, part in source.parts.items()})
    return Shuffled(seed, source)


def only_added(data: DataPart, name: str, known: Mapping[str, str]) -> bool:
    """Return whether captions were added to a run's stores, and nothing else changed, since the run recorded them.

    The run cannot read the added captions, since its plan was made before and names every column that it reads. `name`
    and `known` come from the run's record of identities. `name` is `data`, or `data/NAME` for a source of a mixture.
    """
    whole, _, source = name.partition("/")
    if whole != "data" or name not in known:
        return False
    if not isinstance(data, MixtureSettings):
        one = data.scored if source else data
        return isinstance(one, StoreSettings) and _had(one, known[name])
    if source:
        source, _, other = source.partition("/")
        inner = f"{whole}/{other}" if other else whole
        return source in data.sources and only_added(data.sources[source].data, inner, {inner: known[name]})
    parts = {one: known.get(f"{name}/{one}") for one in data.read}
    return identity_of_parts(parts) == known[name] and all(
        _is_or_had(data.sources[one].data, identity) for one, identity in parts.items()
    )


def _is_or_had(data: DataPart, identity: str | None) -> bool:
    """Return whether this is the data's identity, now or before captions were added. Scenes have no identity."""
    return identity is None or (isinstance(data, StoreSettings) and _had(data, identity, now_too=True))


def _had(data: StoreSettings, identity: str, now_too: bool = False) -> bool:
    store = data.open()
    selection = data.select(store)
    known = chain([store.identity] if now_too else [], earlier_identities(store))
    return any(selection.identity(one) == identity for one in known)
