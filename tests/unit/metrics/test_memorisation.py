"""Models of which it is known what they memorised. A real one is in tests/unit/evaluation/test_memorised.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from tintype.data.scenes.render import render
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.metrics.memorisation import ANY, OWN, Asked, Recall, newcombe, recall
from tintype.vision.scene_encoder import scene_features

CPU = torch.device("cpu")
SIZE_PX, MANY, OTHERS, SAMPLES = 16, 300, 300, 96
Model = Callable[[list[int], list[int], int], Tensor]
"""(ids of the captions' images, ids of the training images, salt of the draws) -> features of its samples."""


def features(image_BCHW: Tensor) -> Tensor:
    return scene_features(CPU).read(image_BCHW).feature_BF


@cache
def source() -> SceneSource:
    """Scenes by one rule: ids below 1,000 are the training images, the others were never seen."""
    return SceneSource(ScenesSettings(size_px=SIZE_PX, count=4000, max_objects=2), "train", CPU)


_KNOWN: dict[int, Tensor] = {}


def real(ids: list[int]) -> Tensor:
    """Return features of real images; each is read once."""
    missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in _KNOWN]
    if missing:
        _KNOWN.update(zip(missing, features(source().images(missing)), strict=True))
    return torch.stack([_KNOWN[id_] for id_ in ids])


def real_sets(count: int) -> list[Tensor]:
    """Return features of training images, of unseen ones, and of further ones."""
    return [real(list(range(first, first + count))) for first in (0, 1000, 2000)]


def ask(model: Model, trained_on: int) -> Recall:
    """Ask a model with captions of training images, and with captions of images that it never saw."""
    seen, unseen = list(range(trained_on)), list(range(1000, 1000 + max(trained_on, SAMPLES)))
    sides = []
    for salt, ids in enumerate((seen, unseen)):
        own_N = torch.arange(SAMPLES) % len(ids)
        fake_NF = model([ids[row] for row in own_N.tolist()], seen, salt)
        sides.append(Asked(fake_NF, real(ids), own_N))
    return recall(sides[0], sides[1], real(list(range(2000, 2000 + OTHERS))), [3.0] * SAMPLES)


def copy_of_own(ids: list[int], seen: list[int], salt: int) -> Tensor:
    """A training image for its caption; for any other caption an image that was never seen."""
    return real([id_ if id_ in seen else id_ + 1500 for id_ in ids])


def copy_of_any(ids: list[int], seen: list[int], salt: int) -> Tensor:
    """A training image by chance, whatever the caption."""
    drawn = torch.randint(len(seen), (len(ids),), generator=torch.Generator().manual_seed(salt))
    return real([seen[row] for row in drawn.tolist()])


def drawn_anew(ids: list[int], seen: list[int], salt: int) -> Tensor:
    """The caption's scene, drawn again: a model that follows captions and never saw the images."""
    scenes = [record.attributes for record in source().records(ids)]
    image_NCHW = render(scenes, SIZE_PX, 7, [1_000_000 * (salt + 1) + index for index in range(len(ids))], CPU)
    return features(image_NCHW)


def other_images(ids: list[int], seen: list[int], salt: int) -> Tensor:
    """Real images that were never seen, whatever the caption."""
    return real([3000 + SAMPLES * salt + index for index in range(len(ids))])


def noise(ids: list[int], seen: list[int], salt: int) -> Tensor:
    generator = torch.Generator().manual_seed(salt)
    return features(torch.randint(0, 256, (len(ids), 3, SIZE_PX, SIZE_PX), generator=generator).byte())


def contains_zero(found: Recall) -> bool:
    rates = [found.rate("any"), found.rate("own")]
    return all(rate.low < 0 < rate.high for rate in rates)


@pytest.mark.parametrize("trained_on", [1, 6, MANY])
def test_a_perfect_copier_has_both_figures_near_one(trained_on: int) -> None:
    found = ask(copy_of_own, trained_on)
    assert found.verdict == "copies"
    for metric in (ANY, OWN):
        measured = metric.measure(found)
        assert measured.value >= 0.95 and measured.interval is not None
        assert measured.interval[0] > {1: 0.15, 6: 0.55, MANY: 0.85}[trained_on]
        assert measured.parts["on training captions"] == 1.0


