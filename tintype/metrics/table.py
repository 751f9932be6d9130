"""Tables of all metrics, by their inputs. A new metric needs a file, a line in a table, and a test."""

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
"""Metrics of scene readings, by caption column. For short captions, both metrics would have the same value."""
TEXT_METRICS: tuple[Metric[TextFeatures], ...] = (clip_score.SCORE, clip_score.RANK)
"""Metrics of the features of images and their captions."""
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
"""Metrics of the features of generated and reference images. Plugins can add metrics here."""
TRAINING_METRICS: dict[str, Metric[Recall]] = {one.name: one for one in (memorisation.ANY, memorisation.OWN)}
"""Metrics that compare samples of training captions with samples of unseen captions."""
ON_FEATURES: Table[AnyMetric] = Table("metrics", {**FEATURE_METRICS.built_in, **TRAINING_METRICS}, Metric)
HELD_OUT_METRICS = (validation.METRIC,)
"""Metrics of the velocity's errors on held-out images."""
LOG_METRICS = (throughput.METRIC,)
PAIR_METRICS: tuple[PairMetric, ...] = (reconstruction.PSNR, reconstruction.SSIM, reconstruction.LPIPS)


def revisions(kinds: Iterable[str], reals: int, prompts: Iterable[str]) -> dict[str, int]:
    """Return the metrics whose definitions were revised, with their current definition's number.

    The first definitions of fd_inf, and of mmd with a large reference, chose images by index. The first scene metrics
    were not scaled. The first validation loss used the uncorrected velocity of a contrastive loss.
    """
    metrics: list[AnyMetric] = [ON_FEATURES[kind] for kind in kinds if reals > ON_FEATURES[kind].revised_above]
    metrics += [*HELD_OUT_METRICS, *(metric for kind in prompts for metric in SCENE_METRICS.get(kind, ()))]
    return {one.name: one.revision for one in metrics if one.revision > 1}
