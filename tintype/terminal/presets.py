"""The list of presets: public sets of images that can be imported by name."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tintype.data.presets import Preset, preset_names, read_preset
from tintype.settings import plain
from tintype.terminal.lines import say


def preset_rows(name: str | None = None) -> list[dict[str, Any]]:
    """Return all about the presets, or about one of them."""
    names = preset_names() if name is None else [name]
    return [{"name": one, **plain(read_preset(one))} for one in names]


def show_presets(console: Console) -> None:
    table = Table(
        Column("preset", no_wrap=True), "what it is", Column("records", justify="right", no_wrap=True), "licence"
    )
    for name in preset_names():
        preset = read_preset(name)
        cells = (name, preset.title, _records(preset, "\n"), preset.license)
        table.add_row(*map(escape, cells))
    console.print(table)
    say(console, "`tintype data presets NAME` says how to get one; nothing is downloaded")


def show_preset(name: str, console: Console) -> None:
    preset = read_preset(name)
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
        say(console, f"{key}: {value}")
    for number, step in enumerate(preset.get, 1):
        say(console, f"{number}. {step}")
    say(console, f"{len(preset.get) + 1}. tintype data import SOURCE --preset {name} --out DIR")
    for text in preset.unverified:
        say(console, f"unverified: {text}", "yellow")


def _records(preset: Preset, between: str = ", ") -> str:
    shown = [f"{count:,}" + ("" if which == "all" else f" {which}") for which, count in preset.records.items()]
    return between.join(shown) or "unknown"
