"""Results that are passed on name no paths of the machine that made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import tiny_plan
from tests.unit.study.example_results import at_resolution, draw_previews, example, several
from tintype.config.strict import read_yaml
from tintype.study.report import write_report
from tintype.study.results import ArmMean, Change, Command, FactorEffect, StudyResults, TokenizerInfo

LONG = "/home/al/secret place/" + "a folder of many words " * 6 + "/photos"


def with_paths() -> StudyResults:
    results = example()
    first, *others = results.arms
    first_run, *runs = first.runs
    vae = TokenizerInfo(kind="small-vae", settings={"folder": "/home/al/a/vae"}, channels=4, stride_px=8)
    changed: dict[str, Any] = {
        "error": "UserError: /home/al/secret place/photos is no store (~/logs/run.txt, ~al/a.txt, 3 images/s, and/or)",
        "tokenizer": vae,
        "lineage": {"folder": "/lab/runs/base", "before": "~al/older", "plan": "0123", "weights": "raw"},
    }
    arm = first.model_copy(
        update={
            "runs": [first_run.model_copy(update=changed), *runs],
            "changes": [Change(key="data.path", before="/home/al/secret place/photos", after="/home/al/b/vae")],
            "techniques": ["tokenizer:to.folder=/home/al/a/vae", "sft:from=/lab/runs/base,lr=1e-4"],
        }
    )
    plan = tiny_plan(f"data={{kind: store, path: '{LONG}', size_px: 16}}").to_yaml()
    command = Command(
        argv=["tintype", "ablate", "/home/al/secret place/study.yaml", "--out=/home/al/out"], date="2026-11-15"
    )
    return at_resolution(results, plan=plan).model_copy(update={"arms": [arm, *others], "commands": [command]})


def test_of_a_path_the_last_name_is_left(tmp_path: Path) -> None:
    found = with_paths().without_paths()
    run, arm = found.arms[0].runs[0], found.arms[0]
    assert run.error == "UserError: photos is no store (run.txt, a.txt, 3 images/s, and/or)"
    assert run.tokenizer is not None and run.tokenizer.settings == {"folder": "vae-2"}, "two places stay two"
    assert run.lineage is not None and run.lineage["before"] == "older"
    assert arm.techniques == ["tokenizer:to.folder=vae-2", "sft:from=base,lr=1e-4"]
    assert (arm.changes[0].before, arm.changes[0].after) == ("photos", "vae")
    assert read_yaml(found.resolution.plan, "plan").data["data"]["path"] == "photos-2"
    assert found.commands[0].argv == ["tintype", "ablate", "study.yaml", "--out=out"]
    draw_previews(found, tmp_path)
    write_report(found, tmp_path)
    for file in ("report.html", "report.md", "results.json", "results.csv"):
        text = (tmp_path / file).read_text()
        assert not any(place in text for place in ("/home", "/lab/", "secret", "~")), file


def test_paths_in_the_names_of_factors_are_redacted() -> None:
    results = example()
    (row, *_), name = results.arms[1].comparisons.values(), "sft:from=/lab/runs/base"
    means = [ArmMean(arm=name, value=1.0), ArmMean(arm="", value=2.0)]
    effect = FactorEffect(parts=[name], metric="fd_scenes", comparison=row, means=means, verdict="better")
    (found,) = results.model_copy(update={"factors": [effect]}).without_paths().factors
    assert found.parts == [found.means[0].arm] == ["sft:from=base"]


def test_results_without_paths_stay_as_they_are() -> None:
    for results in (example(), several()):
        assert results.without_paths() == results
