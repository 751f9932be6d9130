"""Every metric, by what it needs. A new metric is its file, its line here, and its test."""

from __future__ import annotations

from collections.abc import Iterable

from tintype.metrics import (
    clip_score,
    discrepancy,
    frechet_distance,
    memorisation,
    neighbours,
    reconstruction,
    scene_accuracy,
    throughput,
    validation,
)
from tintype.metrics.clip_score import TextFeatures
from tintype.metrics.memorisation import Recall
from tintype.metrics.metric import AnyMetric, Metric
from tintype.metrics.pair import FeaturePair
from tintype.metrics.reconstruction import PairMetric
from tintype.plugins.table import Table

SCENE_METRICS = {"long": (scene_accuracy.ACCURACY, scene_accuracy.OBJECTS_RIGHT), "short": (scene_accuracy.ACCURACY,)}
"""On what the scene encoder reads in images of scenes, by the kind of caption. Of a short caption both would be one."""
TEXT_METRICS: tuple[Metric[TextFeatures], ...] = (clip_score.SCORE, clip_score.RANK)
"""On features of images and of their captions."""
FEATURE_METRICS: Table[Metric[FeaturePair]] = Table(
    "metrics",
    {
        metric.name: metric
        for metric in (
            frechet_distance.FD,
            frechet_distance.FD_INF,
            discrepancy.KID,
            discrepancy.MMD,
            discrepancy.MMD_PUBLISHED,
            discrepancy.MMD_UNBIASED,
            neighbours.PRECISION,
            neighbours.RECALL,
            neighbours.DENSITY,
            neighbours.COVERAGE,
        )
    },
    Metric,
)
"""On features of generated and of reference images. Plugins add to these."""
TRAINING_METRICS: dict[str, Metric[Recall]] = {one.name: one for one in (memorisation.ANY, memorisation.OWN)}
"""On samples of training captions and of unseen ones."""
ON_FEATURES: Table[AnyMetric] = Table("metrics", {**FEATURE_METRICS.built_in, **TRAINING_METRICS}, Metric)
HELD_OUT_METRICS = (validation.METRIC,)
"""On the velocity's errors on held-out images."""
LOG_METRICS = (throughput.METRIC,)
"""On the run's `metrics.jsonl`."""
PAIR_METRICS: tuple[PairMetric, ...] = (reconstruction.PSNR, reconstruction.SSIM, reconstruction.LPIPS)
"""On pairs of images."""


def revisions(kinds: Iterable[str], reals: int, prompts: Iterable[str]) -> dict[str, int]:
    """Return the metrics whose values differ from those of their first definition, with its number.

    Those that took some images by their place in the set: fd_inf, and mmd where the reference is large; those on
    scenes, which had no floor; the validation loss, which took the velocity of a contrastive loss as predicted.
    """
    metrics: list[AnyMetric] = [ON_FEATURES[kind] for kind in kinds if reals > ON_FEATURES[kind].revised_above]
    metrics += [*HELD_OUT_METRICS, *(metric for kind in prompts for metric in SCENE_METRICS.get(kind, ()))]
    return {one.name: one.revision for one in metrics if one.revision > 1}
