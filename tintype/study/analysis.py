"""How a study turns differences into verdicts, as the user writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from tintype.errors import UserError
from tintype.settings import Settings
from tintype.study.effect import Effect, parse_effect

Method = Literal["shared", "paired"]


def _text_of_number(value: object) -> object:
    """Return a number as it is written; YAML reads `0.02` as a number and `3%` as text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Margin = Annotated[str, BeforeValidator(_text_of_number)]


class AnalysisSettings(Settings):
    """How differences become verdicts. docs/statistics.md says when to choose which."""

    method: Method = Field(
        "shared", description="shared: the arms share their seed spread; paired: each arm by itself, seed by seed"
    )
    margin: Margin = Field(
        "3%", description="Differences up to this size are none worth having: 3%, or 0.02 in its unit"
    )
    margins: dict[str, Margin] = Field({}, description="Another margin for a metric, by its name")
    test: Literal["student", "permutation"] = Field(
        "student", description="With paired: permutation needs no normal spread, but many more seeds"
    )
    interval: Literal["student", "bootstrap"] = Field(
        "student", description="With paired: bootstrap needs no normal spread, but at least five seeds"
    )

    @model_validator(mode="before")
    @classmethod
    def _method_of_test(cls, data: object) -> object:
        """Take the paired method where a test or an interval is chosen that only it has."""
        if isinstance(data, dict) and "method" not in data:
            chosen = any(data.get(key, "student") != "student" for key in ("test", "interval"))
            return {**data, "method": "paired"} if chosen else data
        return data

    @model_validator(mode="after")
    def _consistent(self) -> AnalysisSettings:
        if self.method == "shared" and (self.test, self.interval) != ("student", "student"):
            raise ValueError("test and interval belong to the paired method; set method: paired, or leave them out")
        margins = {"margin": self.margin, **{f"margins: {metric}:": text for metric, text in self.margins.items()}}
        for key, text in margins.items():
            try:
                parse_effect(text, key)
            except UserError as error:
                raise ValueError(str(error)) from None
        return self

    def by(self, method: Method) -> AnalysisSettings:
        """Return the settings with another method; the tests and intervals of the paired one belong to it alone."""
        own = {} if method == "paired" else {"test": "student", "interval": "student"}
        return self.model_copy(update={"method": method, **own})

    def margin_of(self, metric: str) -> Effect:
        return parse_effect(self.margins.get(metric, self.margin), "margin")


DEFAULT = AnalysisSettings()
