"""Losses in addition to the objective's loss, with a module for each, and a table of all."""

from tintype.losses.attention import AttentionSettings
from tintype.losses.class_token import ClassTokenSettings
from tintype.losses.contrastive import ContrastiveSettings
from tintype.losses.dispersive import DispersiveSettings
from tintype.losses.irepa import IrepaSettings
from tintype.losses.lpips import LpipsLossSettings
from tintype.losses.part import LossPart
from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.losses.repa import RepaSettings
from tintype.losses.self_alignment import SelfAlignmentSettings
from tintype.settings import OpenKinds

LOSSES: OpenKinds[LossPart] = OpenKinds(
    "losses",
    AttentionSettings,
    ClassTokenSettings,
    ContrastiveSettings,
    DispersiveSettings,
    IrepaSettings,
    LpipsLossSettings,
    PerceptualDinoSettings,
    RepaSettings,
    SelfAlignmentSettings,
)

__all__ = ["LOSSES", "LossPart"]
