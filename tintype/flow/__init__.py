"""Rectified flow: path, density of t, objectives, main loss, weightings, routes, samplers and guidance.

All kinds of a seam are listed here. A new kind is a file, a line in a table, and a test.
"""

from tintype.flow.epsilon_prediction import EpsilonPredictionSettings
from tintype.flow.immiscible import ImmiscibleSettings
from tintype.flow.loss_space import LossSpaceSettings
from tintype.flow.main_loss import SquareSettings
from tintype.flow.min_snr import MinSnrSettings
from tintype.flow.objective import VelocitySettings
from tintype.flow.part import MainLossPart, NoisePart, ObjectivePart, RoutePart, TimePart, WeightingPart
from tintype.flow.sprint import SprintSettings
from tintype.flow.time_density import LogitNormalTime, MixtureTime, UniformTime
from tintype.flow.tread import TreadSettings
from tintype.flow.x_prediction import XPredictionSettings
from tintype.settings import OpenKinds

OBJECTIVES: OpenKinds[ObjectivePart] = OpenKinds(
    "objectives", VelocitySettings, XPredictionSettings, EpsilonPredictionSettings
)
TIMES: OpenKinds[TimePart] = OpenKinds("time_densities", MixtureTime, LogitNormalTime, UniformTime)
NOISES: tuple[type[NoisePart], ...] = (ImmiscibleSettings,)
MAIN_LOSSES: OpenKinds[MainLossPart] = OpenKinds("main_losses", SquareSettings)
WEIGHTINGS: OpenKinds[WeightingPart] = OpenKinds("weightings", MinSnrSettings, LossSpaceSettings)
ROUTES: OpenKinds[RoutePart] = OpenKinds("routers", SprintSettings, TreadSettings)
