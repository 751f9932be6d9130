"""Features of the real images with which generated images are compared, by one encoder.

Features are cached on disk under a hash of the images, and of the encoder's weights and preprocessing. So every arm of
every study reads the same reference. A reference made with another encoder or from other images is refused.

M: real images, F: size of a feature vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import tintype
from tintype.data.buckets import Shape
from tintype.data.image_sets import Images
from tintype.data.sample_shards import digest
from tintype.data.sources import ids_by_shape, open_held_out
from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.fit import data_problems, refuse
from tintype.evaluation.protocol import Protocol
from tintype.metrics.copies import digested
from tintype.metrics.pair import Reference
from tintype.plan import Plan
from tintype.runtime.cache import cache_folder
from tintype.runtime.dist import current
from tintype.runtime.files import damaged, write_bytes
from tintype.runtime.identity import check_same
from tintype.sampling.generate import spans
from tintype.seams import Encoder, ImageSource
from tintype.settings import DataPart
from tintype.vision.features import feature_matrix
from tintype.wording import again, option

_PROBES = 16
_DIGESTS, _OF_ALL = "digests", "content_sha256"
_REMAKE = f"remove it and {again()} again; a reference of {option('save-reference')} is saved again with it"
BLOCK = 64
"""Batch size of encoders. If all batches have this size, the features are bit-identical on any rank."""


@dataclass(frozen=True)
class About:
    encoder: str
    identity: str
    definition: str
    source: str
    fingerprint: str
    count: int

    @property
    def key(self) -> str:
        return _sha256(f"{tintype.__version__} {self.identity} {self.fingerprint} {self.count}")[:16]


@dataclass(frozen=True)
class ScoredData:
    """A run's data, in the image size in which its weights are scored."""

    data: DataPart
    stage_shapes: tuple[Shape, ...] | None = None
    """Shapes of the buckets' images in an earlier stage; None to use the shapes of the buckets."""


def scored_data(plan: Plan, protocol: Protocol, step: int) -> ScoredData:
    size_px = plan.size_px_at(step - 1) if protocol.staged else plan.data.size_px
    if size_px == plan.data.size_px:
        return ScoredData(plan.data)
    several = len(plan.data.shapes) > 1
    return ScoredData(plan.data.at_size(size_px), plan.shapes_at_size(size_px) if several else None)


def held_out(scored: ScoredData, protocol: Protocol) -> ImageSource:
    """Return images that training never sees, for prompts and reference; raise if protocol and data do not fit."""
    count, shapes = protocol.held_out_count, scored.stage_shapes
    source = open_held_out(scored.data, count, torch.device("cpu"), protocol.shaped, shapes)
    refuse(data_problems(scored.data, source, protocol))
    return source


@lru_cache(maxsize=8)
def data_reference(scored: ScoredData, protocol: Protocol, encoder: Encoder, device: torch.device) -> Reference | None:
    """Return the first rank's reference of a run: held-out images of its data. The ranks share the work."""
    source, data = held_out(scored, protocol), scored.data.scored
    words = "held-out scenes" if data.of_scenes else f"held-out images of the store {str(source.identity)[:12]}"
    fingerprint = data_fingerprint(data, source, scored if protocol.shaped else None)
    return _source_reference(source, words, fingerprint, protocol.reference_count, encoder, device)


def source_features(
    source: ImageSource, ids: Sequence[int], words: str, of_data: str, encoder: Encoder
) -> Tensor | None:
    """Return a source's features, cached on disk, on the first rank. `of_data` names the source."""
    fingerprint = _sha256(f"{words} {list(ids)} {of_data}")
    about = About(encoder.name, encoder.identity, encoder.definition, words, fingerprint, len(ids))
    blocks = spans(0, len(ids), BLOCK)
    return _stored_features(about, encoder, blocks, lambda first, last: source.images(ids[first:last]))


def _source_reference(
    source: ImageSource, words: str, fingerprint: str, count: int, encoder: Encoder, device: torch.device
) -> Reference | None:
    """Return the first images of a source as a reference, on the first rank. The ranks share the work."""
    about = About(encoder.name, encoder.identity, encoder.definition, words, fingerprint, count)
    ids, blocks = in_blocks(source, count)
    found = _stored_features(about, encoder, blocks, lambda first, last: source.images(ids[first:last]))
    return None if found is None else Reference(found, device)


def _stored_features(
    about: About, encoder: Encoder, blocks: Sequence[tuple[int, int]], images: Callable[[int, int], Tensor]
) -> Tensor | None:
    world, file = current(), _file(about)
    if world.any(world.leads and not file.exists()):
        features = shared_features(encoder, blocks, images)
        if features is not None:
            write_reference(file, ImageFeatures(features, about, None))
    return _cached(file, encoder, about).feature_MF if world.leads else None


