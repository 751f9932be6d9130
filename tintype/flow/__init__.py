"""Rectified flow: the path, the density of t, objectives, weightings, routes, samplers and guidance.

The kinds of a seam are listed here: a new one is its file, its line in a table, and its test.
"""

from tintype.flow.epsilon_prediction import EpsilonPredictionSettings
from tintype.flow.immiscible import ImmiscibleSettings
from tintype.flow.loss_space import LossSpaceSettings
from tintype.flow.min_snr import MinSnrSettings
from tintype.flow.objective import VelocitySettings
from tintype.flow.part import NoisePart, ObjectivePart, RoutePart, TimePart, WeightingPart
from tintype.flow.sprint import SprintSettings
from tintype.flow.time_density import LogitNormalTime, MixtureTime, UniformTime
from tintype.flow.tread import TreadSettings
from tintype.flow.x_prediction import XPredictionSettings

OBJECTIVES: tuple[type[ObjectivePart], ...] = (VelocitySettings, XPredictionSettings, EpsilonPredictionSettings)
TIMES: tuple[type[TimePart], ...] = (MixtureTime, LogitNormalTime, UniformTime)
NOISES: tuple[type[NoisePart], ...] = (ImmiscibleSettings,)
WEIGHTINGS: tuple[type[WeightingPart], ...] = (MinSnrSettings, LossSpaceSettings)
ROUTES: tuple[type[RoutePart], ...] = (SprintSettings, TreadSettings)
