"""Write the page of `tintype tokenizer report` as one file with embedded style and images, and without scripts.

Tensor dimensions are N (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from markupsafe import Markup
from PIL import Image
from torch import Tensor

from tintype.metrics.frechet_distance import FD
from tintype.metrics.reconstruction import pair_name, psnr
from tintype.metrics.table import PAIR_METRICS
from tintype.page import numerals, svg
from tintype.page.template import image_uri, template

if TYPE_CHECKING:
    from tintype.tokenizer_lab.report import TokenizerReport

_LARGEST_PX = 512
_PIXELATED_PX = 160
_COLOURS = 8
_METRICS = {pair_name(metric): metric for metric in PAIR_METRICS}
"""Metrics that compare pairs of images, by column. All other columns are Fréchet distances."""
_CHART_WIDTH, _CHART_HEIGHT = 480.0, 210.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 38.0, 8.0, 12.0, 26.0


Cells: TypeAlias = dict[str, Any]
"""A row of the results, or the row's content for the template."""


def to_html(result: TokenizerReport, image_NCHW: Tensor, trips: Sequence[Tensor]) -> str:
    """Return the report's page. `trips` has the reconstructions of the shown images, one tensor per tokenizer."""
    rows = [{**row, "colour": f"arm-{index % _COLOURS}"} for index, row in enumerate(result.tokenizers)]
    return template("tintype.tokenizer_lab", "report.html.j2").render(
        result=result,
        rows=rows,
        metrics=[_metric(name, rows) for name in rows[0]["metrics"]],
        label=_label,
        latent_charts=[(row["name"], _latent_chart(row)) for row in rows],
        images=_images(image_NCHW, [row["name"] for row in rows], trips),
        pixelated=result.images["size_px"] <= _PIXELATED_PX,
    )


def _label(name: str) -> str:
    if (metric := _METRICS.get(name)) is None:
        return f"{FD.label} ({name.removeprefix(f'{FD.name}_')})"
    return ", ".join(filter(None, [metric.label, metric.unit]))


def _metric(name: str, rows: Sequence[Cells]) -> Cells:
    """Return one column: a text for each row, and the name of the best lossy row."""
    lossy = {row["name"]: row["metrics"][name] for row in rows if not row["exact"]}
    metric = _METRICS.get(name, FD)
    best = (max if metric.direction == "higher" else min)(lossy, key=lambda key: lossy[key]) if len(lossy) > 1 else None
    cells = {}
    for row in rows:
        error = row["errors"].get(name)
        digits = min(4, numerals.decimals_showing(abs(row["metrics"][name] or 0.0)) + 1)
        decimals = digits if metric.decimals is None else metric.decimals
        value = "exact" if row["exact"] else numerals.fixed(row["metrics"][name], decimals)
        spread = f"± {numerals.fixed(error, decimals)}" if error is not None and not row["exact"] else ""
        cells[row["name"]] = (value, spread)
    return {"label": _label(name), "direction": f"{metric.direction} is better", "best": best, "cells": cells}


def _images(image_NCHW: Tensor, names: Sequence[str], trips: Sequence[Tensor]) -> list[list[Cells]]:
    """For each image, return the original and every tokenizer's reconstruction with its PSNR."""
    psnrs = [psnr(image_NCHW, seen_NCHW).tolist() for seen_NCHW in trips]
    rows = []
    for index, image_CHW in enumerate(image_NCHW):
        row: list[Cells] = [{"name": "original", "uri": _uri(image_CHW), "psnr": ""}]
        for name, seen_NCHW, of_all in zip(names, trips, psnrs, strict=True):
            value = "exact" if of_all[index] == float("inf") else f"{of_all[index]:.1f} dB"
            row.append({"name": name, "uri": _uri(seen_NCHW[index]), "psnr": value})
        rows.append(row)
    return rows


def _uri(image_CHW: Tensor) -> str:
    return image_uri(Image.fromarray(image_CHW.permute(1, 2, 0).cpu().numpy()), _LARGEST_PX)


def _latent_chart(row: Cells) -> Markup:
    """Draw the range from mean − std to mean + std of each channel; grid lines at -1, 0 and 1 show the ideal."""
    pairs = list(zip(row["latent_mean"], row["latent_std"], strict=True))
    ends = [edge for mean, std in pairs for edge in (mean - std, mean + std)]
    low, high = svg.padded([*ends, -1.2, 1.2])
    up = svg.Scale(low, high, _CHART_HEIGHT - _BOTTOM, _TOP)
    across = svg.Scale(-0.6, len(pairs) - 0.4, _LEFT, _CHART_WIDTH - _RIGHT)
    ticks = sorted({-1.0, 0.0, 1.0, *(tick for tick in up.ticks(4) if abs(tick) >= 2)})
    parts: list[str] = []
    for tick, words in zip(ticks, svg.tick_labels(ticks), strict=True):
        parts.append(svg.line(_LEFT, up(tick), _CHART_WIDTH - _RIGHT, up(tick), "zero" if tick == 0 else "grid"))
        parts.append(svg.text(_LEFT - 6, up(tick) + 4, words, anchor="end", class_="tick"))
    for index, (mean, std) in enumerate(pairs):
        x = across(index)
        reach = svg.line(x, up(mean - std), x, up(mean + std), "reach")
        parts.append(svg.tag("g", reach, svg.circle(x, up(mean), 3, "mean"), class_=row["colour"]))
    for index in range(0, len(pairs), max(1, len(pairs) // 8)):
        parts.append(svg.text(across(index), _CHART_HEIGHT - 8, str(index), anchor="middle", class_="tick"))
    description = f"{row['name']}: mean plus and minus one standard deviation of each channel of the latents"
    return svg.drawing(_CHART_WIDTH, _CHART_HEIGHT, description, parts)
