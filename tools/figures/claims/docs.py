"""The pages of docs that report results."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from statistics import correlation
from typing import get_args

import torch
from rich.console import Console

from tests.fault.harness import BACKGROUND_KILLS
from tintype.metrics.memorisation import OWN
from tintype.metrics.metric import MARGIN
from tintype.model import Transformer
from tintype.optim.muon import MuonSettings, newton_schulz_flops
from tintype.optim.power_function import Profile, fit
from tintype.page import numerals
from tintype.settings import ModelSettings
from tintype.study.bank import LEVEL
from tintype.study.ledger import ERROR, FLATNESS
from tintype.study.pooling import DIFFER
from tintype.study.power import plan_power
from tintype.study.propose import NOT_WORSE
from tintype.study.results import Arm, read_results_file
from tintype.study.stats.estimate import CONFIDENCE
from tintype.study.stats.family import UNSTABLE
from tintype.study.stats.pairing import ALIKE, NARROWER
from tintype.study.stats.spread import CENTRE_WEIGHT, LEAST_FREEDOM, MOST_FREEDOM, STORED_FULL
from tintype.terminal.answers import EXIT_CODES
from tintype.terminal.power import Seeds
from tintype.train.reconstruct import MOST_RESIDUAL
from tools.calibration.simulate import USUAL_PAIRING, Shape, tolerance
from tools.figures.claims import measured
from tools.figures.claims.measured import calibration, false_verdicts, shares
from tools.figures.claims.studies import (
    ACCURACY,
    ACCURACY_SHORT,
    TUNED,
    UNDECIDED,
    captions_and_target,
    repa_e_is_above_the_frozen_vae,
    tokenizers,
    tokenizers_photos,
)
from tools.figures.data import ROOT, data, table
from tools.figures.pages import Block, Claim, Quote

SEEDS = (3, 5, 8)


def captions_page() -> Iterator[Claim]:
    one = captions_and_target()
    yield Quote(
        "the arm with short captions is worse on long prompts and undecided on short prompts",
        holds=[one.compared("short-captions", metric).verdict for metric in (ACCURACY, ACCURACY_SHORT)]
        == ["worse", "undecided"],
    )


def checkpoints_page() -> Iterator[Claim]:
    yield from measured.exactness()
    yield Quote(f"SIGKILL at {measured.kill_points()} points")
    yield Quote(f"and at {len(BACKGROUND_KILLS)} of a run that saves in the background")
    hog = data("docs/memory_hog.json")
    finished = [run for run in hog["runs"] if run["finished"]]
    on, off = ([run for run in finished if run["safeguard"] == state] for state in (True, False))
    met = [run for run in on if run["memory ran out"] == "silent"]
    (other,) = (run for run in off if run["weights"] != hog["alone"])
    yield Quote(
        f"{len(on)} runs of `irepa` shared a GPU with a process that repeatedly took nearly all of its memory. "
        "All runs ended with the same weights as a run without sharing. One of them had run out of memory and resumed",
        holds=len(met) == 1 and all(run["weights"] == hog["alone"] for run in on),
    )
    yield Quote(
        f"1 of {len(off)} runs ended with other weights, and the failure count had risen by {other['hidden failures']}",
        holds=bool(other["hidden failures"]),
    )


def reliability_page() -> Iterator[Claim]:
    found = data("docs/reliability.json")

    def row(number: str, promise: str) -> list[str]:
        records = [one for one in found["records"] if one["promise"] == int(number)]
        proofs, controls = ([one for one in records if (one["control"] is None) is kind] for kind in (True, False))
        tries, failures = (f"{sum(one[key] for one in proofs):,}" for key in ("tries", "failures"))
        how = "; ".join(dict.fromkeys(_lower_first(one["how"]) for one in proofs if one["how"]))
        without = "; ".join(f"{one['control']}: {one['failures']:,} of {one['tries']:,} fail" for one in controls)
        return [number, promise, how, tries, failures, without]

    header = ["", "promise", "how it is tested", "tries", "failures", "without the safeguard"]
    machine = found["machine"]
    yield Block("promises", table(header, (row(*one) for one in found["promises"].items())))
    versions = f"Python {machine['python']}, torch {machine['torch']}, {machine['system']}, {machine['cores']} cores"
    commits = " and ".join(f"`{one}`" for one in sorted({one["commit"] for one in found["records"]}))
    yield Block("promises-machine", [f"Tried at {commits} with {versions}."])


def _lower_first(text: str) -> str:
    """Without its capital, unless its first word is an abbreviation."""
    return text[:1].lower() + text[1:] if text[:2].istitle() and not text.startswith("NaN") else text


def scenes_page() -> Iterator[Claim]:
    accuracy = data("tintype/vision/scene_encoder.json")["accuracy"]
    styles = ["render", "photo"]

    def texture(size: str, digits: int) -> list[str]:
        return [f"{100 * accuracy[size][style]['texture']:.{digits}f}%" for style in styles]

    rows = [
        [f"{size} px", *(f"{100 * accuracy[size][style]['overall']:.1f}%" for style in styles)]
        for size in ("16", "32", "64", "128")
    ]
    yield Block("scene-encoder", table(["size", *(f"`{style}`" for style in styles)], rows))
    large, small = texture("64", 1), texture("16", 0)
    others = [
        value
        for by_style in accuracy.values()
        for by_name in by_style.values()
        for name, value in by_name.items()
        if name not in ("texture", "overall")
    ]
    yield Quote(
        f"Texture is the hardest: {large[0]} (`render`) and {large[1]} (`photo`) at 64 px, {small[0]} and {small[1]} "
        f"at 16 px; everything else is at least {math.floor(1000 * min(others)) / 10}% at every size"
    )
    asked = [int(size) for size, of in accuracy.items() if min(of[style]["texture"] for style in styles) >= 0.95]
    yield Quote(f"texture is not checked below {min(asked)} px")


def speed_page() -> Iterator[Claim]:
    whole, without = (
        f"{newton_schulz_flops(settings, _prx()) / 1e12:.1f}"
        for settings in (MuonSettings(), MuonSettings(modulation=False))
    )
    yield Quote(
        f"For PRX's {_billions()} billion parameters that is {whole} TFLOP a step, {without} without the modulation "
        "matrices"
    )
    yield from measured.speed_beside_prx()
    yield from measured.speed_by_part()
    yield from measured.speed_of_products()
    yield from measured.speed_at_true_size()
    yield from measured.speed_with_teachers()
    yield from measured.speed_of_workers()
    yield from measured.speed_of_routing_in_full()
    yield measured.speed_of_optimizers()


def statistics_page() -> Iterator[Claim]:
    yield Quote(
        f"For most metrics the margin is {MARGIN} of the baseline's value ({OWN.margin} for shares of memorised images)"
    )
    yield Quote(f"  margin: {MARGIN}            # or 0.02, in the metric's unit")
    yield Quote(f"with d = max({CENTRE_WEIGHT:g}, e)")
    yield Quote(f"The centre counts as e degrees of freedom, from {LEAST_FREEDOM:g} to {MOST_FREEDOM:g}")
    yield Quote(f"make the interval narrower than {NARROWER:g} of the plain one", holds=ALIKE == 4 / 3)
    yield Quote(f"at a level of {UNSTABLE:.0%} that the arms share")
    yield Quote(f"Three arms on eight metrics are {3 * 8} comparisons")
    yield _correlations()
    yield Block("five-arms", _five_arms())
    yield from _calibration()
    yield Block("bank", _bank())
    bank = data("docs/bank.json")
    yield Quote(f"each row is of {bank['studies']:,} drawn studies")
    yield Quote(f"({bank['runs']['muon 3e-3']} seeds of a baseline, of its control and of three arms, nine metrics)")
    false, held = ([row[key] for row in bank[part]] for part, key in (("null", "false_verdicts"), ("real", "holds")))
    yield Quote(
        f"At most {100 * max(false):.1f}% of these studies have a false verdict, and at least {100 * min(held):.1f}% "
        "of their verdicts are confirmed",
        holds=max(false) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / bank["studies"]) and min(held) >= 0.95,
    )
    yield Block("stored", _stored())
    stored = data("docs/stored.json")
    with_control = [
        one["false"] for row in stored["rows"] for part in ("shapes", "biases") for one in row[part].values()
    ]
    few, *more = ([one["with"] - one["without"] for one in row["finds"].values()] for row in stored["rows"])
    yield Quote(
        f"with {stored['runs']} stored runs, in percent", holds=stored["studies"] == 1_000 and stored["level"] == LEVEL
    )
    yield Quote(
        "With a control, the error level holds for any bias",
        holds=max(with_control) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / stored["studies"]),
    )
    yield Quote(
        "few runs of the baseline and often fails to detect a bias of half a standard deviation or more",
        holds=max(one["false"] for row in stored["rows"] for one in row["without_control"].values()) > 0.1,
    )
    yield Quote("With three seeds, stored runs hardly help", holds=max(few) < 0.04 < min(map(max, more)))
    yield Quote(
        f"From {STORED_FULL} stored runs on, the centre counts at least {LEAST_FREEDOM + 3:g} degrees of freedom "
        f"instead of {LEAST_FREEDOM:g}, and the skewness counts half"
    )
    yield Quote(f"with the stored runs by an interval at {LEVEL:.0%}")
    yield Quote(f"differ more than chance explains (p below {DIFFER:.0%})")
    yield Quote(f"Either interval has a confidence of {CONFIDENCE:.0%} by itself")
    yield Quote(
        "with 16 seeds there is room for two arms",
        holds={row["arms"] for row in bank["null"] if row["seeds"] == 16} == {2},
    )
    yield from _power_output()


def _stored() -> list[str]:
    """Simulated studies that stored runs serve."""
    found = data("docs/stored.json")["rows"]
    heads = ["Seeds", "False: no bias", "t3", "Skewed", "Differing", "Bias 0.25", "0.5", "1", "2"]
    heads += ["Without a control: bias 0", "0.5", "1", "2", "Finds 1.5 sd without", "with", "2 sd without", "with"]
    rows = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in found:
        false = [row["shapes"][shape]["false"] for shape in ("normal", "t3", "skewed", "differing")]
        false += [row["biases"][bias]["false"] for bias in ("0.25", "0.5", "1", "2")]
        false += [row["without_control"][bias]["false"] for bias in ("0", "0.5", "1", "2")]
        finds = [row["finds"][size][kind] for size in ("1.5", "2") for kind in ("without", "with")]
        cells = [*(f"{100 * one:.1f}" for one in false), *(f"{100 * one:.0f}" for one in finds)]
        rows.append(f"| {row['seeds']} | {' | '.join(cells)} |")
    return rows


def _five_arms() -> list[str]:
    """Simulated studies of five arms."""
    shapes = {
        "normal": "equal spreads",
        "t3": "t3",
        "collapsing": "collapsing",
        "shares": "shares",
        "relative": "relative",
        "skewed": "skewed",
        "differing": "differing",
        "unequal": "one arm 3 times",
        "slightly skewed and unequal": "slightly skewed, 3 times",
        "skewed and unequal": "skewed, 3 times",
    }
    sizes = ("1", "1.5", "2", "3")
    header = ["Seeds", *(f"False: {name}" for name in shapes.values()), *(f"Finds {one} sd" for one in sizes)]
    rows = [
        [
            str(row["seeds"]),
            *(f"{100 * row['false_verdicts'][shape]:.1f}" for shape in shapes),
            *(f"{100 * row['found'][size]:.0f}" for size in sizes),
        ]
        for row in calibration()["five_arms"]
    ]
    return table(header, rows)


def _bank() -> list[str]:
    """Studies drawn from real runs: of the baseline alone, and of real arms."""
    found = data("docs/bank.json")
    real = {row["seeds"]: row for row in found["real"]}
    sizes = ("1", "1.5", "2")
    header = ["Seeds", "False verdict", "Covers", *(f"Finds {size} sd" for size in sizes)]
    header += ["Decided", "Confirmed", "Contradicted"]
    rows = [
        [
            str(row["seeds"]),
            *(f"{100 * row[key]:.1f}" for key in ("false_verdicts", "covered")),
            *(f"{100 * row['found'][size]:.1f}" for size in sizes),
            *(_percent(real.get(row["seeds"]), key) for key in ("decided", "holds", "opposite")),
        ]
        for row in found["null"]
    ]
    return table(header, rows)


def _percent(row: dict[str, float] | None, key: str) -> str:
    return "" if row is None else f"{100 * row[key]:.1f}"


def _correlations() -> Quote:
    """Correlations of arm and baseline over the seeds that they share, in the study of ten seeds."""
    study = read_results_file(ROOT / "studies/2026-11-16_muon-replication-mini/results.json")
    baseline, *arms = study.arms
    names = ("scene_accuracy", "fd_scenes", "validation_loss")

    def values(arm: Arm, metric: str) -> list[float]:
        return [run.metrics[metric] for run in arm.runs]

    found = [correlation(values(arm, name), values(baseline, name)) for arm in arms for name in names]
    least, most = numerals.fixed(min(found), 2), numerals.fixed(max(found), 2, signed=True)
    return Quote(f"the correlations of two arms with the baseline, in three metrics, lie between {least} and {most}")


def _calibration() -> Iterator[Claim]:
    stored = data("docs/calibration.json")
    few = {row["studies"] for row in stored["false_verdicts"] if row["pairing"] != USUAL_PAIRING}
    yield Quote(
        f"A correlation of {USUAL_PAIRING} over shared seeds has {stored['studies']:,} studies for each shape and "
        f"number of seeds, and correlations of 0 and 0.8 have {few.pop():,}",
        holds=not few,
    )
    usual = [row for shape in get_args(Shape) if "unequal" not in shape for row in false_verdicts(shape=shape)]
    yield Quote(
        f"no arm has three times the spread, {shares(usual, 'either')}% of studies have a false verdict",
        holds=max(row["either"] for row in usual) <= 0.05 + tolerance(0.05, 1_000),
    )
    for shape, words in (
        ("unequal", "three times the spread, the shares at 3, 5 and 8 seeds are"),
        ("slightly skewed and unequal", "slightly skewed too, the shares are"),
        ("skewed and unequal", "strongly skewed, the shares are"),
    ):
        wide = [shares(false_verdicts(shape=shape, seeds=seeds), "either") for seeds in SEEDS]
        yield Quote(f"{words} {wide[0]}, {wide[1]} and {wide[2]}%")
    many = [{"either": share} for share in stored["many_arms"]["false_verdicts"].values()]
    yield Quote(
        f"With twelve arms and four seeds, {shares(many, 'either')}% have a false verdict",
        holds=(stored["many_arms"]["arms"], stored["many_arms"]["seeds"]) == (12, 4),
    )
    unstable = max(row["unstable"] for row in stored["falls"])
    yield Quote(
        f"At most {100 * unstable:.1f}% of studies call an arm unstable although all arms collapse equally often",
        holds=unstable <= 0.02 + tolerance(0.02, stored["studies"]),
    )
    yield Quote(f"are found in {shares(calibration()['power'], 'found')}% of studies")


def _power_output() -> Iterator[Claim]:
    """Sentences that the command on the page prints."""
    folder = ROOT / "studies/2026-11-15_captions-and-target-mini"
    console = Console(file=io.StringIO(), width=110, color_system=None)
    Seeds(console, {}, as_json=False).show(plan_power([folder], "5%", 3, ACCURACY, 3))
    assert isinstance(console.file, io.StringIO)
    for line in console.file.getvalue().splitlines():
        if any(character.isdigit() for character in line):
            yield Quote(line)
    row = plan_power([folder], "5%", 3, ACCURACY, 3).groups[0].metrics[0]
    assert row.seeds_needed
    yield Quote(
        "To find a change of 5% in scene accuracy, four seeds are enough. "
        f"The safe number is {max(n or 0 for n in row.seeds_needed)} seeds",
        holds=row.seeds_needed[0] == 4,
    )


def techniques_page() -> Iterator[Claim]:
    whole, parts, without = (
        f"{newton_schulz_flops(settings, _prx()) / 1e12:.1f}"
        for settings in (MuonSettings(), MuonSettings(fused="parts"), MuonSettings(modulation=False))
    )
    yield Quote(
        f"For PRX's {_billions()} billion parameters it is {whole} TFLOP a step, {parts} with `fused=parts`, {without} "
        "with `modulation=false`"
    )
    yield from _snapshots()


@cache
def _prx() -> dict[str, torch.nn.Parameter]:
    """The parameters of PRX's denoiser of 16 latent channels, without their values."""
    with torch.device("meta"):
        model = Transformer(ModelSettings(), 16, 2304)
    return {f"denoiser.{name}": parameter for name, parameter in model.named_parameters()}


