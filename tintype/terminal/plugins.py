"""Lines that the commands for plugins print."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tintype.terminal.lines import say

if TYPE_CHECKING:
    from rich.console import Console

    from tintype.contract.run import Checked, Result


def next_steps(file: Path, name: str) -> list[str]:
    """Return what to do with a file that was written for a technique."""
    out = quote(f"runs/{name}")
    return [
        f"written: {file}",
        f"next: write your idea into its `loss`, then tintype check {quote(str(file))}",
        f"then: tintype --plugin {quote(str(file))} train pocket --technique {quote(name)} --out {out}",
    ]


def show_result(result: Result, console: Console) -> None:
    """Print one check on one line."""
    details = f" ({' '.join(result.details.split())})" if result.details else ""
    word, style = ("pass", None) if result.passed else ("FAIL", "red")
    say(console, f"{word}  {result.technique}: {result.check[0].lower()}{result.check[1:]}{details}", style)


def show_checked(checked: Checked, console: Console) -> None:
    """Print how many checks have passed, or what the file has where there was nothing to check."""
    from tintype.contract.run import parts_in_words

    passed = sum(result.passed for result in checked.results)
    say(console, f"{checked.plugin.name}, sha256 {checked.plugin.sha256}: {parts_in_words(checked)}")
    if checked.results:
        say(console, f"{passed} of {len(checked.results)} checks passed")
    else:
        say(
            console,
            "it has no technique, sampler or guidance, and only these have a contract to check; it was loaded without "
            "a mistake",
        )
