"""Print the presets, which are public data sets of images that can be imported by name."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Column, Table

from tintype.data.presets import DataPreset, Preset
from tintype.terminal.lines import say
from tintype.terminal.view import View


class Presets(View[list[DataPreset]]):
    """View of the presets, as a table of all presets, or with all details of one preset."""

    def show(self, result: list[DataPreset]) -> None:
        if self.given["preset"] is None:
            self._show_table(result)
        else:
            self._show_one(*result)

    def _show_table(self, presets: list[DataPreset]) -> None:
        table = Table(
            Column("preset", no_wrap=True), "what it is", Column("records", justify="right", no_wrap=True), "licence"
        )
        for preset in presets:
            cells = (preset.name, preset.title, _records(preset, "\n"), preset.license)
            table.add_row(*map(escape, cells))
        self.console.print(table)
        say(self.console, "`tintype data presets NAME` says how to get one; nothing is downloaded")

    def _show_one(self, preset: DataPreset) -> None:
        lines = {
            "set": preset.title,
            "home": preset.home,
            "licence": f"{preset.license}; {preset.terms}" if preset.terms else preset.license,
            "records": _records(preset),
            "format": preset.format,
            "captions": ", ".join(f"{kind} from {column}" for kind, column in preset.captions.items()),
            "attributes": ", ".join(preset.attributes) or "none",
            "held out": f"by the column {preset.split_column}"
            if preset.split_column
            else f"{preset.eval_share:.0%} by hash",
        }
        for key, value in lines.items():
            say(self.console, f"{key}: {value}")
        for number, step in enumerate(preset.get, 1):
            say(self.console, f"{number}. {step}")
        say(self.console, f"{len(preset.get) + 1}. tintype data import SOURCE --preset {preset.name} --out DIR")
        for text in preset.unverified:
            say(self.console, f"unverified: {text}", "yellow")


def _records(preset: Preset, between: str = ", ") -> str:
    shown = [f"{count:,}" + ("" if which == "all" else f" {which}") for which, count in preset.records.items()]
    return between.join(shown) or "unknown"
