"""Check every technique, sampler and guidance of a plugin file against its contract."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tintype.contract.ground import BASELINES, SPECS, Ground, tiny_plan
from tintype.contract.sampling import SAMPLED, check_samples
from tintype.contract.technique import CHECKS, WITHOUT_STEPS, BrokenContractError, check_pair, losses
from tintype.errors import UserError
from tintype.plugins.load import load_files, parts_of
from tintype.plugins.registry import GROUPS, Plugin, words
from tintype.runtime.machine import cpu_threads
from tintype.techniques import TECHNIQUES
from tintype.wording import technique

PAIRS = "Trains a step with every other technique, or is refused by both names"
_SHOWN = 3
"""Maximum number of broken pairs in a message."""


@dataclass(frozen=True)
class Result:
    """The result of a check of a technique, a sampler or a guidance."""

    technique: str
    """Name of the technique, the sampler or the guidance."""
    check: str
    """The property that the check confirms."""
    passed: bool
    details: str = ""
    """Details of the check, or how the technique violates the contract."""


@dataclass(frozen=True)
class Checked:
    """A plugin file and the results of its checks."""

    plugin: Plugin
    parts: dict[str, list[str]]
    """Names of the file's parts, by group."""
    results: list[Result]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def exit_code(self) -> int:
        """1 if a part violates its contract."""
        return int(not self.passed)


Report = Callable[[str, int, int], None]
"""Function that is called with the current check, the number of finished checks and pairs, and their total."""


def check_file(
    file: Path,
    specs: Sequence[str] = (),
    assignments: Sequence[str] = (),
    report: Report = lambda doing, done, total: None,
    on_result: Callable[[Result], None] = lambda result: None,
    others: Sequence[str] | None = None,
) -> Checked:
    """Load a plugin file and check its techniques, samplers and guidances.

    `specs` are techniques as `name` or `name:key=value`; by default, all parts of the file are checked. `assignments`
    override the tiny plan. Techniques are combined with `others`, by default all of tintype and of the file.
    """
    (plugin,) = load_files([file])
    parts = {group: list(parts_of(plugin, group)) for group in GROUPS}
    mine = {spec.partition(":")[0]: spec for spec in specs} or {name: name for name in parts["techniques"]}
    if strange := sorted(set(mine) - set(parts["techniques"])):
        known = ", ".join(parts["techniques"]) or "none"
        raise UserError(f"{technique(mine[strange[0]])}: {file} defines no technique with this name", f"it has {known}")
    tried = [*TECHNIQUES.built_in, *parts["techniques"]] if others is None else list(others)
    sampled = [] if specs else [(group, name) for group in SAMPLED for name in parts[group]]
    each = len(CHECKS) + len(tried)
    total = len(mine) * each + len(sampled)
    results: list[Result] = []
    with cpu_threads("cpu", 1), tempfile.TemporaryDirectory(prefix="tintype-check-") as folder:
        ground = Ground(
            Path(folder),
            specs={**SPECS, **mine},
            baselines={**BASELINES, **dict.fromkeys(mine, tuple(assignments))},
            plan=partial(tiny_plan, "run.threads=1"),  # more would only wait for each other
        )
        for number, name in enumerate(mine):
            beside = [other for other in tried if other != name]
            progress = partial(_reported, report, number * each, total)
            for result in _check(ground, plugin, name, beside, progress):
                results.append(result)
                on_result(results[-1])
        for number, (group, name) in enumerate(sampled):
            report(f"{name}: sampling", len(mine) * each + number, total)
            results.append(_result(plugin, name, check_samples, partial(check_samples, ground, group, name)))
            on_result(results[-1])
    return Checked(plugin, {group: names for group, names in parts.items() if names}, results)


def require_contract(file: Path | str) -> None:
    """Raise AssertionError if a plugin file violates its contracts. Plugin tests call this function."""
    checked = check_file(Path(file))
    broken = [f"{one.technique} fails: {one.check}: {one.details}" for one in checked.results if not one.passed]
    assert not broken, "\n".join(broken)
    assert checked.results, f"{file} has no technique, sampler or guidance"


def parts_in_words(checked: Checked) -> str:
    """Return the file's parts as text, such as `technique edges, loss edges`."""
    return ", ".join(f"{words(group)} {name}" for group, names in checked.parts.items() for name in names)


def _reported(report: Report, before: int, total: int, doing: str, done: int) -> None:
    report(doing, before + done, total)


def _check(
    ground: Ground, plugin: Plugin, name: str, others: Sequence[str], report: Callable[[str, int], None]
) -> Iterator[Result]:
    for number, check in enumerate(CHECKS if ground.can_step(name) else WITHOUT_STEPS):
        title = _title(check)
        report(f"{name}: {title[0].lower()}{title[1:]}", number)
        result = _result(plugin, name, check, partial(check, ground, name))
        yield result
        if check is CHECKS[0] and not result.passed:
            return  # there is no plan with it that others could be tried on
    yield _check_pairs(ground, plugin, name, others, report)


def _title(check: Callable[..., str]) -> str:
    """Return the first line of a check's docstring. The line states the property that the check confirms."""
    return (check.__doc__ or "").splitlines()[0].rstrip(".")


def _result(plugin: Plugin, name: str, check: Callable[..., str], made: Callable[[], str]) -> Result:
    try:
        with _own_errors(plugin):
            return Result(name, _title(check), True, made())
    except BrokenContractError as error:
        return Result(name, _title(check), False, str(error))


def _check_pairs(
    ground: Ground, plugin: Plugin, name: str, others: Sequence[str], report: Callable[[str, int], None]
) -> Result:
    together, unstepped, broken = 0, 0, list[str]()
    for number, other in enumerate(others):
        report(f"{name} with {other}", len(CHECKS) + number)
        try:
            with _own_errors(plugin):
                goes = check_pair(ground, name, other)
        except BrokenContractError as error:
            if _works_alone(ground, other):
                broken.append(str(error))
            else:
                unstepped += 1
        else:
            unstepped += goes and not ground.can_step(name, other)
            together += goes and ground.can_step(name, other)
    if broken:
        return Result(name, PAIRS, False, "; ".join(broken[:_SHOWN]) + (" …" if len(broken) > _SHOWN else ""))
    refused = len(others) - together - unstepped
    words = f"{together} trained, {refused} refused"
    if unstepped:
        words += f", {unstepped} as plans alone: their weights or their device are not here"
    return Result(name, PAIRS, True, words)


def _works_alone(ground: Ground, name: str) -> bool:
    """Return whether a technique trains alone on the tiny plan; if not, failures in pairs are its fault."""
    try:
        if ground.can_step(name):
            losses(ground.with_techniques(name), 1)
    except Exception:  # the check of that technique reports it
        return False
    return True


@contextmanager
def _own_errors(plugin: Plugin) -> Iterator[None]:
    """Report errors of the checked code as violations of the contract, with the line of the plugin that raised them."""
    try:
        yield
    except BrokenContractError:
        raise
    except UserError as error:
        raise BrokenContractError(str(error)) from None
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == plugin.place]
        place = f" ({plugin.name}, line {lines[-1]})" if lines else ""
        raise BrokenContractError(f"{type(error).__name__}: {error}{place}") from error
