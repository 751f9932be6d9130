"""Print the pooled results of several studies with the same comparison."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.study.pooling import DIFFER, Pooled, PooledArm, PooledMetric
from tintype.study.results import Interval
from tintype.terminal.lines import VERDICT_STYLE, say, say_note
from tintype.terminal.view import View


class Tables(View[Pooled]):
    """View of `pool`, which shows the primary metrics of each arm, followed by decided verdicts on other metrics."""

    def show(self, result: Pooled) -> None:
        for words in result.left_out:
            say(self.console, f"left out: {words}", "yellow")
        for arm in result.arms:
            _show_arm(arm, self.console)
        say_note(
            self.console,
            f"Each interval has a confidence of 95% on its own, without correction for other comparisons: the "
            f"more arms and metrics you read, the more you find by chance. The verdict treats all runs as "
            f"one study; if the studies differ (p below {DIFFER:g}), it uses a mean that allows for "
            f"their differences.",
        )


def _show_arm(arm: PooledArm, console: Console) -> None:
    shown = [one for one in arm.metrics if one.primary] or arm.metrics[:1]
    others = [one for one in arm.metrics if one not in shown]
    table = Table("metric", "studies", "runs", "arm minus baseline", "verdict", title=escape(arm.arm))
    for one in shown:
        better = f"{escape(one.label)} ({one.direction} is better)"
        for study in one.studies:
            names = escape("\n".join(study.studies))
            table.add_row(
                better, names, f"{study.seeds} / {study.baseline_seeds}", escape(_words(study.difference)), ""
            )
            better = ""
        seeds, baseline = (sum(getattr(study, key) for study in one.studies) for key in ("seeds", "baseline_seeds"))
        verdict = f"[{VERDICT_STYLE.get(one.verdict, 'yellow')}]{one.verdict}[/]"
        table.add_row("", "together", f"{seeds} / {baseline}", escape(_together(one)), verdict)
        table.add_section()
    console.print(table)
    shared = f"; {arm.shared} runs stand in more than one study, and count once" if arm.shared else ""
    say(console, f"{arm.arm}: {arm.seeds} runs of the arm, {arm.baseline_seeds} of the baseline{shared}.")
    other_names = {name for name in arm.names.values() if name != arm.arm}
    if other_names:
        say(console, f"Called {', '.join(sorted(other_names))} elsewhere.")
    for one in shown:
        fell = f"; {one.collapsed} collapsed runs are left out" if one.collapsed else ""
        lost = f"; {one.lost} runs diverged or failed" if one.lost else ""
        say(console, f"{one.label}: {one.agreement}{fell}{lost}.")
    if decided := [
        f"{one.label}: {one.verdict} {_words(one.difference)}" for one in others if one.verdict != "undecided"
    ]:
        say(console, f"Other metrics: {'; '.join(decided)}.")


def _together(one: PooledMetric) -> str:
    """Return the mean on which the verdict is based, and the mean across studies if it is different."""
    across = one.across is not None and one.across != one.difference
    beside = f"\nacross studies {_words(one.across)}" if across and one.across else ""
    share = f" ({one.relative:+.1%})" if one.relative is not None else ""
    return f"{_words(one.difference)}{share}{beside}"


def _words(one: Interval) -> str:
    interval = "" if one.low is None or one.high is None else f" [{one.low:+.3g}, {one.high:+.3g}]"
    return f"{one.value:+.3g}{interval}"
