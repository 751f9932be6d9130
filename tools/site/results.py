"""The page that lists the committed studies, and which of their files the site has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tintype.study.results import StudyResults
from tools.figures.data import Study, study


def studies(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("studies/*/README.md"))


def page(root: Path) -> Iterator[str]:
    """Yield the lines of the index of results."""
    yield "# Results\n"
    yield (
        "Every study that was run for this repository, newest first, negative and failed ones too. The verdicts are on "
        "the primary metrics and are computed by [one method](../statistics.md) from the stored runs. A study of fewer "
        "than five seeds is a *sketch*. *Undecided* says that these seeds show neither a difference nor that there is "
        "none. [How the verdicts changed with the method](studies.md) has all of them by both methods.\n"
    )
    for folder in reversed(studies(root)):
        yield from _entry(folder)
    yield "```{toctree}\n:hidden:\n"
    yield from (f"{folder.name}/index" for folder in reversed(studies(root)))
    yield "studies\n```\n"


def _entry(folder: Path) -> Iterator[str]:
    date, _, name = folder.name.partition("_")
    yield f"## [{name}]({folder.name}/index.md)\n"
    if not (folder / "results.json").is_file():
        yield f"*{_first_sentence(folder)}* {date}, a measurement without verdicts.\n"
        return
    one = study(folder.name)
    results = one.results
    seeds = len(results.seeds)
    yield f"*{results.question}*\n"
    sketch = ", a sketch" if seeds < 5 else ""
    link = f' · <a href="{folder.name}/report.html">report</a>' if (folder / "report.html").is_file() else ""
    yield f"{date} · {seeds} seeds{sketch}{link}\n"
    yield from (f"- {line}" for line in _verdicts(one, results))
    yield ""


def _verdicts(one: Study, results: StudyResults) -> Iterator[str]:
    """Yield the verdicts on the primary metrics, one line for each verdict and metric."""
    said: dict[str, list[str]] = {}
    others = 0
    for metric in (metric for metric in results.metrics if metric.primary):
        for arm in (arm for arm in results.arms if arm.role == "arm"):
            verdict = one.compared(arm.name, metric.name, arm.tokens).verdict
            if verdict == "undecided":
                others += 1
                continue
            name = arm.name if arm.tokens is None else f"{arm.name} at {arm.tokens:,} tokens"
            said.setdefault(f"{verdict} in {metric.label}", []).append(f"`{name}`")
    for words, arms in said.items():
        yield f"**{words}**: {', '.join(arms)}"
    if others:
        yield f"undecided: {others} comparison{'s' if others > 1 else ''}"


def _first_sentence(folder: Path) -> str:
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    return lines[0].lstrip("# ").strip() + "."
