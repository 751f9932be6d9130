"""Results that several pages share and that no study's comparison gives: calibration, speed, what tests count."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from tests.fault.harness import CACHE_KILLS, KILLS, LATENT_KILLS, SNAPSHOT_KILLS
from tools.figures.data import data, spread, table
from tools.figures.pages import Block, Claim, Quote

SPEED = "studies/2026-11-16_speed-1b"


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


def calibration_in_short() -> Iterator[Claim]:
    usual = [row for row in false_verdicts() if "unequal" not in row["shape"]]
    worst = max(row["either"] for row in false_verdicts())
    counts = sorted({row["studies"] for row in false_verdicts()})
    yield Quote(
        f"Of each kind, {counts[0]:,} to {counts[-1]:,} studies without any true difference were simulated. A false "
        f"verdict is in {shares(usual, 'either')}% of them where spreads are equal or differ as those of arms do, "
        "skewed or not. The worst that was found is "
        f"{100 * worst:.0f}%: one arm with three times the spread of the others and a long tail"
    )


def bench(*names: str) -> list[dict[str, Any]]:
    """Return the rows of `tintype bench --json`. Check that no row failed or was compiled while it was timed."""
    rows = [row for name in names for row in data(f"{SPEED}/{name}.json")["rows"]]
    for row in rows:
        if row["failed"] or row["recompiled"] or row["graph_breaks"]:
            raise ValueError(
                f"{SPEED}: {row['technique']} at {row['tokens']} tokens failed, recompiled or broke a graph"
            )
    return rows


def row_of(rows: list[dict[str, Any]], technique: str, **wanted: int) -> dict[str, Any]:
    return next(
        row for row in rows if row["technique"] == technique and all(row[key] == value for key, value in wanted.items())
    )


def images_per_s(row: dict[str, Any]) -> str:
    speed = row["images_per_s"]
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"


TOKENS = (256, 1024, 4096)
BATCHES = (32, 256)


def optimizer_rows() -> list[dict[str, Any]]:
    return bench(*(f"optimizers-batch-{batch}" for batch in BATCHES))


def speed_of_routing() -> Claim:
    """The ratios, as README.md shows them."""
    rows, made = bench("routing"), []
    for tokens in TOKENS:
        dense, *routed = (row_of(rows, name, tokens=tokens) for name in ("dense", "tread", "sprint"))
        made.append([f"{tokens:,}", images_per_s(dense), *(f"{row['times_dense']:.2f} ×" for row in routed)])
    return Block("speed-of-routing", table(["image tokens", "dense images/s", "`tread`", "`sprint`"], made))


def speed_of_routing_in_full() -> Iterator[Claim]:
    rows, made = bench("routing"), []
    for tokens in TOKENS:
        dense, tread, sprint, again = (
            row_of(rows, name, tokens=tokens) for name in ("dense", "tread", "sprint", "dense again")
        )
        speeds = [f"{images_per_s(row)} ({row['times_dense']:.2f} ×)" for row in (tread, sprint, again)]
        memory = " / ".join(f"{row['peak_gib']:.0f}" for row in (dense, tread, sprint))
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
    tread = row_of(rows, "tread", tokens=4096)
    yield Quote(f"and took {1 / tread['times_dense']:.2f} of the time")


def share_of_muon() -> Claim:
    few, many = (row_of(optimizer_rows(), "muon", batch=batch)["optimizer_share"] for batch in BATCHES)
    return Quote(
        f"At 1.17 billion parameters, Muon's update takes {100 * few:.0f}% of the step's time with a batch of "
        f"{BATCHES[0]} images, and {100 * many:.0f}% with a batch of {BATCHES[1]}"
    )


def speed_of_optimizers() -> Claim:
    made = []
    for batch in BATCHES:
        for technique in ("dense", "muon"):
            row = row_of(optimizer_rows(), technique, batch=batch)
            made.append(
                [
                    str(batch),
                    "AdamW" if technique == "dense" else "`muon`",
                    f"{1000 * row['step_s']:.0f} ms",
                    f"{1000 * row['optimizer_s']:.1f} ms",
                    f"{100 * row['optimizer_share']:.1f}%",
                    f"{row['times_floor']:.2f}" if row["times_floor"] else "",
                ]
            )
    return Block(
        "speed-of-optimizers", table(["batch", "optimizer", "step", "of it the optimizer", "share", "× floor"], made)
    )


def speed_beside_prx() -> Iterator[Claim]:
    """Training, sampling and studies beside PRX and the limit. Of rates the higher is faster, of seconds the lower."""
    known, made = data("docs/speed/table.json"), []
    for row in known["rows"]:
        ours, prx, limit = _figure(row["tintype"]), row["prx"] and _figure(row["prx"]), row["limit"]
        ratio = f" ({(prx / ours if row['unit'] == 's' else ours / prx):.2f} ×)" if prx else ""
        cells = [f"{value:.3g} {row['unit']}" if value else "" for value in (ours, prx, limit)]
        made.append([row["work"], cells[0] + ratio, *cells[1:]])
    yield Block("speed", table(["work", "tintype", "PRX", "limit"], made))
    yield Quote(f"The measurements used one {known['device']} and torch {known['torch']}. A ratio above 1")
    yield Quote(f"large bf16 product ({known['matmul_tflop_per_s']} TFLOP/s in that run)")
    yield Quote(f"at {known['copy_tb_per_s']} TB/s")
    yield from _power()
    apart = [_figure(["optimizer", name]) for name in ("AdamW and clipping apart, ms", _APART)]
    yield Quote(
        f"As separate passes they take {apart[0]:.3g} ms without average and copies, and {apart[1]:.3g} ms with them"
    )
    warm = [_figure(["sampling", kind, "until the first image, s"]) for kind in ("plain", "fp8")]
    cold = [_figure(["sampling", "with an empty cache of kernels", kind]) for kind in ("plain", "fp8")]
    yield Quote(
        f"the first image of a process takes {cold[0]:.1f} s, and {cold[1]:.1f} s in FP8. With the kernels in Triton's "
        f"cache, it takes {warm[0]:.1f} and {warm[1]:.1f} s"
    )
    step = "first step with an empty cache of kernels, s"
    first_s = _figure(["training", step, "256 tokens, micro-batch 32, plain"])
    yield Quote(f"With an empty cache, and other work on the CPU, it took {first_s:.1f} s")


def _power() -> Iterator[Claim]:
    """Clock, power and energy of a step of the large model, beside PRX's."""
    found = data("docs/speed/h200/training.json")
    ours, prx = (found[f"256 tokens, micro-batch 128, {kind}"] for kind in ("plain", "PRX"))
    watts, clocks = ([one[key] for one in (ours, prx)] for key in ("power, W", "clock, MHz"))
    yield Quote(f"draw {watts[0]:.0f} and {watts[1]:.0f} W", holds=min(watts) > 0.98 * 700)
    yield Quote(f"clocks are at {clocks[0]:,.0f} and {clocks[1]:,.0f} MHz", holds=max(clocks) < 0.9 * 1980)
    joules = [one["power, W"] * one["step, s"] for one in (ours, prx)]
    yield Quote(f"a step takes {joules[0]:.0f} J in tintype and {joules[1]:.0f} J in PRX")


