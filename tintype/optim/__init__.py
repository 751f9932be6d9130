"""Optimizers and weight averages. Each has a module with its settings, and tables list all of them."""

from tintype.optim.adamw import AdamWSettings
from tintype.optim.ema import EmaSettings
from tintype.optim.muon import MuonSettings
from tintype.optim.part import AverageSettings, OptimizerPart
from tintype.optim.power_ema import PowerEmaSettings
from tintype.settings import OpenKinds

OPTIMIZERS: OpenKinds[OptimizerPart] = OpenKinds("optimizers", AdamWSettings, MuonSettings)
AVERAGES: tuple[type[AverageSettings], ...] = (EmaSettings, PowerEmaSettings)