def _billions() -> str:
    return f"{sum(parameter.numel() for parameter in _prx().values()) / 1e9:.2f}"


def _snapshots() -> Iterator[Claim]:
    """Which lengths 16 snapshots of two averages can give, by thousandths at the low end and hundredths at the "
    "other."""
    stored = [Profile(length, 1000 * (index + 1)) for index in range(16) for length in (0.05, 0.1)]

    def can(length: float) -> bool:
        return fit(stored, Profile(length, 16_000)).residual <= MOST_RESIDUAL

    low = next(length for length in range(1, 50) if can(length / 1000)) / 1000
    high = next(length for length in range(28, 10, -1) if can(length / 100)) / 100
    yield Quote(
        f"A length with a residual of more than {MOST_RESIDUAL:.0%} is refused. With 16 snapshots of 0.05 and 0.1, "
        f"lengths below {low} and above {high} are refused"
    )


def repa_e_page() -> Iterator[Claim]:
    photos, scenes = tokenizers_photos(), tokenizers()
    yield Quote(
        f"have a higher FID than the frozen `small-vae` at every seed after {photos.setup()}",
        holds=repa_e_is_above_the_frozen_vae(),
    )
    yield Quote(
        "both are undecided in scene accuracy and Fréchet distance",
        holds=scenes.verdicts(TUNED, scenes.primary) == UNDECIDED,
    )