def in_blocks(source: ImageSource, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the first ids of a source, grouped by shape, and spans of these ids. All ids of a span have one shape."""
    ids: list[int] = []
    blocks: list[tuple[int, int]] = []
    for _, alike in ids_by_shape(source, range(count)):
        blocks += spans(len(ids), len(ids) + len(alike), BLOCK)
        ids += alike
    return ids, blocks


def rows_by_shape(source: ImageSource, count: int) -> dict[Shape, Tensor]:
    """Return, for each shape, its rows in a table of the first images in `in_blocks` order; {} without buckets."""
    found, first = dict[Shape, list[Tensor]](), 0
    for shape, alike in ids_by_shape(source, range(count)):
        if shape is not None:
            found.setdefault(shape, []).append(torch.arange(first, first + len(alike)))
        first += len(alike)
    return {shape: torch.cat(rows) for shape, rows in found.items()}


def shared_features(
    encoder: Encoder,
    blocks: Sequence[tuple[int, int]],
    images: Callable[[int, int], Tensor],
    on_images: Callable[[int], None] = lambda images: None,
) -> Tensor | None:
    """Return all images' features on the first rank. The ranks take blocks, which are an encoder's batches, in turn."""

    def encode(block: tuple[int, int]) -> Tensor:
        return feature_matrix(encoder, [images(*block)], BLOCK, on_images, first_index=block[0])

    return current().share(blocks, encode)


@dataclass(frozen=True)
class ImageFeatures:
    """Features of a set of images. The pixels' digests are None in a file of an earlier version without digests."""

    feature_MF: Tensor
    about: About
    digests: tuple[bytes, ...] | None


def set_features(
    images: Images, encoder: Encoder, on_images: Callable[[int], None] = lambda images: None, cache: bool = True
) -> ImageFeatures:
    """Return the features of a set of images. With `cache`, also store them for later use as a reference."""
    return cached_features(_about_set(images, encoder), encoder, images, on_images, cache)


def is_cached(images: Images, encoder: Encoder) -> bool:
    return _file(_about_set(images, encoder)).exists()


def _about_set(images: Images, encoder: Encoder) -> About:
    fingerprint, count = images.fingerprint()
    return About(encoder.name, encoder.identity, encoder.definition, str(images.path), fingerprint, count)


def cached_features(
    about: About,
    encoder: Encoder,
    images: Iterable[Tensor],
    on_images: Callable[[int], None] = lambda images: None,
    cache: bool = True,
) -> ImageFeatures:
    file = _file(about)
    if cache and file.exists() and (found := _cached(file, encoder, about)).digests is not None:
        on_images(len(found.feature_MF))
        return found
    digests: list[bytes] = []
    feature_MF = feature_matrix(encoder, digested(images, digests), on_images=on_images)
    found = ImageFeatures(feature_MF, about, tuple(digests))
    if cache:
        write_reference(file, found)
    return found


def _file(about: About) -> Path:
    return cache_folder() / "features" / f"{about.key}.safetensors"


def _cached(file: Path, encoder: Encoder, about: About) -> ImageFeatures:
    """Read a cached file, and check its content against its name, a hash, since the file could have been replaced."""
    found = read_reference(file)
    refuse_other_encoder(found.about, encoder, file)
    if found.about.key != about.key:
        raise UserError(
            f"{file} contains the features of other images", "remove this file to compute the features again"
        )
    return found


def write_reference(path: Path, found: ImageFeatures) -> None:
    feature_MF = found.feature_MF.contiguous()
    metadata = {"about": json.dumps(asdict(found.about)), "sha256": digest(feature_MF)}
    metadata[_OF_ALL] = _content_sha256(metadata, found.digests)
    tensors = {"features": feature_MF}
    if found.digests is not None:
        tensors[_DIGESTS] = torch.frombuffer(bytearray(b"".join(found.digests)), dtype=torch.uint8).view(-1, 32)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, save(tensors, metadata=metadata))


def read_reference(path: Path) -> ImageFeatures:
    digests = None
    try:
        with safe_open(path, "pt") as file:
            features: Tensor = file.get_tensor("features")
            metadata = file.metadata()
            about = About(**json.loads(metadata["about"]))
            if _DIGESTS in set(file.keys()):
                digests = tuple(bytes(row) for row in file.get_tensor(_DIGESTS).numpy())
        whole = digest(features) == metadata["sha256"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{path} is damaged, or is not a reference file that tintype wrote ({error})", _REMAKE
        ) from None
    expected = _content_sha256(metadata, digests)
    if not whole or metadata.get(_OF_ALL) != expected:
        raise damaged(path, "the file does not match its checksum", _REMAKE)
    return ImageFeatures(features, about, digests)


def _content_sha256(metadata: Mapping[str, str], digests: Sequence[bytes] | None) -> str:
    """Return the SHA-256 of the features' hash, the features' description, and the digests of the images."""
    return _sha256(f"{metadata['sha256']} {metadata['about']} {b''.join(digests or ()).hex()}")


def refuse_other_encoder(about: About, encoder: Encoder, path: Path) -> None:
    """Raise for features of other weights or another preprocessing, since such distances are meaningless."""
    where = f"{path} of the encoder '{about.encoder}' ({about.definition})"
    what = f"identity than that of '{encoder.name}' ({encoder.definition})"
    check_same(where, what, about.identity, encoder.identity, "make the reference again with this encoder")


def data_fingerprint(data: DataPart, source: ImageSource, shaped: ScoredData | None = None) -> str:
    """Return a hash of the data's settings, its content, and the pixels of a few images.

    So a changed renderer or resize changes the hash of the reference. `shaped` is given for images that are not square.
    The hash then includes the shapes and, in an earlier stage, the buckets, which determine the shape of each image.
    """
    settings = {key: value for key, value in data.content().items() if key != data.count_key}
    if source.identity is not None:
        settings["identity"] = source.identity
    if shaped is not None and shaped.stage_shapes:
        settings |= {"shapes": shaped.stage_shapes, "buckets": data.shapes}
    elif shaped is not None:
        settings["shapes"] = data.shapes
    probes = source.images(range(min(_PROBES, len(source))))
    return _sha256(json.dumps(settings, sort_keys=True) + digest(probes))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
