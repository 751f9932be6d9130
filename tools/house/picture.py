"""Draw the rooms as a house, and above it the way of the data through the seams."""

from __future__ import annotations

from pathlib import Path

from tintype.page.svg import tag, text

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "rooms.svg"
FLOORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("what people see", ("library", "terminal", "cli")),
    ("what is done with runs", ("judge", "export", "audit", "bench", "tokenizer_lab", "serve")),
    ("arms, seeds, verdicts, report", ("study",)),
    ("scores, and what a run takes", ("metrics", "evaluation", "cost")),
    ("captions to images, and the contract", ("sampling", "contract")),
    ("one loop", ("train",)),
    ("a run is a value", ("plan", "techniques")),
    ("exchangeable parts", ("vision", "text", "tokenizers", "losses", "optim")),
    ("images and captions", ("data",)),
    ("denoiser and flow", ("model", "flow")),
    ("frozen networks", ("pretrained",)),
    ("pieces of pages", ("page",)),
    ("settings and seams", ("seams", "settings", "schedule", "config", "recipes")),
    ("the ground", ("wording", "errors", "rng", "runtime", "plugins")),
)
"""Every room, the top floor first. A room uses rooms below it, and rooms to its left on the same floor."""
WAY: tuple[tuple[str, str, str], ...] = (
    ("ids", "Order", "position"),
    ("images", "ImageSource", "decoded"),
    ("captions", "CaptionsPart", "picked"),
    ("tokens, latents", "TextEncoder, Tokenizer", "encoded or cached"),
    ("t, noise, x_t, target", "Objective, TimeDensity", "drawn"),
    ("route", "Router", "kept tokens"),
    ("prediction, features", "the denoiser", "one forward"),
    ("loss", "LossTerm, Weighting", "summed"),
    ("weights", "Optimizer, WeightAverage", "updated"),
    ("checkpoint", "metrics.jsonl, events.jsonl", "on disk"),
)
"""Product of each step, the seam that makes it, and how."""
_WIDTH, _FLOOR, _ROOM, _GAP = 1120, 44, 118, 8
_BOX_W, _BOX_H = 204, 76
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1d2733}.dim{fill:#66717f;font-size:11px}.seam{fill:#9a4b00;"
    "font-size:11.5px}.box{fill:#eef3f8;stroke:#9db2c8}.step{fill:#fff7ec;stroke:#e0b680}.back{fill:#fff}"
    ".arrow{stroke:#66717f;fill:none}.title{font-size:15px;font-weight:600}"
)


def draw() -> str:
    """Return the picture as SVG."""
    way = _way(40)
    top = 40 + 2 * (_BOX_H + 30) + 40
    height = top + 30 + len(FLOORS) * (_FLOOR + _GAP)
    parts = [
        tag("title", "The way of the data through the seams, and the rooms of the package from the ground up"),
        tag("style", _STYLE),
        tag("rect", x=0, y=0, width=_WIDTH, height=height, class_="back"),
        text(20, 24, "The way of the data in one step (in orange: the seam)", class_="title"),
        *way,
        text(20, top, "The rooms: each uses only what lies below it, or to its left", class_="title"),
        *_house(top + 20),
    ]
    drawn = tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {height}", role="img")
    return f"{drawn}\n"


def _way(top: float) -> list[str]:
    parts: list[str] = []
    per_row = len(WAY) // 2
    for index, (made, seam, how) in enumerate(WAY):
        row, column = divmod(index, per_row)
        x, y = 20 + column * (_BOX_W + 14), top + row * (_BOX_H + 30)
        parts += [
            tag("rect", x=x, y=y, width=_BOX_W, height=_BOX_H, rx=6, class_="step"),
            text(x + 12, y + 24, made),
            text(x + 12, y + 44, seam, class_="seam"),
            text(x + 12, y + 63, how, class_="dim"),
        ]
        if column:
            parts.append(tag("path", d=f"M{x - 13} {y + _BOX_H / 2:g}h9m-4 -4l4 4l-4 4", class_="arrow"))
    turn = top + _BOX_H
    right, left = 20 + 4 * (_BOX_W + 14) + _BOX_W / 2, 20 + _BOX_W / 2
    parts.append(tag("path", d=f"M{right:g} {turn:g}v15H{left:g}v11m-4 -4l4 4l4 -4", class_="arrow"))
    return parts


def _house(top: float) -> list[str]:
    parts: list[str] = []
    for index, (words, rooms) in enumerate(FLOORS):
        y = top + index * (_FLOOR + _GAP)
        parts.append(text(20, y + 27, words, class_="dim"))
        width = (_WIDTH - 240 - (len(rooms) - 1) * _GAP) / len(rooms)
        for place, room in enumerate(rooms):
            x = 220 + place * (width + _GAP)
            parts.append(tag("rect", x=x, y=y, width=width, height=_FLOOR, rx=6, class_="box"))
            parts.append(text(x + width / 2, y + 27, room, anchor="middle"))
    return parts
