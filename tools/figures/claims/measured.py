"""Results that several pages share and that no study's comparison gives: calibration, speed, what tests count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.fault.harness import CACHE_KILLS, KILLS, LATENT_KILLS, SNAPSHOT_KILLS
from tools.figures.data import data, spread, table
from tools.figures.pages import Block, Claim, Quote

SPEED = "studies/2026-11-16_speed-1b"
LARGE = "1.17 billion parameters"


def kill_points() -> int:
    """How many points of a step, a save or a cache the tests kill a run at."""
    return len(KILLS + SNAPSHOT_KILLS + LATENT_KILLS + CACHE_KILLS)


def calibration() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = data("docs/calibration.json")
    return found


def shares(rows: list[dict[str, Any]], key: str, to: str = " to ", digits: int = 0) -> str:
    """The range of a share in percent, without the sign."""
    return spread((row[key] for row in rows), lambda share: f"{100 * share:.{digits}f}", to)


def false_verdicts(**wanted: object) -> list[dict[str, Any]]:
    return [row for row in calibration()["false_verdicts"] if all(row[key] == value for key, value in wanted.items())]


def found_by_student() -> str:
    return shares([row for row in calibration()["power"] if row["test"] == "student"], "found")


def calibration_in_short() -> Iterator[Claim]:
    normal = shares(false_verdicts(test="student", shape="normal", arms=2), "either")
    worst = max(row["either"] for row in calibration()["false_verdicts"])
    yield Quote(
        f"in {data('docs/calibration.json')['studies']:,} simulated studies where nothing differs and spreads are "
        f"normal, {normal}% have any false verdict, and planted changes of the stated smallest size are found in "
        f"{found_by_student()}%"
    )
    yield Quote(f"false verdicts are more: up to {100 * worst:.0f}%")


def bench(name: str) -> list[dict[str, Any]] | None:
    """Return the rows of a `tintype bench --json` that can be trusted; None where it has not been measured."""
    found = data(f"{SPEED}/{name}.json")
    if found is None:
        return None
    rows: list[dict[str, Any]] = found["rows"]
    for row in rows:
        if row["failed"] or row["recompiled"]:
            raise ValueError(f"{SPEED}/{name}.json: {row['technique']} at {row['tokens']} tokens failed or recompiled")
    return rows


def row_of(rows: list[dict[str, Any]], technique: str, **wanted: int) -> dict[str, Any]:
    return next(
        row for row in rows if row["technique"] == technique and all(row[key] == value for key, value in wanted.items())
    )


def speed_of_routing() -> Iterator[Claim]:
    if rows := bench("routing"):
        header = [f"image tokens ({LARGE}, one H200)", "dense images/s", "`tread`", "`sprint`"]
        yield Block("speed-of-routing", table(header, [_ratios(rows, tokens) for tokens in (256, 1024, 4096)]))


def _ratios(rows: list[dict[str, Any]], tokens: int) -> list[str]:
    dense, *routed = (row_of(rows, name, tokens=tokens) for name in ("dense", "tread", "sprint"))
    return [f"{tokens:,}", images_per_s(dense), *(f"{row['times_dense']:.2f} ×" for row in routed)]


def images_per_s(row: dict[str, Any]) -> str:
    speed = row["images_per_s"]
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"


def speed_of_routing_in_full() -> Iterator[Claim]:
    if rows := bench("routing"):
        made = []
        for tokens in (256, 1024, 4096):
            here = [row_of(rows, name, tokens=tokens) for name in ("dense", "tread", "sprint", "dense again")]
            dense, tread, sprint, again = here
            speeds = [f"{images_per_s(row)} ({row['times_dense']:.2f} ×)" for row in (tread, sprint, again)]
            memory = " / ".join(f"{row['peak_gib']:.0f}" for row in here[:3])
            made.append([f"{tokens:,}", str(dense["batch"]), images_per_s(dense), *speeds, memory])
        header = [
            "tokens",
            "batch",
            "dense images/s",
            "`tread`",
            "`sprint`",
            "dense again",
            "GiB dense / `tread` / `sprint`",
        ]
        yield Block("speed-of-routing", table(header, made))


MUON = ("dense", "muon", "muon:modulation=false")


def share_of_muon() -> Iterator[Claim]:
    if rows := bench("muon"):
        few, many = (row_of(rows, "muon", batch=batch)["optimizer_share"] for batch in (32, 256))
        yield Block(
            "share-of-muon",
            [
                f"At {LARGE} Muon's optimizer is {100 * few:.0f}% of a step of 32 images and {100 * many:.0f}% of "
                "one of 256",
                "([how it was measured](docs/speed.md#optimizers)).",
            ],
        )


def speed_of_optimizers() -> Iterator[Claim]:
    measured = [
        (model, row_of(rows, technique, batch=batch))
        for model, name, batches in (("`mini`", "muon-mini", (256,)), (LARGE, "muon", (32, 256)))
        if (rows := bench(name))
        for batch in batches
        for technique in MUON
        if any(row["technique"] == technique for row in rows)
    ]
    if measured:
        made = [
            [
                model,
                str(row["batch"]),
                "AdamW" if row["technique"] == "dense" else f"`{row['technique']}`",
                f"{1000 * row['step_s']:.0f} ms",
                f"{1000 * row['optimizer_s']:.1f} ms",
                f"{100 * row['optimizer_share']:.1f}%",
                f"{row['times_floor']:.2f}" if row["times_floor"] else "",
            ]
            for model, row in measured
        ]
        header = ["model", "batch", "optimizer", "step", "of it the optimizer", "share", "× floor"]
        yield Block("speed-of-optimizers", table(header, made))


def speed_of_fp8() -> Iterator[Claim]:
    if rows := bench("fp8"):
        made = []
        for batch in (32, 256):
            dense, fp8 = (row_of(rows, name, batch=batch) for name in ("dense", "fp8"))
            memory = f"{dense['peak_gib']:.1f} / {fp8['peak_gib']:.1f}"
            made.append([str(batch), images_per_s(dense), f"{fp8['times_dense']:.2f} ×", memory])
        header = [f"batch ({LARGE})", "dense images/s", "`fp8`", "GiB dense / `fp8`"]
        yield Block("speed-of-fp8", table(header, made))