@pytest.mark.parametrize("trained_on", [6, MANY])
def test_an_unconditional_copier_copies_any_image_and_its_own_by_chance(trained_on: int) -> None:
    found = ask(copy_of_any, trained_on)
    assert found.verdict == "copies" and found.rate("any").difference >= 0.95
    chance = 1 / trained_on
    assert abs(found.rate("own").difference - chance) < 3 * math.sqrt((chance + 0.02) / SAMPLES)


@pytest.mark.parametrize("trained_on", [6, MANY])
@pytest.mark.parametrize("model", [drawn_anew, other_images])
def test_a_model_that_never_saw_the_images_has_intervals_about_zero(model: Model, trained_on: int) -> None:
    found = ask(model, trained_on)
    assert contains_zero(found) and found.verdict == "none found"
    if model is drawn_anew:
        assert found.rate("own").unseen > 0.2, "following a caption brings it near the image: the control must say so"


def test_noise_is_unlike_the_data_and_never_called_free_of_copies() -> None:
    found = ask(noise, MANY)
    assert found.verdict == "unlike the data" and found.unlike == 1.0 and contains_zero(found)
    assert "does not say that nothing was memorised" in ANY.measure(found).warnings[0]


def test_half_copies_have_half() -> None:
    def model(ids: list[int], seen: list[int], salt: int) -> Tensor:
        every = torch.arange(len(ids))[:, None]
        return torch.where(every % 2 == 0, copy_of_own(ids, seen, salt), other_images(ids, seen, salt))

    found = ask(model, MANY)
    assert found.rate("own").training == pytest.approx(0.5, abs=0.06) and found.verdict == "copies"


def test_duplicates_among_the_images_do_not_hide_copies() -> None:
    """Every training image is there twice, and a third of the unseen ones too."""

    def doubled(image_MF: Tensor, share: int) -> Tensor:
        return torch.cat([image_MF, image_MF[: len(image_MF) // share]])

    seen, unseen, others = real_sets(100)
    own_N = torch.arange(SAMPLES)
    training = Asked(seen[own_N], doubled(seen, 1), own_N)
    found = recall(training, Asked(others[own_N], doubled(unseen, 1), own_N), doubled(others, 3), [1.0] * SAMPLES)
    assert found.rate("any").difference > 0.9 and found.rate("own").difference > 0.9


def test_a_caption_counts_once_however_often_it_is_asked() -> None:
    """The interval of six captions is as wide with 96 samples as with six."""
    rate = ask(copy_of_own, 6).rate("own")
    assert rate.high - rate.low > 0.35, "96 samples as 96 captions would have 0.08"


def test_newcombes_interval_is_that_of_his_paper() -> None:
    """Table II of the paper, method 10: 56/70 and 48/80 give 0.0524 to 0.3339."""
    assert newcombe((56 / 70, 48 / 80), (70, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_rates_are_given_by_guidance_scale() -> None:
    seen, unseen, others = real_sets(60)
    own_N = torch.arange(60)
    far = torch.cat([seen[:30], others[30:]])
    found = recall(Asked(far, seen, own_N), Asked(others, unseen, own_N), others, [1.0] * 30 + [7.0] * 30)
    assert found.rate("own", 1.0).training == 1.0 and found.rate("own", 7.0).training < 0.2
    assert set(OWN.measure(found).parts) >= {"at guidance 1", "at guidance 7"}


def test_warnings_name_what_the_value_cannot_say() -> None:
    seen, unseen, others = real_sets(60)
    rows = torch.arange(60)
    found = recall(Asked(seen, seen, rows), Asked(unseen, unseen, rows), others, [1.0] * 60, trained_on=5000)
    text = " ".join(ANY.measure(found).warnings)
    assert "60 of 5,000 training images" in text and "from 60 held-out images" in text
    leaked = recall(Asked(seen, seen, rows), Asked(unseen, unseen, rows), seen, [1.0] * 60)
    assert "are training images to the encoder" in ANY.measure(leaked).warnings[0]
