"""Metrics of a table. The better direction and the scale of comparison are guessed from known names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final, Literal, get_args

from tintype.errors import UserError
from tintype.wording import option

Direction = Literal["lower", "higher"]
Kind = Literal["share", "distance", "loss", "raw"]
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
FORM = "NAME:lower or NAME:higher, and after that :share, :distance, :loss or :raw if you know it"

_RATE = re.compile(r"(?:per|/)_?(?:s|sec|second|min|minute|h|hour|step)$|(?:^|_)(?:tps|it_?s|mfu|t?flops)(?:_|$)")
"""Names of speeds, such as tok/sec and images_per_s. The last word of such a name alone would be the name of a time."""
_WORDS: tuple[tuple[Direction, Kind, str], ...] = (
    ("lower", "loss", "loss nll ppl perplexity bpb bpc bpt mse mae rmse ce entropy elbo"),
    ("lower", "distance", "fid kid fd fdd fvd fad mmd cmmd lpips dists distance divergence kl"),
    ("lower", "share", "wer cer"),
    ("lower", "raw", "error err time seconds latency duration runtime memory cost toxicity"),
    ("higher", "share", "accuracy acc precision recall f1 coverage auc auroc ssim iou dice geneval mmlu winrate"),
    (
        "higher",
        "raw",
        "score clip clipscore throughput speed reward psnr snr bleu rouge core inception aesthetic hps hpsv2 pickscore "
        "imagereward density",
    ),
)
_BOOKKEEPING = (
    "step steps global_step epoch iteration iterations lr learning_rate index timestamp date created params parameters "
    "num_params batch batch_size rank world_size"
)
"""Columns that count steps or hold settings, and are not metrics."""


@dataclass(frozen=True)
class Metric:
    """A column of a table, and how its values are read."""

    name: str
    direction: Direction
    kind: Kind = "raw"
    primary: bool = False
    guessed: bool = False
    """Whether the direction was guessed from the metric's name."""
    kind_given: bool = False
    """Whether the user declared the kind. If the user did not declare the kind, it follows from the metric's name."""

    @property
    def label(self) -> str:
        return self.name

    @property
    def range(self) -> tuple[float | None, float | None]:
        """Return the bounds of the metric's values; None if there are none."""
        return {"share": (0.0, 1.0), "raw": (None, None)}.get(self.kind, (0.0, None))


def guess(name: str) -> tuple[Direction, Kind] | None:
    """Return the direction and the kind of a metric with a known name. Words for losses and errors take precedence."""
    words = "_".join(_split(name))
    if _RATE.search(words) or _RATE.search(name.lower()):
        return "higher", "raw"
    found = set(words.split("_"))
    return next(((way, kind) for way, kind, known in _WORDS if found & set(known.split())), None)


def is_bookkeeping(name: str) -> bool:
    """Return whether a column is no metric, such as the step or the learning rate."""
    return "_".join(_split(name)) in _BOOKKEEPING.split()


def _split(name: str) -> list[str]:
    """Return the lower-case words of a name; `val/CLIPScore`, `throughput(tps)` and `valLoss` have two each."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z][a-z]+\b)", "_", name)
    return [word for word in re.split(r"[^a-z0-9]+", apart.lower()) if word]


def parse_metric(text: str) -> tuple[str, Direction | None, Kind | None]:
    """Parse `NAME[:lower|higher][:share|distance|loss|raw]`. A name may have colons too."""
    name, direction, kind = text.strip(), None, None
    while (parts := name.rpartition(":"))[1]:
        if kind is None and direction is None and parts[2] in KINDS:
            kind = next(one for one in KINDS if one == parts[2])
        elif direction is None and parts[2] in DIRECTIONS:
            direction = next(one for one in DIRECTIONS if one == parts[2])
        else:
            break
        name = parts[0]
    if not name:
        raise UserError(f"{option('metric', text)}: the name is missing", f"write {FORM}")
    return name, direction, kind


def metric_of(name: str, direction: Direction | None, kind: Kind | None, primary: bool) -> Metric | None:
    """Return a declared metric, with properties guessed from its name; None if the direction is unknown."""
    known = guess(name)
    if direction is None and known is None:
        return None
    usual: Kind = known[1] if known and direction in (None, known[0]) else "raw"
    way = direction or (known[0] if known else "lower")
    return Metric(name, way, kind or usual, primary, guessed=direction is None, kind_given=kind is not None)


def unknown_direction(names: Sequence[str], where: str) -> UserError:
    """Return the error for metrics whose better direction is unknown."""
    first = quote(f"{names[0]}:lower")
    return UserError(
        f"{where}: it is unknown whether lower or higher values of {', '.join(names)} are better",
        f"declare each metric that should be compared, such as {option('metric', first)}, or with :higher; "
        f"other columns are then ignored",
    )
