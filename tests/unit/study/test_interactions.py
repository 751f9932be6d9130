"""Main effects and interactions: hand-computed contrasts, and the verdicts in the metric's direction."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy import special, stats

from tests.studies import run_study
from tests.tiny import TINY
from tests.unit.study.plain_rows import roles_of, rows_of, runs_of
from tintype.config.strict import read_yaml
from tintype.evaluation.protocol import definitions
from tintype.study.analysis import AnalysisSettings
from tintype.study.contrasts import Asked, asked_of, count_comparisons, factor_key
from tintype.study.factorial import FactorContrast, contrasts
from tintype.study.interactions import expected_mean, factor_verdict
from tintype.study.results import Comparison, MetricInfo, Run, Verdict, read_results_file
from tintype.study.stats.cells import LOG, RAW, Cells, Scale
from tintype.study.stats.contrast import Contrast
from tintype.study.stats.family import counts_of
from tintype.study.stats.spread import Variance, alike_freedom
from tintype.study.study import choose_arms, load_study, read_settings, resolve
from tintype.study.verdicts import cells_of

LABELS = {"": "baseline", "a": "a", "b": "b", "a + b": "a + b"}
A, B, BOTH = contrasts(["a", "b"])
SHARES = {"": [0.50, 0.52, 0.54], "a": [0.60, 0.62, 0.64], "b": [0.55, 0.57, 0.59], "a + b": [0.61, 0.63, 0.65]}
"""Means 0.52, 0.62, 0.57, 0.63, all with the variance 0.0004."""
DISTANCES = {"": [10.0, 10.0], "a": [5.0, 5.0], "b": [8.0, 8.0], "a + b": [4.0, 4.0]}


def info(scale: str = "raw", direction: str = "higher") -> MetricInfo:
    known = {"name": "m", "label": "m", "direction": direction, "definition": "", "primary": True, "scale": scale}
    return MetricInfo.model_validate(known)


def moderated() -> float:
    """Return the variance of each plan of `SHARES`: its own, averaged with the median of all four."""
    freedom = max(2.0, alike_freedom([dict.fromkeys(SHARES, Variance(0.0004, 2))], 1.0))
    centre = 0.0004 / (stats.chi2.median(2) / 2)
    return float((freedom * centre + 2 * 0.0004) / (freedom + 2))


def asked(one: FactorContrast) -> Asked:
    weights = {LABELS[name]: weight for name, weight in one.weights.items()}
    names = {LABELS[name]: name or "baseline" for name in one.weights}
    contrast = Contrast(weights, {"baseline": 1.0})
    return Asked(factor_key(one, "", "m"), contrast, names, ["baseline", "control"])


def runs_by_label(values: dict[str, list[float]]) -> dict[str, list[Run]]:
    return {LABELS.get(name, name): runs_of(of, 100 if name == "control" else 0) for name, of in values.items()}


def cells_by_label(values: dict[str, list[float]], metric: MetricInfo) -> Cells:
    runs = runs_by_label(values)
    return cells_of(roles_of(runs), runs, "m", metric)


def compared(values: dict[str, list[float]], metric: MetricInfo, margin: str = "3%") -> dict[str, Comparison]:
    return compared_runs(runs_by_label(values), metric, margin)


def compared_runs(runs: dict[str, list[Run]], metric: MetricInfo, margin: str = "3%") -> dict[str, Comparison]:
    """Compare both factors and their interaction, `a × b`."""
    return rows_of(runs, metric, [asked(one) for one in (A, B, BOTH)], analysis=AnalysisSettings(margin=margin))


def means_of(cells: Cells) -> dict[str, float]:
    return {name: cells.scale.value(cells.mean_of_plan(LABELS[name])) for name in BOTH.weights}


def test_an_interaction_is_a_contrast_of_four_means() -> None:
    """0.63 - 0.62 - 0.57 + 0.52, with the error of four means of three runs, and the eight degrees of all of them."""
    row = compared(SHARES, info())["a × b"]
    error = math.sqrt(4 * moderated() / 3)
    assert row.difference == pytest.approx(-0.04, abs=1e-12)
    assert row.p == pytest.approx(2 * special.stdtr(8, -0.04 / error), rel=1e-9)
    level = 1 - 0.05 / 3
    assert row.low == pytest.approx(-0.04 - special.stdtrit(8, (1 + level) / 2) * error, rel=1e-9)
    assert row.baseline_mean == pytest.approx(0.52) and row.margin == pytest.approx(0.03 * 0.52)
    assert row.differences == pytest.approx([-0.04] * 3)


def test_a_main_effect_is_the_mean_effect_without_and_with_the_other_factor() -> None:
    rows = compared(SHARES, info())
    assert rows["a"].difference == pytest.approx((0.10 + 0.06) / 2, abs=1e-12)
    assert rows["b"].difference == pytest.approx((0.05 + 0.01) / 2, abs=1e-12)
    error = math.sqrt(4 * 0.25 * moderated() / 3)
    assert rows["a"].p == pytest.approx(2 * special.stdtr(8, -0.08 / error), rel=1e-9)


def test_distances_add_up_as_ratios() -> None:
    """Half and four fifths together are two fifths: 4 of 10."""
    cells = cells_by_label(DISTANCES, info("log", "lower"))
    means = means_of(cells)
    assert cells.scale.kind == "log" and means == pytest.approx({"a + b": 4.0, "a": 5.0, "b": 8.0, "": 10.0})
    assert expected_mean(BOTH, means, LOG) == pytest.approx(4.0)
    assert expected_mean(BOTH, means, RAW) == pytest.approx(3.0)
    assert expected_mean(A, means, LOG) is None


def test_shares_add_up_as_odds() -> None:
    """Odds of 1, 2 and 4: together 8, a share of 8 / 9. Raw shares would add up to almost one."""
    means = {"": 1 / 2, "a": 2 / 3, "b": 4 / 5, "a + b": 8 / 9}
    assert expected_mean(BOTH, means, Scale("logit", 1e-9)) == pytest.approx(8 / 9)
    values = {name: [share - 0.002, share, share + 0.002] for name, share in means.items()}
    row = compared(values, info("logit"))["a × b"]
    assert row.scale == "logit" and abs(row.difference) < 1e-3 and row.verdict == "same"
    assert compared(values, info())["a × b"].verdict == "worse"


def test_the_means_of_a_contrast_are_those_that_are_compared() -> None:
    """With the control the baseline has four runs, so that its arms and its interaction give one number."""
    metric = info("log", "lower")
    values = {name: [0.9 * value, 1.2 * value] for name, (value, _) in DISTANCES.items()} | {"control": [12.0, 16.0]}
    row, means = compared(values, metric)["a × b"], means_of(cells_by_label(values, metric))
    assert means[""] == pytest.approx(row.baseline_mean)
    together, expected = means["a + b"], expected_mean(BOTH, means, LOG)
    assert expected is not None and together / expected == pytest.approx(row.mean / row.baseline_mean)


def test_parts_add_up_where_the_interval_lies_within_the_margin() -> None:
    noise = {"": 0.0, "a": 0.1, "b": 0.05, "a + b": 0.15}
    values = {name: [0.5 + gain + shift for shift in (-1e-4, 0.0, 1e-4)] for name, gain in noise.items()}
    assert compared(values, info())["a × b"].verdict == "same"
    assert compared(values, info(), margin="0.000001")["a × b"].verdict == "undecided"


@pytest.mark.parametrize(
    ("verdict", "means", "direction", "expected"),
    [
        ("same", {"": 1, "a": 2, "b": 3, "a + b": 4}, "higher", "adds up"),
        ("identical", {"": 1, "a": 2, "b": 3, "a + b": 4}, "higher", "adds up"),
        ("better", {"": 1, "a": 2, "b": 3, "a + b": 9}, "higher", "reinforces"),
        ("worse", {"": 1, "a": 2, "b": 3, "a + b": 3.5}, "higher", "overlaps"),
        ("worse", {"": 1, "a": 2, "b": 3, "a + b": 3.0}, "higher", "cancels"),  # no better than b alone
        ("worse", {"": 1, "a": 2, "b": 3, "a + b": 0.5}, "higher", "cancels"),  # reversed
        ("worse", {"": 9, "a": 5, "b": 4, "a + b": 3.5}, "lower", "overlaps"),
        ("worse", {"": 9, "a": 5, "b": 4, "a + b": 4.5}, "lower", "cancels"),
        ("worse", {"": 1, "a": 2, "b": 2, "a + b": 9}, "lower", "cancels"),  # both hurt: the baseline is the best
        ("undecided", {}, "higher", "undecided"),
        ("unstable", {}, "higher", "unstable"),
        ("diverged", {}, "higher", "diverged"),
        ("sketch", {}, "higher", "sketch"),
    ],
)
def test_verdicts_on_interactions(verdict: Verdict, means: dict[str, float], direction: str, expected: str) -> None:
    row = Comparison(mean=0, baseline_mean=0, differences=[], difference=0, verdict=verdict)
    assert factor_verdict(BOTH, row, means, direction) == expected  # type: ignore[arg-type]
    assert factor_verdict(A, row, means, direction) == verdict  # type: ignore[arg-type]


def test_a_lost_run_of_any_arm_leaves_no_verdict() -> None:
    runs = runs_by_label(SHARES)
    runs["b"][1] = Run(seed=1, hash="", folder="", state="diverged")
    row = compared_runs(runs, info())["a × b"]
    assert row.verdict == "diverged" and row.lost == "b diverged 1 of 3" and len(row.differences) == 2


def test_collapsed_runs_of_any_arm_are_left_out_of_the_interaction() -> None:
    """A mean over collapsed and healthy runs is no verdict on how parts combine: it is shown beside it."""
    values = {name: [*of, of[1] + 0.01, of[1] - 0.01] for name, of in SHARES.items()}
    whole = compared(values, info())["a × b"]
    assert whole.verdict == "worse" and whole.all_runs is None
    values["b"][0] = 0.05
    row = compared(values, info())["a × b"]
    assert row.collapsed == [0] and row.difference == pytest.approx(-0.045) and row.verdict != "unstable"
    assert row.all_runs is not None and row.all_runs.value == pytest.approx(-0.04 + 0.5 / 5)


FACTORIAL = """
question: Do they add up?
recipe: PLAN
seeds: [0, 1]
factorial: [[x-prediction], [muon]]
primary: [validation_loss]
evaluation: {count: 8, reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}, also: []}
"""


@pytest.mark.parametrize("factors", ["[[x-prediction], [muon]]", "[[x-prediction], [muon], [ema]]"])
def test_contrasts_count_among_the_planned_comparisons(factors: str) -> None:
    text = FACTORIAL.replace("PLAN", "pocket").replace("[[x-prediction], [muon]]", factors)
    study = resolve("test", read_settings(read_yaml(text, "study.yaml"), Path()))
    metrics, settings = definitions(study.settings.evaluation), study.settings
    arms, between = len(study.arms) - 1, len(study.contrasts())
    assert (arms, between) in ((3, 3), (7, 9))
    planned = [key for key in asked_of(study, metrics) if key.metric != "images_per_s"]
    counted = count_comparisons(arms, False, 1, settings.primary, list(metrics), between)
    assert counts_of(planned, settings.primary) == counted and counted.primary == arms + between
    chosen = choose_arms(study, ["muon"])
    assert chosen.contrasts() == []


@pytest.mark.slow
def test_a_factorial_study_from_its_file_to_its_report(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(FACTORIAL.replace("PLAN", "plan.yaml"))
    out = tmp_path / "out"
    assert not run_study(load_study(str(tmp_path / "study.yaml")), out, 1).failed
    found = read_results_file(out / "results.json")
    assert [one.parts for one in found.factors] == [["x-prediction"], ["muon"], ["x-prediction", "muon"]]
    values = {arm.name: [math.log(run.metrics["validation_loss"]) for run in arm.runs] for arm in found.arms}
    means = {name: sum(of) / 2 for name, of in values.items()}
    both = means["x-prediction + muon"] - means["x-prediction"] - means["muon"] + means["baseline"]
    row = found.factors[-1].comparison
    assert row.difference == pytest.approx(math.exp(means["baseline"]) * math.expm1(both), rel=1e-9)
    assert [one.arm for one in found.factors[-1].means] == ["x-prediction + muon", "x-prediction", "muon", ""]
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert "Do the parts add up?" in page and "## Do the parts add up?" in text
    assert "muon without and with x-prediction" in page and "| x-prediction × muon | " in text
