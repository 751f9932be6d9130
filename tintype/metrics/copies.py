"""Find duplicate images within a set or between two sets. Images are compared by their decoded pixels."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor


def pixel_digest(image_CHW: Tensor) -> bytes:
    total = hashlib.sha256(repr(tuple(image_CHW.shape)).encode())
    total.update(image_CHW.contiguous().numpy().data)
    return total.digest()


def digested(images: Iterable[Tensor], digests: list[bytes]) -> Iterator[Tensor]:
    """Yield the images unchanged, and append each image's digest to a list."""
    for image_CHW in images:
        digests.append(pixel_digest(image_CHW))
        yield image_CHW


def copy_numbers(digests: Sequence[bytes | tuple[bytes, bytes]]) -> Tensor | None:
    """Number the images by their content, from 0. Equal images get equal numbers. Return None if all images differ."""
    numbers = {one: number for number, one in enumerate(dict.fromkeys(digests))}
    return torch.tensor([numbers[one] for one in digests]) if len(numbers) < len(digests) else None


def without_others(copy_N: Tensor | None, selected_N: Tensor) -> Tensor | None:
    """Return the content numbers of the selected images, renumbered from 0."""
    return None if copy_N is None else copy_N[selected_N.to(copy_N.device)].unique(return_inverse=True)[1]


def copy_notes(images: Sequence[bytes], reference: Sequence[bytes] | None = None) -> list[str]:
    """Return notes on duplicates within the set, and on images also in the reference, if its digests are known."""
    notes = []
    if copies := len(images) - len(set(images)):
        notes.append(
            f"{copies:,} of {len(images):,} images are exact copies of another: {len(set(images)):,} are different, "
            "and the errors of sampling count each of those once"
        )
    if reference is None:
        return notes
    if copies := len(reference) - len(set(reference)):
        notes.append(
            f"{copies:,} of the reference's {len(reference):,} images are exact copies of another: neighbours at a "
            "distance of zero shrink the balls of precision, density and coverage"
        )
    known = set(reference)
    if Counter(images) == Counter(reference):
        notes.append("both sets are the same images: distances of zero say nothing about a model")
    elif shared := sum(one in known for one in images):
        notes.append(
            f"{shared:,} of {len(images):,} images are in the reference too: the distances are smaller than those of "
            "images that the reference does not have"
        )
    return notes
