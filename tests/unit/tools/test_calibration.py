"""Simulated studies: as few false verdicts, and as many found effects, as the method says.

200 studies each; the seeds are fixed, so these tests give the same counts every time. The tolerance is three standard
errors: 4.6 points of a share of 5%, 8.5 points of one of 80%.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tintype.study.stats import spread
from tools.calibration import figure, simulate
from tools.calibration.simulate import Cell, calibrate, false_verdicts, planted_effect, share_found, tolerance

STUDIES = 200
SLACK = 0.05
"""Satterthwaite's degrees of freedom are approximate: with few seeds a little less is found."""


@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("shape", ["normal", "skewed and differing"])
def test_false_verdicts_stay_under_five_percent_of_studies(seeds: int, shape: simulate.Shape) -> None:
    rates = false_verdicts(Cell(seeds, shape, arms=5), 60)
    assert rates.either <= 0.05 + tolerance(0.05, 60)
    assert rates.primary <= rates.either <= rates.primary + rates.other + 1e-9


def test_without_the_correction_many_studies_would_have_a_false_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.calibration.simulate.confidence_of", lambda weight: 0.95)
    assert false_verdicts(Cell(5), 60).either > 0.3


@pytest.mark.slow
def test_without_its_own_spread_an_arm_would_get_false_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with all weight on the centre, arms of another spread get verdicts by chance."""
    cell = Cell(8, "unequal", arms=5)
    assert false_verdicts(cell, 80).either <= 0.05 + tolerance(0.05, 80)
    monkeypatch.setattr(spread, "CENTRE_WEIGHT", 1e9)
    assert false_verdicts(cell, 80).either > 0.1


def test_simulated_runs_are_paired_as_asked_and_metrics_correlated() -> None:
    studies = list(simulate.drawn(Cell(8, pairing=0.8), STUDIES))

    def values(arm: str, metric: str = "primary 0") -> list[float]:
        return [value for one in studies for value in one[metric].values[arm].values()]

    new, old, control, other = values("arm 0"), values("baseline"), values("control"), values("arm 0", "primary 1")
    assert np.corrcoef(new, old)[0, 1] == pytest.approx(0.8, abs=0.05)
    assert np.corrcoef(control, old)[0, 1] == pytest.approx(0.0, abs=0.08)
    assert np.corrcoef(new, other)[0, 1] == pytest.approx(0.6, abs=0.07)


@pytest.mark.parametrize("shape", simulate.SHAPES)
def test_every_shape_has_no_true_difference(shape: simulate.Shape) -> None:
    studies = [one["primary 0"] for one in simulate.drawn(Cell(8, shape), 400)]
    differences = np.asarray([one.mean("arm 0") - one.mean("baseline") for one in studies])
    assert abs(differences.mean()) < 4 * differences.std() / 20


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_a_difference_of_the_stated_size_is_found_at_the_stated_power(seeds: int) -> None:
    cell = Cell(seeds, pairing=0.0)
    found = share_found(cell, STUDIES, planted_effect(cell))
    assert found == pytest.approx(0.8, abs=SLACK + tolerance(0.8, STUDIES))


def test_the_figure_and_the_numbers_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(3), Cell(5)]  # the whole grid takes minutes
    monkeypatch.setattr(simulate, "FALSE_VERDICT_CELLS", cells)
    monkeypatch.setattr(simulate, "POWER_CELLS", cells)
    monkeypatch.setattr(simulate, "SHAPES", ("normal", "shares", "relative"))
    said: list[tuple[str, int, int]] = []
    rows = tmp_path / "rows.jsonl"
    found = calibrate(2, rows, on_row=lambda name, done, total: said.append((name, done, total)))
    numbers, drawing = simulate.write_calibration(tmp_path, found)
    assert json.loads(numbers.read_text()) == found
    assert [done for _, done, _ in said] == list(range(1, len(said) + 1)) and {total for *_, total in said} == {
        len(said)
    }
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join(lines[:-1]))  # a stopped calibration
    assert calibrate(2, rows, on_row=lambda name, done, total: said.append((name, done, total))) == found
    assert len(said) == len(lines) + 1
    root = ElementTree.fromstring(drawing.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "nan" not in drawing.read_text() and "5 seeds, pairing 0.4" in drawing.read_text()


def test_the_published_figure_is_drawn_from_the_published_numbers() -> None:
    docs = Path(__file__).parents[3] / "docs"
    found = json.loads((docs / "calibration.json").read_text())
    assert (docs / "images" / "calibration.svg").read_text() == figure.draw(found)


def test_the_published_numbers_keep_the_promise() -> None:
    """docs/calibration.json is what docs/statistics.md quotes."""
    found = json.loads((Path(__file__).parents[3] / "docs" / "calibration.json").read_text())
    assert found["studies"] >= 400
    normal = [one for one in found["false_verdicts"] if one["shape"] == "normal"]
    assert len(normal) >= 9
    assert all(one["either"] <= 0.05 + found["tolerance"]["0.05"] for one in normal)
    assert all(abs(one["found"] - 0.8) <= found["tolerance"]["0.8"] + SLACK for one in found["power"])
