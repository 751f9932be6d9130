from __future__ import annotations

import io
from collections.abc import Set

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from scipy.fft import dctn

from tests.tiny_store import image_file
from tintype.data.image_file import Encoded
from tintype.data.store import duplicates
from tintype.data.store.duplicates import Group, bit_counts, find_groups, near_pairs
from tintype.data.store.fingerprints import Looks, look, perceptual_hash
from tintype.errors import UserError


def looks_of(images: list[bytes]) -> Looks:
    row_NK = np.stack([look(Encoded("", one)) for one in images])
    return Looks(row_NK[:, :8].copy().view("<u8")[:, 0], row_NK[:, 8:200], row_NK[:, 200], row_NK[:, 201])


def textured(seed: int, size: tuple[int, int] = (96, 80)) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def again(content: bytes, brightness: float = 1.0, scale: float = 1.0, quality: int = 60) -> bytes:
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image = image.resize((round(image.width * scale), round(image.height * scale)))
    buffer = io.BytesIO()
    ImageEnhance.Brightness(image).enhance(brightness).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def flat(*colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(buffer, "PNG")
    return buffer.getvalue()


def groups_of(images: list[bytes], held_out: Set[int] = frozenset(), most_bits: int = 4) -> list[Group]:
    count = len(images)
    pixels = np.array([str(images.index(one)) for one in images])
    is_eval = np.array([index in held_out for index in range(count)])
    return find_groups(np.arange(count), looks_of(images), pixels, is_eval, most_bits)


def test_the_hash_says_which_low_frequencies_are_above_their_median() -> None:
    grey_HW = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    amplitude = dctn(grey_HW.astype(np.float64), norm="ortho")
    amplitude[np.abs(amplitude) < 4] = 0
    lowest = sorted(np.ndindex(32, 32), key=lambda at: (sum(at), at[0]))[1:65]
    values = np.array([amplitude[at] for at in lowest])
    found = perceptual_hash(grey_HW)
    assert [found >> bit & 1 for bit in range(64)] == (values > np.median(values)).astype(int).tolist()
    assert found.bit_count() == 32
    noise_HW = np.random.default_rng(1).integers(126, 130, (32, 32), dtype=np.uint8)
    assert perceptual_hash(noise_HW).bit_count() < 4, "which is no image"
    assert perceptual_hash(np.full((32, 32), 7, np.uint8)) == perceptual_hash(np.full((32, 32), 250, np.uint8)) == 0


@pytest.mark.parametrize("most_bits", [0, 3, 4, 7, 8, 11])
def test_all_near_pairs_are_found_and_no_others(most_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_PAIRS_TOGETHER", 50)
    draw = np.random.default_rng(1)
    centres = draw.integers(0, 2**64, 12, dtype=np.uint64)
    hashes = [int(one) for one in draw.integers(0, 2**64, 60, dtype=np.uint64)]
    for centre in centres.tolist():
        for bits in range(13):
            flipped = draw.choice(64, bits, replace=False).tolist()
            hashes.append(int(centre) ^ sum(1 << bit for bit in flipped))
    hash_U = np.unique(np.array(hashes, dtype=np.uint64))
    expected = [
        (first, second)
        for first in range(len(hash_U))
        for second in range(first + 1, len(hash_U))
        if (int(hash_U[first]) ^ int(hash_U[second])).bit_count() <= most_bits
    ]
    assert [tuple(pair) for pair in near_pairs(hash_U, most_bits).tolist()] == expected
    assert bit_counts(hash_U).tolist() == [int(one).bit_count() for one in hash_U]


def test_few_hashes_are_compared_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counted(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        nonlocal compared
        compared += len(hashes)
        return bit_counts(hashes)

    monkeypatch.setattr(duplicates, "bit_counts", counted)
    hash_U = np.unique(np.random.default_rng(2).integers(0, 2**64, 20_000, dtype=np.uint64))
    near_pairs(hash_U, 4)
    assert compared < len(hash_U) ** 2 / 2 / 500


def test_an_image_is_known_in_other_sizes_files_and_light_and_others_are_not() -> None:
    images = [*(textured(seed) for seed in range(30)), *(image_file(seed, (96, 80)) for seed in range(2))]
    changed = [
        again(images[0], scale=0.5),
        again(images[1], quality=30),
        again(images[2], brightness=1.12),
        again(images[30]),
    ]
    found = groups_of([*images, *changed, images[3]])
    assert [group.rows for group in found] == [(0, 32), (1, 33), (2, 34), (3, 36), (30, 35)]
    assert [group.distinct for group in found] == [2, 2, 2, 1, 2]


def test_hashes_that_see_no_colours_are_not_all() -> None:
    images = [flat(200, 0, 0), flat(0, 120, 0), flat(20, 20, 20), flat(230, 230, 230), flat(203, 3, 3)]
    assert len(np.unique(looks_of(images).hash)) == 1
    assert [group.rows for group in groups_of(images)] == [(0, 4)]


def test_each_is_near_the_first_and_groups_are_no_chains() -> None:
    looks = looks_of([image_file(0)] * 4)
    steps = [0, 0b111, 0b111_111, 0b111_111_111]
    looks = Looks(looks.hash[:1] ^ np.array(steps, dtype=np.uint64), looks.colours, looks.mode, looks.format)
    found = find_groups(np.arange(4), looks, np.array(list("abcd")), np.zeros(4, dtype=np.bool_), 3)
    assert [group.rows for group in found] == [(0, 1), (2, 3)]
    assert [
        group.rows for group in find_groups(np.array([1, 3]), looks, np.array(list("abcd")), np.zeros(4, bool), 6)
    ] == [(1, 3)]


def test_a_group_of_both_splits_keeps_the_evaluation_record_and_comes_first() -> None:
    images = [image_file(seed, (96, 80)) for seed in (0, 0, 1, 1, 1, 2)]
    found = groups_of(images, held_out={4, 5})
    assert found == [Group((4, 2, 3), 1, True), Group((0, 1), 1, False)]


def plain_groups(
    rows: NDArray[np.int64], looks: Looks, is_eval: NDArray[np.bool_], most_bits: int
) -> set[tuple[int, ...]]:
    """All with all."""
    left, found = sorted(rows.tolist(), key=lambda row: (not is_eval[row], row)), set()
    while left:
        first = left[0]
        bits = bit_counts(looks.hash[left] ^ looks.hash[first])
        near = (bits <= most_bits) & duplicates._like_in_colour(looks.colours[left], looks.colours[first])
        found |= {tuple(row for row, ours in zip(left, near, strict=True) if ours)} if near.sum() > 1 else set()
        left = [row for row, ours in zip(left, near, strict=True) if not ours]
    return found


def linked(count: int, seed: int) -> Looks:
    """Hashes of which each is near the next, so that a chain links all, and few colours."""
    draws = np.random.default_rng(seed)
    steps = np.bitwise_or.reduce(np.uint64(1) << draws.integers(0, 64, (count, 2), dtype=np.uint64), axis=1)
    colours = np.repeat(draws.integers(0, 4, (count, 1), dtype=np.uint8) * 80, 192, axis=1)
    nothing = np.zeros(count, np.uint8)
    return Looks(np.bitwise_xor.accumulate(steps), colours, nothing, nothing)


def test_groups_are_those_of_comparing_all_with_all() -> None:
    for seed, most_bits in ((0, 4), (1, 8), (2, 0)):
        looks = linked(300, seed)
        looks.hash[::7] = looks.hash[0]
        rows = np.flatnonzero(np.arange(300) % 11 != 3)
        is_eval = np.arange(300) % 5 == 1
        groups = find_groups(rows, looks, np.arange(300).astype("U64"), is_eval, most_bits)
        assert {group.rows for group in groups} == plain_groups(rows, looks, is_eval, most_bits)
        assert groups == sorted(groups, key=lambda group: (not group.leaks, group.rows)) and len(groups) > 0


def test_the_colours_of_a_chain_are_compared_with_those_near_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """All with all would be 2,000,000 pairs for 2,000 images."""
    compared, like = [], duplicates._like_in_colour

    def counted(colours_NK: NDArray[np.uint8], first_K: NDArray[np.uint8]) -> NDArray[np.bool_]:
        compared.append(len(colours_NK))
        return like(colours_NK, first_K)

    monkeypatch.setattr(duplicates, "_like_in_colour", counted)
    looks = linked(2000, 0)
    pairs = len(near_pairs(np.unique(looks.hash), 4))
    assert pairs > 1990, "a chain links all"
    find_groups(np.arange(2000), looks, np.arange(2000).astype("U64"), np.zeros(2000, np.bool_), 4)
    assert sum(compared) <= pairs


def test_an_image_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UserError, match="x cannot be read as an image"):
        look(Encoded("x", image_file(0)[:200]))
