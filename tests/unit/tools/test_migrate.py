"""Runs and studies that an earlier version wrote are refused, and read again once they are sealed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.edit_checked import edit_json, edit_text, without_seals
from tests.stored_runs import write as stored
from tests.unit.study.example_results import example, several, with_scores_along
from tintype.errors import UserError
from tintype.evaluation.results import read_result
from tintype.evaluation.run import evaluate
from tintype.plan import plan_from_folder
from tintype.runtime.files import write_checked
from tintype.runtime.interrupt import Interrupt
from tintype.study.along import with_along
from tintype.study.folder import stored_study
from tintype.study.replicate import read_replication
from tintype.study.results import Bank, BankCheck, Interval, StudyResults, read_results_file
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tools.migrate import migrate

SETS = stored.sets()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run as it was before there were seals, with a result, sampled images and numbers of single images."""
    run = Path(shutil.copytree(SETS[-1] / stored.SCORED, tmp_path / "study" / "runs" / "old"))
    shutil.rmtree(run / "evaluation")
    evaluate(run, stored.PROTOCOL)
    without_seals(run)
    return run


def contents(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_an_old_run_is_refused_with_the_command_that_seals_it(old: Path) -> None:
    before = contents(old)
    result = next(old.glob("evaluation/*/result.json"))
    uses: list[Callable[[], object]] = [
        lambda: load_run(old),
        lambda: evaluate(old, stored.PROTOCOL),
        lambda: train(plan_from_folder(old), old, Interrupt()),
        lambda: RunRecord(old).lines,
        lambda: read_result(result),
    ]
    for use in uses:
        with pytest.raises(UserError, match=rf"has no seal: .*python -m tools.migrate {old}`$"):
            use()
    assert contents(old) == before


def test_a_sealed_run_is_read_scored_and_resumed_as_before(old: Path) -> None:
    result = next(old.glob("evaluation/*/result.json"))
    metrics = json.loads(result.read_text())["metrics"]
    assert migrate(old.parents[1]) and not migrate(old.parents[1]), "a second time there is nothing to do"
    assert read_result(result).metrics == metrics == evaluate(old, stored.PROTOCOL).metrics
    result.unlink()
    assert evaluate(old, stored.PROTOCOL).metrics["fd_scenes"] == metrics["fd_scenes"], "from the sampled images"
    assert train(plan_from_folder(old), old, Interrupt()).finished
    assert not [event for event in RunRecord(old).events if event["event"].startswith("damaged")]


def test_an_old_export_is_sealed_with_its_list_of_files(tmp_path: Path) -> None:
    export = Path(shutil.copytree(SETS[0] / stored.EXPORT, tmp_path / "export"))
    without_seals(export)
    with pytest.raises(UserError, match=r"has no seal"):
        load_run(export)
    migrate(export)
    assert load_run(export)[1] == stored.STEP


def damage_tensors(run: Path) -> None:
    path = next(run.glob("checkpoints/*/state.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def take_anothers_result(run: Path) -> None:
    edit_json(next(run.glob("evaluation/*/result.json")), lambda content: content.update(plan="0" * 16))


def take_anothers_seal(run: Path) -> None:
    path = run / "latents.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seal": {"run": "0" * 16, "file": "latents.json"}}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage_tensors, r"state.safetensors is damaged \(it does not match manifest.json\)"),
        (take_anothers_result, "result.json is damaged .*written for the plan 0{16}"),
        (take_anothers_seal, "latents.json is damaged"),
    ],
)
def test_files_that_contradict_each_other_are_not_sealed(
    old: Path, change: Callable[[Path], Any], message: str
) -> None:
    migrate(old)
    change(old)
    without_seals(old, besides=("latents.json",))
    before = contents(old)
    with pytest.raises(UserError, match=message):
        migrate(old)
    assert contents(old) == before


