"""Search for tuned values by a grid, by random draws, or by a sampler of Optuna that learns from earlier trials.

A value of `tune` is a list, or a range: `{log_uniform: [1e-4, 1e-2]}`. A grid and random draws are fixed before the
first run, and are the same for the baseline and every arm. Random draws are a pure function of the first tuning seed,
the key and the number of the trial. A sampler of Optuna proposes the next trial of an arm from the scores of the arm's
earlier trials. All arms have the same number of trials.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Discriminator, Field, Tag

from tintype import rng
from tintype.errors import UserError
from tintype.pretrained.packages import optional_package
from tintype.settings import Settings

TuneValue: TypeAlias = bool | int | float | str
_DIGITS = 4
"""Significant digits of random draws, for readable plans and reports; draws from a narrow range have more."""
_MOST_ROUNDING = 0.005
"""Largest change of a random draw by rounding, as a fraction of the range."""
_NEAR_EDGE = 0.05
"""A value lies at the edge if its distance to an end is below this fraction of the range, on the range's scale."""
_TRIES = 100
"""Maximum number of draws per trial; a draw that gives the values of an earlier trial is repeated."""
Bounds = tuple[float, float]


class Range(Settings):
    """Range of values for a setting, and the distribution from which values are drawn.

    Exactly one of the keys is given.
    """

    log_uniform: Bounds | None = Field(
        None, description="Range [low, high] of numbers, drawn uniformly on a logarithmic scale"
    )
    uniform: Bounds | None = Field(None, description="[low, high], uniform")
    integer: tuple[int, int] | None = Field(None, description="Range [low, high] of whole numbers, both ends included")
    choice: Annotated[tuple[TuneValue, ...], Field(min_length=2)] | None = Field(None, description="One of these")

    def problems(self) -> Iterator[str]:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            yield "give one of log_uniform, uniform, integer and choice"
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            yield f"{given[0]}: {self.bounds[0]:g} is not below {self.bounds[1]:g}"
        if self.log_uniform is not None and self.log_uniform[0] <= 0:
            yield "log_uniform: the ends must be above zero"

    @property
    def bounds(self) -> Bounds | None:
        """Return the ends of a numerical range; None for a choice."""
        return self.log_uniform or self.uniform or self.integer

    @property
    def words(self) -> str:
        name = next(name for name in type(self).model_fields if getattr(self, name) is not None)
        return f"{name} {list(getattr(self, name))}"

    def at(self, share: float) -> TuneValue:
        """Return the value at this fraction of the range, from 0 to 1 exclusive."""
        if self.choice is not None:
            return self.choice[int(share * len(self.choice))]
        if self.integer is not None:
            first, last = self.integer
            return first + int(share * (last - first + 1))
        assert self.bounds is not None
        low, high = map(self._scale, self.bounds)
        at = low + share * (high - low)
        return _rounded(at if self.log_uniform is None else math.exp(at), *self.bounds)

    def _scale(self, value: float) -> float:
        return float(value) if self.log_uniform is None else math.log(value)

    def edge(self, value: object) -> str:
        """Return 'below' or 'above' if a value lies at an end of the range; otherwise empty."""
        if self.bounds is None or isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        low, high, at = map(self._scale, (*self.bounds, value))
        near = _NEAR_EDGE * (high - low)
        return "below" if at <= low + near else "above" if at >= high - near else ""


def _rounded(value: float, low: float, high: float) -> float:
    """Round a number in a range to few digits, without leaving the range."""
    digits, rounded = _DIGITS, float(f"{value:.{_DIGITS}g}")
    while abs(rounded - value) > _MOST_ROUNDING * (high - low):
        digits += 1
        rounded = float(f"{value:.{digits}g}")
    return min(max(rounded, low), high)


Tried = Annotated[
    Annotated[tuple[TuneValue, ...], Field(min_length=2), Tag("list")] | Annotated[Range, Tag("range")],
    Discriminator(
        lambda value: (
            "list" if isinstance(value, list | tuple) else "range" if isinstance(value, Mapping | Range) else None
        ),
        custom_error_type="tune",
        custom_error_message="give a list of values, or a range, as {log_uniform: [1e-4, 1e-2]}",
    ),
]
"""The values of one setting, given by a list or by a range."""


class SearchSettings(Settings):
    """How the values of `tune` are searched."""

    kind: Literal["grid", "random", "optuna"] = Field(
        "grid",
        description="Search method (grid tries every combination of the listed values, random draws values, "
        "optuna uses a sampler of Optuna)",
    )
    trials: int | None = Field(None, ge=2, le=1_000, description="Number of trials for each arm, for random and optuna")
    sampler: Literal["tpe", "cmaes", "random"] = Field(
        "tpe", description="Sampler of Optuna that proposes the values, for the kind optuna"
    )

    def problems(self) -> Iterator[str]:
        if self.kind == "grid" and self.trials is not None:
            yield "trials: a grid tries all values; take kind: random or optuna, or leave trials out"
        if self.kind != "grid" and self.trials is None:
            yield f"kind {self.kind} needs trials, the number of them for each arm"
        if self.kind != "optuna" and self.sampler != "tpe":
            yield "sampler: it belongs to kind optuna"

    @property
    def words(self) -> str:
        return f"optuna {self.sampler}" if self.kind == "optuna" else self.kind


