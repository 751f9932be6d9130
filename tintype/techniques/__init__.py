"""Techniques: one file per idea, and this table of them. Adding one means its file, its line here, and its test."""

from tintype.techniques import ema, short_captions, uniform_time, x_prediction
from tintype.techniques.technique import SHARED_SEAMS, Technique

TECHNIQUES: dict[str, Technique] = {
    technique.name: technique
    for technique in (
        ema.TECHNIQUE,
        short_captions.TECHNIQUE,
        uniform_time.TECHNIQUE,
        x_prediction.TECHNIQUE,
    )
}

__all__ = ["SHARED_SEAMS", "TECHNIQUES", "Technique"]
