"""A study with all that a report's script and its sections of copies and hand-picked images show."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from tests.unit.study.example_results import draw_previews, example, with_scores_along
from tintype.evaluation.results import Copies, CopyPair, WrongWords
from tintype.metrics.memorisation import Rate
from tintype.study.picked import keep_image, read_picked
from tintype.study.results import Run, StudyResults


def frozen(folder: Path, remark: str = "drawn red, asked blue") -> StudyResults:
    """Return results with images at each scored step, wrong words, pairs and one picked image; draw them."""
    results = with_scores_along(example())
    draw_previews(results, folder)
    arms = [
        arm.model_copy(update={"runs": [_with_images(run, folder, remark) for run in arm.runs]}) for arm in results.arms
    ]
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(content, "PNG")
    keep_image(folder, content.getvalue(), {"prompt": f"a ball, {remark}", "run": "runs/x", "seed": 5})
    return results.model_copy(update={"arms": arms, "picked": read_picked(folder)})


def _with_images(run: Run, folder: Path, remark: str) -> Run:
    if not run.previews:
        return run
    along = []
    for one in run.along:
        names = [f"{Path(name).parent}/{one.step}-{Path(name).name}" for name in run.previews]
        for index, name in enumerate(names):
            Image.new("RGB", (32, 32), (one.step % 256, 20 * index, 99)).save(folder / name)
        early = [WrongWords(start=0, end=3, words="not drawn")] * 5
        along.append(one.model_copy(update={"previews": names, "wrong": [early for _ in names]}))
    wrong = [[WrongWords(start=0, end=5, words=remark)], *([] for _ in run.previews[1:])]
    copies = {"scenes": _copies(run, folder, remark)}
    return run.model_copy(update={"along": along, "wrong": wrong, "copies": copies})


def _copies(run: Run, folder: Path, remark: str) -> Copies:
    image = f"{Path(run.previews[0]).parent}/copy-scenes-0.png"
    Image.new("RGB", (66, 32), (run.seed, 77, 3)).save(folder / image)
    rates = {"all": Rate(training=0.9, unseen=0.1, low=0.6, high=0.9)}
    rates["3"] = rates["all"]
    pair = CopyPair(
        image=image,
        sha256="",
        caption=f"a training caption, {remark}",
        guidance=3.0,
        distance=0.25,
        own=True,
        counts=True,
    )
    return Copies(verdict="copies", captions=6, images=6, unlike=0.0, any=rates, own=rates, pairs=[pair])