def test_a_study_without_seals_is_sealed(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    source = next(Path("studies").glob("*_muon-mini"))
    for name in ("study.yaml", "baseline.yaml"):
        shutil.copy(source / name, study)
    without_seals(study)
    with pytest.raises(UserError, match=rf"study.yaml has no seal: .*tools.migrate {study}`$"):
        stored_study(study)
    assert len(migrate(study)) == 2
    assert stored_study(study).name == stored_study(source).name


def served(results: StudyResults) -> StudyResults:
    """Return results with a bank of which one metric agrees, one does not, and one could not be compared."""
    ends = [Interval(value=0.1, low=-0.2, high=0.4), Interval(value=2, low=1, high=3), Interval(value=0)]
    checks = [
        BankCheck(metric=name, own=3, stored=8, collapsed=0, difference=one, agrees=bool(one.ends and one.ends[0] < 0))
        for name, one in zip(("fd", "mmd", "loss"), ends, strict=True)
    ]
    return results.model_copy(update={"bank": Bank(sources=[], level=0.8, served=8, checks=checks)})


def _older(row: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("collapsed", "fallen") if "collapsed" in key else key: value for key, value in row.items()}


def in_format_2(results: StudyResults) -> dict[str, Any]:
    """Return the content of a results.json as it was before intervals were values of their own."""
    content = results.dump() | {"format": 2}
    for one in (*content["arms"], *content.get("between", [])):
        one["comparisons"] = {metric: _older(row) for metric, row in one["comparisons"].items()}
    for one in (*content.get("trends", []), *content.get("factors", [])):
        one["comparison"] = one["comparison"] and _older(one["comparison"])
    for trend in content["trends"]:
        trend["effects"] = [{"resolution": name, **one} for name, one in trend["effects"].items()]
    for one in content["along"]:
        one["differences"] = [at | at.pop("difference") for at in one["differences"]]
        one["equal_time"] |= one["equal_time"].pop("difference") or dict.fromkeys(("value", "low", "high"))
        for place in ("step", "seconds"):
            ends = {key: None if end == "Infinity" else end for key, end in one["reach"].pop(place).items()}
            one["reach"] |= {place: ends["value"], f"{place}_low": ends["low"], f"{place}_high": ends["high"]}
    for check in content.get("bank", {}).get("checks", []):
        ends = check.pop("difference")
        check |= {"difference": ends["value"], "low": ends["low"], "high": ends["high"]}
    return content


@pytest.mark.parametrize(
    "results",
    [several(), with_along(with_scores_along(example())), served(example())],
    ids=["trends", "along", "bank"],
)
def test_intervals_of_format_2_become_values(results: StudyResults, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    (tmp_path / "study.yaml").write_text("name: a\n")
    write_checked(file, in_format_2(results), 2)
    migrate(tmp_path)
    assert read_results_file(file) == results


def in_format_1(results: StudyResults) -> dict[str, Any]:
    """Return the content of a results.json as it was before every study had a list of resolutions."""
    content = in_format_2(results) | {"format": 1}
    own = ("plan", "prompts", "real_previews", "reference")
    if results.several:
        return content | {"plan": "", "prompts": [], "real_previews": [], "reference": {}}
    content |= {key: content["resolutions"][0][key] for key in own}
    content["arms"] = [{k: v for k, v in arm.items() if k not in ("resolution", "tokens")} for arm in content["arms"]]
    return {key: value for key, value in content.items() if key not in ("resolutions", "trends")}


@pytest.mark.parametrize("results", [example(), several()], ids=["one resolution", "several"])
def test_results_of_format_1_are_refused_and_rewritten(results: StudyResults, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    (tmp_path / "study.yaml").write_text("name: a\n")
    write_checked(file, in_format_1(results))
    way_out = f"`tintype report {tmp_path}` writes it again .* `python -m tools.migrate {tmp_path}` rewrites"
    with pytest.raises(UserError, match=f"written in format 1; this version of tintype reads format 3; {way_out}"):
        read_results_file(file)
    migrate(tmp_path)
    assert read_results_file(file) == results and not migrate(tmp_path)


OLD_ANALYSIS = "  method: shared\n  margin: 3%\n  margins: {}\n  test: student\n  interval: student\n"


def test_a_study_loses_the_keys_of_the_paired_method(tmp_path: Path) -> None:
    source = next(Path("studies").glob("*_stages-mini"))
    study = Path(shutil.copytree(source, tmp_path / "study"))
    edit_text(study / "study.yaml", "  margin: 3%\n  margins: {}\n", OLD_ANALYSIS)

    def older(content: dict[str, Any]) -> None:
        content["earlier"] = [{"method": "paired", "rows": []}]
        for row in (row for arm in content["arms"] for row in arm["comparisons"].values()):
            row |= {"test": "shared spread", "interval": "simultaneous"}

    edit_json(study / "results.json", older)
    with pytest.raises(UserError, match=r"analysis\.method: unknown key"):
        stored_study(study)
    with pytest.raises(UserError, match=r"is not a valid results\.json of a study"):
        read_results_file(study / "results.json")
    assert {path.name for path in migrate(study)} == {"study.yaml", "results.json"}
    assert contents(study) == contents(source)


@pytest.mark.parametrize(
    ("verdict", "before", "words", "ends", "outcome"),
    [
        ("worse", "holds", "worse", (0.3, 0.9), "holds"),
        ("worse", "weaker", "worse", (0.1, 0.3), "holds"),
        ("worse", "fails", "undecided", (-0.1, 0.9), "open"),
        ("worse", "fails", "better", (-0.9, -0.1), "contradicted"),
        ("worse", "fails", "diverged 1 of 8", (0.3, 0.9), "open"),
        ("worse", "fails", "failed 8 of 8", (None, None), "open"),
        ("worse", "incomplete", "incomplete", (None, None), "incomplete"),
        ("same", "weaker", "undecided", (-0.001, 10.0), "open"),
        ("same", "fails", "worse", (9.0, 10.0), "contradicted"),
    ],
)
def test_a_replication_gets_intervals_and_the_outcomes_of_today(
    verdict: str, before: str, words: str, ends: tuple[float | None, float | None], outcome: str, tmp_path: Path
) -> None:
    study = Path(shutil.copytree(next(Path("studies").glob("*_stages-mini")), tmp_path / "study"))
    value = None if ends[0] is None or ends[1] is None else (ends[0] + ends[1]) / 2
    claim = {"arm": "small first, more images", "metric": "validation_loss", "verdict": verdict, "first": 0.5}
    row = claim | {"difference": value, "low": ends[0], "high": ends[1], "words": words, "outcome": before}
    edit_json(study / "results.json", lambda content: content["replication"].update(rows=[row]))
    (study / "replication").mkdir()
    write_checked(study / "replication" / "replication.json", {"seeds": [7], "rows": [row]})
    assert {path.name for path in migrate(study)} == {"results.json", "replication.json"} and not migrate(study)
    for made in (read_results_file(study / "results.json").replication, read_replication(study)):
        assert made is not None
        (now,) = made.rows
        assert (now.first.value, now.pooled, now.seeds_needed, now.outcome) == (0.5, None, None, outcome)
        assert now.fresh == (None if value is None else Interval(value=value, low=ends[0], high=ends[1]))


def test_a_study_that_asks_for_the_paired_method_is_refused(tmp_path: Path) -> None:
    study = Path(shutil.copytree(next(Path("studies").glob("*_stages-mini")), tmp_path / "study"))
    edit_text(study / "study.yaml", "  margin: 3%\n", "  method: paired\n  margin: 3%\n")
    before = contents(study)
    with pytest.raises(UserError, match=r"analysis\.method is 'paired', which only older versions have"):
        migrate(study)
    assert contents(study) == before
