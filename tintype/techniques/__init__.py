"""Techniques: one file per idea, and this table of them. Adding one means its file, its line here, and its test."""

from tintype.techniques import (
    bf16_storage,
    caption_curriculum,
    caption_mix,
    caption_parts,
    caption_truncation,
    contrastive,
    ema,
    fp8,
    fp32,
    irepa,
    island,
    long_captions,
    lpips,
    min_snr,
    muon,
    perceptual_dino,
    power_ema,
    repa,
    repa_burn_in,
    repa_e,
    resolution_aware,
    short_captions,
    sprint,
    text_encoder,
    tokenizer,
    tread,
    uniform_time,
    x_prediction,
)
from tintype.techniques.technique import SHARED_SEAMS, Technique

TECHNIQUES: dict[str, Technique] = {
    technique.name: technique
    for technique in (
        bf16_storage.TECHNIQUE,
        caption_curriculum.TECHNIQUE,
        caption_mix.TECHNIQUE,
        caption_parts.TECHNIQUE,
        caption_truncation.TECHNIQUE,
        contrastive.TECHNIQUE,
        ema.TECHNIQUE,
        fp8.TECHNIQUE,
        fp32.TECHNIQUE,
        irepa.TECHNIQUE,
        island.TECHNIQUE,
        long_captions.TECHNIQUE,
        lpips.TECHNIQUE,
        min_snr.TECHNIQUE,
        muon.TECHNIQUE,
        perceptual_dino.TECHNIQUE,
        power_ema.TECHNIQUE,
        repa.TECHNIQUE,
        repa_burn_in.TECHNIQUE,
        repa_e.TECHNIQUE,
        resolution_aware.TECHNIQUE,
        short_captions.TECHNIQUE,
        sprint.TECHNIQUE,
        text_encoder.TECHNIQUE,
        tokenizer.TECHNIQUE,
        tread.TECHNIQUE,
        uniform_time.TECHNIQUE,
        x_prediction.TECHNIQUE,
    )
}

__all__ = ["SHARED_SEAMS", "TECHNIQUES", "Technique"]
