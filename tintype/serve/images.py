"""Compare the arms of a study, or any runs, in grids of images from the same prompts and the same noise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import ScoredData, scored_data
from tintype.evaluation.results import WrongWords, read_misread, read_result, result_file
from tintype.evaluation.samples import samples_hash, sampling_prompts, sampling_shapes
from tintype.study.report.html import HtmlView
from tintype.study.results import Arm
from tintype.study.side_by_side import ComparedRun
from tintype.study.study import Study


@dataclass(frozen=True)
class Cell:
    """A cell of the grid, with the URL of the image for each step that has an image, in the order of the steps."""

    at: dict[int, str]
    wrong: dict[int, list[WrongWords]] = field(default_factory=dict)
    """By step: words of the prompt that the image does not match. A step has no entry if its image was not checked."""

    @property
    def last(self) -> str:
        return self.at[max(self.at)] if self.at else ""

    @property
    def last_wrong(self) -> list[WrongWords] | None:
        """Return the words of the prompt that the last image does not match; None if the image was not checked."""
        return self.wrong.get(max(self.at)) if self.at else None

    @property
    def wrong_json(self) -> str:
        """Return the wrong words of each step as JSON for the page's script: (start, end, words)."""
        return json.dumps({step: [(one.start, one.end, one.words) for one in of] for step, of in self.wrong.items()})


@dataclass(frozen=True)
class Grid:
    """Images of arms at one resolution, or of any runs, from the same prompts and the same noise."""

    title: str
    prompts: list[str]
    arms: list[tuple[str, str, str]]
    """Tuples (name, CSS class of the colour, run) of the columns. A name that identifies the run leaves it empty."""
    cells: list[list[Cell]]
    """One row per prompt, with one cell per column."""
    steps: list[int] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not any(cell.at for row in self.cells for cell in row)

    @property
    def is_read(self) -> bool:
        return any(cell.wrong for row in self.cells for cell in row)


def study_grid(path: str, view: HtmlView, study: Study | None) -> Grid:
    """Return the images of all arms of a study for one resolution."""
    arms, columns = list[tuple[str, str, str]](), list[list[Cell]]()
    shown, steps = view.results.resolution, set[int]()
    count = len(shown.prompts)
    for arm in view.everyone:
        cells = _images(path, arm, view, study, count)
        steps |= {step for cell in cells for step in cell.at}
        run = arm.sampled_run
        arms.append((arm.name, view.colours[arm.name], "no run yet" if run is None else f"seed {run.seed}"))
        columns.append(cells)
    if shown.real_previews:
        real = [{max(steps, default=0): name} for name in shown.real_previews[:count]]
        arms.append(("real images", "arm-control", "held out"))
        real += [{}] * (count - len(real))
        addresses = [{step: image_at(path, name, view.folder, view.kept) for step, name in of.items()} for of in real]
        columns.append([Cell({step: one for step, one in of.items() if one}) for of in addresses])
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Grid(shown.name, shown.prompts, arms, rows, sorted(steps))


def _images(path: str, arm: Arm, view: HtmlView, study: Study | None, count: int) -> list[Cell]:
    """Return the samples of the first run of an arm that has samples, one cell for each prompt."""
    folder = view.folder
    found: list[dict[int, str]] = [{} for _ in range(count)]
    wrong: list[dict[int, list[WrongWords]]] = [{} for _ in range(count)]
    run = arm.sampled_run
    if run is None:
        return [Cell({}) for _ in found]
    plans = {one.label: one.plans for one in study.arms}.get(arm.label, ()) if study else ()
    plan = next((plan for plan in plans if plan.seed == run.seed), None)
    last = plan.train.steps if plan else run.along[-1].step if run.along else 0
    ends = [(last, run.previews, run.wrong)]
    if plan is None:  # the runs were deleted, with the images of earlier steps
        ends += [(one.step, one.previews, one.wrong) for one in run.along[:-1] if one.previews]
    for step, names, words_of in ends:
        for index, name in enumerate(names[:count]):
            if place := image_at(path, name, folder, view.kept):
                found[index][step] = place
        for index, words in enumerate(words_of[:count]):
            wrong[index][step] = words
    along = study.along(plan) if study and plan else None
    if along is None:
        return [Cell(at, words) for at, words in zip(found, wrong, strict=True)]
    for step in along.steps:
        result = result_file(folder / run.folder, along.protocol, step)
        for index in range(count):
            if (file := result.with_name(f"preview-{index}.png")).is_file():
                found[index][step] = address(path, file.relative_to(folder).as_posix())
        for index, words in enumerate(_misread(result)[:count]):
            wrong[index][step] = words
    return [Cell(at, words) for at, words in zip(found, wrong, strict=True)]


def _misread(result: Path) -> list[list[WrongWords]]:
    """Return the wrong words of the prompt for each image of a stored result; empty if the file is damaged."""
    try:
        return read_misread(result)
    except DamagedFileError:
        return []


def image_at(path: str, name: str, folder: Path, kept: Mapping[str, bytes]) -> str:
    """Return the URL of a study's image file, or of its copy in the report; empty if both are missing."""
    if (folder / name).is_file():
        return address(path, name)
    return f"/kept/{quote(path)}?image={quote(name)}" if name in kept else ""


def address(path: str, name: str) -> str:
    return "/image/" + quote(f"{path}/{name}".lstrip("/"))


def shared_grids(runs: Sequence[ComparedRun], paths: Sequence[str], colours: Mapping[str, str]) -> list[Grid]:
    """Return a grid of all steps for each set of prompts and noise that at least two runs have sampled."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, list[Cell]]] = {}
    for run, path in zip(runs, paths, strict=True):
        for file in run.result_files:
            result = read_result(file)
            if result.ema is not None or not result.previews:
                continue
            scored = scored_data(run.plan, result.protocol, result.step)
            made, prompts = _made_of(scored, result.protocol, len(result.previews))
            if not prompts:
                continue
            cells = found.setdefault((made, prompts), {}).setdefault(run.name, [Cell({}, {}) for _ in prompts])
            wrong = _misread(file)
            for index, name in enumerate(result.previews[: len(prompts)]):
                cells[index].at[result.step] = address(path, name)
                if index < len(wrong):
                    cells[index].wrong[result.step] = wrong[index]
    grids = []
    for (_, prompts), by_run in found.items():
        if len(by_run) > 1:
            columns = [(run.name, colours[run.name], "") for run in runs if run.name in by_run]
            rows = [list(row) for row in zip(*(by_run[name] for name, *_ in columns), strict=True)]
            steps = sorted({step for row in rows for cell in row for step in cell.at})
            grids.append(Grid("", list(prompts), columns, rows, steps))
    return grids


@lru_cache(maxsize=64)
def _made_of(scored: ScoredData, protocol: Protocol, count: int) -> tuple[str, tuple[str, ...]]:
    """Return a hash of the images' settings and noise, and the first prompts; no prompts if the data is missing."""
    sampling = protocol.conditions[0]
    try:
        prompts = tuple(sampling_prompts(scored, protocol, sampling)[:count])
        shapes = sampling_shapes(scored, protocol, sampling)
    except UserError:
        return "", ()
    return samples_hash(sampling, protocol.seed, scored.data.size_px, shapes), prompts