def speed_by_part() -> Iterator[Claim]:
    found = data("docs/speed/h200/profile.json")["ms"]
    names = {"mini 128": "`mini`, batch 128", "mini 256": "`mini`, batch 256", "1.17B 128": "1.17B, micro-batch 128"}
    large = found["1.17B 128"]
    parts = [part for part in large if part not in ("wall", "longest of the rest")]
    rows = [[names[key], *(f"{found[key][part]:.1f}" for part in parts)] for key in names]
    yield Block("profile", table(["work", *parts], rows))
    yield Quote(f"without anything else a step would be {large['all kernels'] / large['products']:.2f} times as fast")
    passes = sum(large[part] for part in ("MLP's gate", "heads", "norms and residuals", "rest"))
    yield Quote(f"Passes over memory (gate, heads, norms, rest) are {passes:.0f} ms of the large model's step")
    passes_back = data("docs/speed/h200/attention.json")["backward_us"]
    short, long = (one["cudnn"] / one["tintype"] for one in passes_back.values())
    yield Quote(f"cuDNN's kernel takes {short:.2f} times as long at 256 tokens, and {long:.2f} times at 1,024")
    forward = data("docs/speed/h200/attention.json")["forward_us"]["2 images of 4,096 tokens"]
    yield Quote(
        f"{forward['without']:.0f} instead of {forward['with a running maximum']:.0f} µs for two images of 4,096"
    )
    small = found["mini 256"]
    of_passes = sum(small[part] for part in ("MLP's gate", "heads", "norms and residuals"))
    of_attention = small["attention forward"] + small["attention backward"]
    yield Quote(
        f"A step with 256 images takes {small['all kernels']:.1f} ms. Its products take {small['products']:.1f} ms, "
        f"attention {of_attention:.1f}, passes over memory {of_passes:.1f} and the rest {small['rest']:.1f}"
    )


def speed_of_products() -> Iterator[Claim]:
    """The products of a step, half of them forward with sums in fewer bits, half for gradients with sums in fp32."""
    found = data("docs/speed/h200/products.json")
    rows, tensors = (
        fmean(found[f"FP8, a scale for each {kind}, sums in {sums}, ms"] for sums in ("fewer bits", "fp32"))
        for kind in ("row", "tensor")
    )
    yield Quote(
        f"The products take {rows:.1f} ms with a scale for each row, {tensors:.1f} ms with a scale for each tensor, "
        f"and {found['bf16, ms']:.0f} ms in bf16"
    )
    half, eighth = (found[f"weights' gradients, {way}, ms"] for way in ("bf16", "FP8 with its transposes"))
    yield Quote(f"take {eighth:.1f} ms in FP8, which needs both operands transposed, and {half:.1f} ms in bf16")


