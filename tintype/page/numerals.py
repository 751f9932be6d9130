"""Numbers in the format of reports, with few digits, a true minus sign, and a dash for unknown values."""

from __future__ import annotations

import math

UNKNOWN = "–"
MINUS = "−"
NO_BREAK = "\u00a0"
_MOST_DECIMALS = 6
_LARGEST_RATIO = 10.0


def decimals_showing(scale: float) -> int:
    """Return the number of decimals that shows two significant digits of a value of this size."""
    if not math.isfinite(scale) or scale <= 0:
        return 3
    return min(_MOST_DECIMALS, max(0, 1 - math.floor(math.log10(scale))))


def fixed(value: float | None, decimals: int, *, signed: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    rounded = round(value, decimals)
    digits = f"{abs(rounded):,.{decimals}f}"
    if rounded < 0:
        return MINUS + digits
    return "+" + digits if signed and rounded > 0 else digits


def significant(value: float | None, digits: int = 3) -> str:
    """Format a value without trailing zeros. Very large and very small values get a power of ten."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -5 <= exponent < 7:
        return f"{value:.{digits - 1}e}".replace("-", MINUS)
    text = fixed(value, max(0, digits - 1 - exponent))
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(ratio: float | None, *, whole: bool = False) -> str:
    """Format a signed percentage, as a `whole` number if possible; beyond ±10, as `> +1,000 %` or `< −1,000 %`."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    if abs(ratio) > _LARGEST_RATIO:
        sign, written = (">", "+") if ratio > 0 else ("<", MINUS)
        return f"{sign}{NO_BREAK}{written}{100 * _LARGEST_RATIO:,.0f}{NO_BREAK}%"
    share = 100 * ratio
    digits = fixed(share, 0 if abs(share) >= 100 else 1, signed=True)
    return (digits.removesuffix(".0") if whole else digits) + NO_BREAK + "%"


def share(ratio: float | None) -> str:
    """Format a percentage of a whole, without a plus sign."""
    return percent(ratio).lstrip("+")


def interval(low: float | None, high: float | None, decimals: int) -> str:
    if low is None or high is None:
        return ""
    return f"[{_end(low, decimals)},{NO_BREAK}{_end(high, decimals)}]"


def _end(value: float, decimals: int) -> str:
    """Format an end of an interval. If the end would be rounded to zero, add digits until its sign is visible."""
    if math.isfinite(value) and value != 0 and round(value, decimals) == 0:
        decimals = -math.floor(math.log10(abs(value)))
    return fixed(value, decimals, signed=True)


def decimals_within(low: float | None, high: float | None, otherwise: int) -> int:
    """Return the decimals that show two digits of half of an interval's width; without one, `otherwise`."""
    if low is None or high is None or not math.isfinite(high - low) or high <= low:
        return otherwise
    return decimals_showing((high - low) / 2)


def probability(p: float | None) -> str:
    if p is not None and p < 0.001:
        return f"<{NO_BREAK}0.001"
    return fixed(p, 3)


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{significant(seconds, 2)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def count(value: float, digits: int = 3) -> str:
    """Format a large number in short form, such as 3.21 M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{significant(value / size, digits)} {unit}"
    return significant(value, digits)
