"""Settings by which differences become verdicts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from tintype.errors import UserError
from tintype.metrics.metric import MARGIN
from tintype.settings import PathText, Settings
from tintype.study.effect import Effect, parse_effect


def _text_of_number(value: object) -> object:
    """Return a number as text. YAML reads `0.02` as a number, but `3%` as text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Margin = Annotated[str, BeforeValidator(_text_of_number)]


class AnalysisSettings(Settings):
    """Margins, tests and other settings by which differences become verdicts."""

    margin: Margin | None = Field(
        None,
        description="Margin: the largest difference that counts as *same*, for all metrics, such as 3% or 0.02 "
        "(in the metric's unit); by default each metric has its own",
    )
    margins: dict[str, Margin] = Field({}, description="Margin of a single metric, by the metric's name")
    bank: tuple[PathText, ...] = Field(
        (),
        description="Folders or results.json files of earlier studies; their runs of the same baseline are used "
        "in addition",
    )

    @model_validator(mode="after")
    def _consistent(self) -> AnalysisSettings:
        whole = {} if self.margin is None else {"margin": self.margin}
        margins = {**whole, **{f"margins: {metric}:": text for metric, text in self.margins.items()}}
        for key, text in margins.items():
            try:
                parse_effect(text, f"{key} {text}")
            except UserError as error:
                raise ValueError(error.marked) from None
        return self

    def margin_words(self, metric: str, own: str | None = None) -> str:
        """Return the study's margin of a metric, or else its `own`, which results of earlier versions lack."""
        return self.margins.get(metric) or self.margin or own or MARGIN

    def margin_of(self, metric: str, own: str | None = None) -> Effect:
        return parse_effect(self.margin_words(metric, own), f"the margin of {metric}")


DEFAULT = AnalysisSettings()