def check_search(tune: Mapping[str, Tried], by: SearchSettings) -> None:
    """Raise `ValueError` if the values do not fit the kind of search."""
    ranges = [key for key, values in tune.items() if isinstance(values, Range)]
    if by.kind == "grid" and ranges:
        raise ValueError(
            f"tune: {ranges[0]} is a range, which the kind grid cannot search; give a list of "
            f"values, or tune_by: {{kind: random, trials: 16}}"
        )
    if by.kind == "optuna" and by.sampler == "cmaes":
        choices = [key for key, values in tune.items() if not isinstance(values, Range) or values.bounds is None]
        if choices or len(tune) < 2:
            what = f"{choices[0]} is a choice" if choices else "there is one key"
            raise ValueError(f"tune_by: cmaes searches two or more ranges of numbers, but {what}; use sampler: tpe")


def choices(tune: Mapping[str, Tried], by: SearchSettings, seed: int) -> list[dict[str, TuneValue]]:
    """Return the values of each trial; empty if they depend on earlier trials, or if no setting is tuned."""
    if not tune or by.kind == "optuna":
        return []
    if by.kind == "grid":
        lists = [values for values in tune.values() if not isinstance(values, Range)]
        return [dict(zip(tune, values, strict=True)) for values in product(*lists)]
    assert by.trials is not None
    found: list[dict[str, TuneValue]] = []
    for number in range(_TRIES * by.trials):
        values = {key: range_of(one).at(_share(seed, key, number)) for key, one in tune.items()}
        if values not in found:
            found.append(values)
        if len(found) == by.trials:
            return found
    raise UserError(
        f"tune: there are only {len(found)} different choices of values, but tune_by asks for {by.trials} trials"
    )


def example(tune: Mapping[str, Tried]) -> dict[str, TuneValue]:
    """Return one choice of values, to check that a plan accepts it."""
    return {key: range_of(values).at(0.0) for key, values in tune.items()}


def range_of(values: Tried) -> Range:
    """Return the values as a range; a list becomes a choice among its values."""
    return values if isinstance(values, Range) else Range(choice=values)


def _share(seed: int, key: str, number: int) -> float:
    return float(rng.uniform(seed, f"tune/{key}", torch.tensor([number]), (1,))[0, 0])


def range_edges(tune: Mapping[str, Tried], values: Mapping[str, object]) -> list[str]:
    """Name the directions in which a better value may lie, for keys whose chosen value lies at an end of its range."""
    at = {key: one.edge(values[key]) for key, one in tune.items() if isinstance(one, Range)}
    return [f"{key} {side} {values[key]:g}" for key, side in at.items() if side]


def words_of(values: Tried) -> str:
    """Describe the values of a setting in words."""
    return values.words if isinstance(values, Range) else json.dumps(list(values))


def suggest(
    tune: Mapping[str, Tried],
    by: SearchSettings,
    history: Sequence[tuple[Mapping[str, TuneValue], float | None]],
    direction: Literal["lower", "higher"],
    seed: int,
) -> dict[str, TuneValue]:
    """Return the next values that Optuna's sampler tries, after the trials in `history` with their scores.

    The search is replayed from its seed, so that it can resume. A trial without a score counts as the worst.
    """
    optuna = optuna_package(by)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kinds = {
        "tpe": optuna.samplers.TPESampler,
        "cmaes": optuna.samplers.CmaEsSampler,
        "random": optuna.samplers.RandomSampler,
    }
    study = optuna.create_study(
        sampler=kinds[by.sampler](seed=seed), direction="minimize" if direction == "lower" else "maximize"
    )
    spaces = {key: _space(optuna, range_of(values)) for key, values in tune.items()}
    for number, (values, score) in enumerate(history, 1):
        trial = study.ask(spaces)
        if dict(trial.params) != dict(values):
            raise UserError(
                f"tune_by: Optuna {optuna.__version__} proposes other values for trial {number} than the "
                f"earlier run of this search tried",
                "resume the search with the version of Optuna that started it (tuning.jsonl in the study's "
                "folder names the version)",
            )
        pruned = optuna.trial.TrialState.PRUNED
        study.tell(trial, score) if score is not None else study.tell(trial, state=pruned)
    return dict(study.ask(spaces).params)


def _space(optuna: Any, values: Range) -> Any:
    if values.choice is not None:
        return optuna.distributions.CategoricalDistribution(values.choice)
    if values.integer is not None:
        return optuna.distributions.IntDistribution(*values.integer)
    assert values.bounds is not None
    return optuna.distributions.FloatDistribution(*values.bounds, log=values.log_uniform is not None)


def optuna_package(by: SearchSettings) -> Any:
    """Import Optuna and the packages that its sampler needs, which belong to an optional extra."""
    if by.sampler == "cmaes":
        optional_package("cmaes", "optuna", "tune_by: sampler cmaes")
    return optional_package("optuna", "optuna", "tune_by: kind optuna")
