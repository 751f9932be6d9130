"""Score each length of a run's weight average with the same protocol.

The result is a curve of a metric over the length. Every score is stored in the run's folder like any other evaluation,
so an interrupted curve resumes with the next length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tintype.config.strict import nearest
from tintype.errors import UserError
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Definition, Protocol, definitions
from tintype.evaluation.results import EvaluationResult
from tintype.evaluation.run import evaluate
from tintype.train.reconstruct import MOST_RESIDUAL, Reconstruction, reconstruction, try_reconstruction
from tintype.wording import option


@dataclass(frozen=True)
class Point:
    """A length of the average, the residual of its reconstruction, and its evaluation if the residual is small."""

    length: float
    residual: float
    result: EvaluationResult | None

    def value(self, metric: str) -> float | None:
        return self.result.metrics[metric] if self.result else None

    def error(self, metric: str) -> float | None:
        return self.result.errors.get(metric) if self.result else None


@dataclass
class Curve:
    run: Path
    lengths: Sequence[float]
    protocol: Protocol
    metric: str
    points: list[Point] = field(default_factory=list)
    step: int = 0
    of_scenes: bool = True

    @property
    def meaning(self) -> Definition:
        return definitions(self.protocol, self.of_scenes)[self.metric]

    @property
    def best(self) -> Point | None:
        sign = 1 if self.meaning.direction == "higher" else -1
        scored = [(value, point) for point in self.points if (value := point.value(self.metric)) is not None]
        return max(scored, key=lambda pair: sign * pair[0])[1] if scored else None

    def as_json(self) -> dict[str, object]:
        return {
            "run": str(self.run),
            "step": self.step,
            "metric": self.metric,
            "direction": self.meaning.direction,
            "best": self.best.length if self.best else None,
            "finished": len(self.points) == len(self.lengths),
            "protocol_hash": self.protocol.hash,
            "size_px": next((point.result.size_px for point in self.points if point.result), None),
            "points": [
                {
                    "length": point.length,
                    "residual": point.residual,
                    "value": point.value(self.metric),
                    "error": point.error(self.metric),
                    "metrics": point.result.metrics if point.result else None,
                }
                for point in self.points
            ],
        }


def score_lengths(
    curve: Curve, on_progress: Callable[[float, Scoring], None], device: str | None = None, threads: int | None = None
) -> None:
    """Score each length that the snapshots can represent, after a check of all. Progress is over all lengths."""
    found = [try_reconstruction(curve.run, length) for length in curve.lengths]
    curve.step = found[0].step
    if all(one.residual > MOST_RESIDUAL for one in found):
        nearest_one = min(found, key=lambda one: one.residual)
        reconstruction(curve.run, nearest_one.length)  # raises with the reason
    for index, average in enumerate(found):

        def report(now: Scoring, index: int = index, average: Reconstruction = average) -> None:
            on_progress(average.length, replace(now, share=(index + now.share) / len(found)))

        usable = average.residual <= MOST_RESIDUAL
        result = evaluate(curve.run, curve.protocol, report, device, average, threads) if usable else None
        curve.points.append(Point(average.length, average.residual, result))


def check_metric(protocol: Protocol, name: str | None, of_scenes: bool = True) -> str:
    """Return the metric's name, by default the most important one; raise if the protocol does not measure it."""
    names = list(definitions(protocol, of_scenes))
    if name is not None and name not in names:
        raise UserError(
            f"{option('metric', name)}: the evaluation protocol does not measure this metric", nearest(name, names)
        )
    return name or names[0]


def read_lengths(text: str) -> list[float]:
    """Return the distinct numbers in a text such as `0.05,0.1`."""
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        given = option("lengths", text)
        raise UserError(
            f"{given} is not a list of numbers", f"write it as {option('lengths', '0.05,0.1,0.15')}"
        ) from None
