"""Training speed as a metric, and advice if a tokenizer takes a large share of a step."""

from __future__ import annotations

from collections.abc import Sequence

from tintype.metrics.metric import NOT_NEGATIVE, Measured, Metric
from tintype.train.speed import Line, images_per_s

MUCH_FOR_A_TOKENIZER = 0.1
"""If a frozen tokenizer takes more than this fraction of a step's time, advise to cache its latents."""

METRIC = Metric[Sequence[Line]](
    name="images_per_s",
    label="training images/s",
    direction="higher",
    definition="training images per second: all images after the first tenth of the run over the time of the step's "
    "parts except that of the data, which runs of a study share and which stands in the time split; windows that took "
    "five times as long as the median one (a compilation, a pause) are left out",
    measure=lambda lines: Measured(images_per_s(lines)),
    range=NOT_NEGATIVE,
)


def tokenizer_words(share: float | None, tuned: bool = False) -> str:
    """Return advice if a tokenizer takes a large share of a step's time, otherwise an empty text.

    A trained tokenizer's latents cannot be cached, and its share includes the time of its own training.
    """
    if share is None or share <= MUCH_FOR_A_TOKENIZER:
        return ""
    advice = ", its training included" if tuned else "; cache its latents"
    return f"the tokenizer takes {100 * share:.0f}% of a step{advice}"
