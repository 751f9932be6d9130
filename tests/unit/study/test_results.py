"""Methods of the results: curves, words and the one resolution of a view."""

from __future__ import annotations

from tintype.study.results import Curve


def test_the_step_from_which_a_curve_stays_above_the_others() -> None:
    def curve(*values: float) -> Curve:
        return Curve(step=[100, 200, 300, 400], value=list(values))

    others = [curve(1.0, 0.8, 0.6, 0.5), curve(1.1, 0.7, 0.65, 0.5)]
    assert curve(1.2, 0.7, 0.9, 0.9).stays_above(others) == 300
    assert curve(1.2, 0.9, 0.9, 0.9).stays_above(others) == 100
    assert curve(1.2, 0.9, 0.9, 0.4).stays_above(others) is None
    assert Curve(step=[50, 150, 300, 450], value=[9.0] * 4).stays_above(others) == 300, "the only step that others have"
    assert Curve(step=[50, 150], value=[9.0] * 2).stays_above(others) is None, "no step is common"
