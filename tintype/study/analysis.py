"""How a study turns differences into verdicts, as the user writes it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from tintype.errors import UserError
from tintype.settings import Settings
from tintype.study.effect import Effect, parse_effect


def _text_of_number(value: object) -> object:
    """Return a number as it is written; YAML reads `0.02` as a number and `3%` as text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Margin = Annotated[str, BeforeValidator(_text_of_number)]


class AnalysisSettings(Settings):
    """How differences become verdicts."""

    margin: Margin = Field(
        "3%", description="Differences up to this size are none worth having: 3%, or 0.02 in its unit"
    )
    margins: dict[str, Margin] = Field({}, description="Another margin for a metric, by its name")

    @model_validator(mode="after")
    def _consistent(self) -> AnalysisSettings:
        margins = {"margin": self.margin, **{f"margins: {metric}:": text for metric, text in self.margins.items()}}
        for key, text in margins.items():
            try:
                parse_effect(text, key)
            except UserError as error:
                raise ValueError(str(error)) from None
        return self

    def margin_of(self, metric: str) -> Effect:
        return parse_effect(self.margins.get(metric, self.margin), "margin")


DEFAULT = AnalysisSettings()