def agents_page() -> Iterator[Claim]:
    found = data("docs/proposals.json")
    names = {"normal": "normal", "scene_accuracy": "bank, scene accuracy", "fd_scenes": "bank, Fréchet distance"}
    rows = {names[row["source"]]: row for row in found["rows"]}
    yield Quote(f"are at {', '.join(map(str, found['looks'][:-1]))} and {found['looks'][-1]} seeds")
    yield Quote(f"5% · {FLATNESS} / (({FLATNESS - 1} + i)({FLATNESS} + i))", holds=ERROR == 0.05)
    percent = f"{100 * ERROR:.0f}%"
    yield Quote(f"each by its interval at {100 * NOT_WORSE:.0f}%")
    yield Quote(f"arms keep their own error of {100 * (1 - CONFIDENCE):.0f}%")
    yield Quote(f"The new study has its own error of {percent}")
    yield Quote(f"The levels of all proposals sum to {percent}")
    yield Quote(f"is kept is therefore at most {percent}")
    yield Block(
        "proposal-chains",
        table(
            ["Values", "Chains with a false keep", "Each at 5%, not charged", "Seeds of a proposal"],
            (
                [name, f"{100 * row['false_keep']:.1f}%", f"{100 * row['uncharged']:.0f}%", f"{row['seeds']:.1f}"]
                for name, row in rows.items()
            ),
        ),
    )
    sizes = list(dict.fromkeys(one["effect"] for one in found["rows"][0]["power"]))
    positions = list(dict.fromkeys(one["position"] for one in found["rows"][0]["power"]))
    by_place = {
        (name, one["position"], one["effect"]): f"{100 * one['kept']:.0f}%, {one['seeds']:.1f}"
        for name, row in rows.items()
        for one in row["power"]
    }
    yield Block(
        "proposal-power",
        table(
            ["Values", "Proposal", *(f"{size:g} sd" for size in sizes)],
            (
                [name, str(position), *(by_place[name, position, size] for size in sizes)]
                for name in rows
                for position in positions
            ),
        ),
    )
    yield Block(
        "proposal-setup",
        [
            f"Of {found['chains']:,} chains of {found['length']} proposals ({found['uncharged_chains']:,} of those "
            f"that are not charged), {found['tries']:,} tries for each place and size, and a study of "
            f"{found['baseline_seeds']} runs of the baseline and as many of the control; the bank has "
            f"{found['bank_runs']} runs.",
        ],
    )
    yield Quote(
        "Chains with a false keep",
        holds=all(row["false_keep"] <= ERROR and row["uncharged"] > 5 * ERROR for row in rows.values()),
    )
    yield Block("exit-codes", table(["code", "meaning"], ([str(code), words] for code, words in EXIT_CODES.items())))


PAGES: dict[str, Callable[[], Iterable[Claim]]] = {
    "docs/agents.md": agents_page,
    "docs/captions.md": captions_page,
    "docs/checkpoints.md": checkpoints_page,
    "docs/reliability.md": reliability_page,
    "docs/repa-e.md": repa_e_page,
    "docs/scenes.md": scenes_page,
    "docs/speed.md": speed_page,
    "docs/statistics.md": statistics_page,
    "docs/techniques.md": techniques_page,
}