def speed_at_true_size() -> Iterator[Claim]:
    """Steps of PRX's plans with all their networks, and where their time goes."""
    found, rows = data("docs/speed/h200/true_size.json")["runs"], []
    shares = {"text": "text encoder", "tokenizer": "autoencoder", "forward": "forward", "backward": "backward"}
    for name, run in found.items():
        split = [f"{100 * run['time_split'][part]:.0f}%" for part in shares]
        speeds = [f"{run[key]:.3g}" for key in ("images_per_s", "images_per_s_without_text")]
        published = run["published"]
        theirs = f"{published['batches_per_s']} ({published['images_per_s_of_a_gpu_if_they_were_eight']:.3g})"
        rows.append([f"`{name}`", *speeds, *split, f"{run['peak_allocated_gib']:.0f}", theirs])
    header = ["recipe", "images/s", "without the text encoder", *shares.values(), "GiB", "published batches/s"]
    yield Block("true-size", table(header, rows))
    tokens = [run["caption_tokens"] for run in found.values()]
    yield Quote(
        f"{tokens[0]['mean']:.0f} tokens on average",
        holds=len({one["mean"] for one in tokens}) == 1,
    )
    apart = data("docs/speed/h200/true_size.json")["micro_batches_read_apart"]["runs"]
    then = [f"{apart[name]['images_per_s']:.3g}" for name in ("prx-256", "prx-jit-1024")]
    yield Quote(f"there were {then[0]} and {then[1]} images/s without `repa`", holds=len(apart) == 2)
    aligned = found["prx-256, repa"]["images_per_s"] / found["prx-256"]["images_per_s"]
    yield Quote(f"`repa` with a DINOv2-B, in bf16 and not compiled, costs {100 * (1 - aligned):.1f}% here")
    jit = found["prx-jit-1024"]["steps_s"]
    yield Quote(
        f"its second step took {jit[1]:.2f} s, and those after it {min(jit[2:]):.2f} to {max(jit[2:]):.2f} s",
        holds=jit[1] < min(jit[2:]),
    )


def speed_with_teachers() -> Iterator[Claim]:
    """Steps of the 1.17B denoiser with REPA, by the teacher's size and arithmetic."""
    rows = data("docs/speed/h200/teachers.json")["rows"]
    made = []
    for row in rows:
        name = row["technique"].removeprefix("repa, ").replace("dinov2-b", "DINOv2-B").replace("dinov2-l", "DINOv2-L")
        shares = [f"{100 * row['time_split'][part]:.0f}%" for part in ("teacher", "losses")]
        less = 100 * (1 - row["times_dense"])
        made.append([name, f"{row['images_per_s']:.0f}", f"{round(less, 1) + 0:.1f}%", *shares])
    yield Block("teachers", table(["teacher", "images/s", "less than dense", "teacher", "losses"], made))
    again = next(row for row in rows if row["technique"] == "dense again")
    yield Quote("the last row repeats the first", holds=abs(again["times_dense"] - 1) < 0.01 and again is rows[-1])


def speed_of_workers() -> Iterator[Claim]:
    """Runs an hour, and what the Multi-Process Service brought, by one version with and without it."""
    names = ("study", "study-with-mps", "study-without-mps")
    now, with_it, without = (data(f"docs/speed/h200/{name}.json") for name in names)
    rates = [one["warm_runs_per_hour"] for one in (with_it, without)]
    yield Quote(
        f"the rate was {rates[0]:.0f} runs an hour with MPS ({with_it['runs']} runs) and {rates[1]:.0f} without "
        f"({without['runs']} runs). With MPS it was {rates[0] / rates[1]:.2f} times as fast",
        holds=rates[0] > rates[1],
    )
    yield Quote(f"Of {now['runs']} runs, {now['runs'] - now['jobs']} count")
    first, later = (now[key]["training_s"] + now[key]["scoring_s"] for key in ("first", "later"))
    yield Quote(f"The first run of each worker takes {first - later:.0f} s longer")
    yield Quote(f"With the start of the workers, the rate is {now['runs_per_hour']:.0f} runs an hour")


def exactness() -> Iterator[Claim]:
    """The cost of deterministic algorithms, from the same steps with and without them."""
    found = data("docs/speed/h200/deterministic.json")
    small, middle, large = (f"{100 * (1 - row['with'] / row['without']):.1f}%" for row in found["images/s"])
    yield Quote(
        f"`run.deterministic` costs {small} of the speed of `mini` with a batch of 128, {middle} with 256, and "
        f"{large} with 1.17 billion parameters"
    )


_APART = "with the average and the copies, apart, ms"


def _figure(source: float | list[str | int]) -> float:
    """Return a number, or that at a place in a file of docs/speed/h200; seconds of a step in milliseconds."""
    if not isinstance(source, list):
        return source
    found = data(f"docs/speed/h200/{source[0]}.json")
    for key in source[1:]:
        found = found[key]
    return float(found) * (1000 if source[-1] == "step_s" else 1)
