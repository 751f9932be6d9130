"""Optimizers and weight averages, one file each with its settings, and the tables that list them."""

from tintype.optim.adamw import AdamWSettings
from tintype.optim.ema import EmaSettings
from tintype.optim.muon import MuonSettings
from tintype.optim.part import AverageSettings, OptimizerPart
from tintype.optim.power_ema import PowerEmaSettings
from tintype.settings import OpenKinds

OPTIMIZERS: OpenKinds[OptimizerPart] = OpenKinds("optimizers", AdamWSettings, MuonSettings)
AVERAGES: tuple[type[AverageSettings], ...] = (EmaSettings, PowerEmaSettings)
