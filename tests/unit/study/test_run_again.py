"""A stored study is run again from its folder, by the one command that its README gives."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.studies import run_study
from tests.tiny import TINY
from tintype.cli import app
from tintype.config.strict import read_yaml
from tintype.errors import UserError
from tintype.library.studies import load_study
from tintype.plan import flat, read_plan
from tintype.runtime.files import write_sealed
from tintype.settings import plain
from tintype.study.folder import claim_folder, stored_study
from tintype.study.lab import missing_files, prepare_study
from tintype.study.results import read_results_file

ROOT = Path(__file__).parents[3]
STUDIES = sorted(file.parent.relative_to(ROOT) for file in (ROOT / "studies").glob("*/study.yaml"))
OLDER_KEYS = ("short_count", "encoders")
"""Keys of a protocol that is older than `also` and than encoders with settings."""

every_study = pytest.mark.parametrize("study", STUDIES, ids=lambda folder: folder.name)


@pytest.fixture(autouse=True)
def _in_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where the commands of the READMEs are typed."""
    monkeypatch.chdir(ROOT)


@every_study
def test_the_command_of_the_readme_runs_the_study_again(study: Path, tmp_path: Path) -> None:
    text = (study / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"tintype ablate [^`\n]+", text)
    assert command == f"tintype ablate {study} --out DIR"
    words = [str(tmp_path / "new") if word == "DIR" else word for word in shlex.split(command)[1:]]
    shown = CliRunner().invoke(app, [*words, "--dry-run", "--json"])
    assert shown.exit_code == 0, shown.output
    runs = sum(len(arm.plans) for arm in stored_study(study).arms)
    assert json.loads(shown.stdout)["cost"]["most"] == runs
    assert not (tmp_path / "new").exists()


@every_study
def test_a_stored_study_has_the_plans_and_the_protocol_of_its_results(study: Path) -> None:
    again, results = load_study(study / "study.yaml"), read_results_file(study / "results.json")
    made = {(arm.label, plan.seed): plan.hash for arm in again.arms for plan in arm.plans}
    known = {(arm.label, run.seed): run.hash for arm in results.arms for run in arm.runs}
    assert made.keys() >= known.keys()
    protocol, was = flat(plain(again.settings.evaluation)), flat(results.protocol)
    assert not {key: value for key, value in was.items() if key not in OLDER_KEYS and protocol[key] != value}
    assert all(made[key] == name for key, name in known.items())


STUDY = """
question: Does it help?
recipe: PLAN
set: [train.steps=3]
seeds: [0, 1]
arms: [{name: twice, set: [optimizer.lr=2e-3]}]
primary: [fd_scenes]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A stored study whose file and recipe are gone."""
    file, plan = tmp_path / "mine.yaml", tmp_path / "plan.yaml"
    plan.write_text(TINY)
    file.write_text(STUDY.replace("PLAN", str(plan)))
    out = tmp_path / "out"
    out.mkdir()
    claim_folder(load_study(file), out)
    plan.unlink()
    file.unlink()
    return out


@pytest.mark.parametrize("given", [".", "study.yaml"])
def test_a_stored_study_needs_neither_its_file_nor_its_recipe(given: str, stored: Path, tmp_path: Path) -> None:
    again = load_study(stored / given)
    assert again.name == "mine" and again == stored_study(stored)
    prepare_study(again, tmp_path / "new")
    assert (tmp_path / "new" / "study.yaml").read_bytes() == (stored / "study.yaml").read_bytes()
    assert (tmp_path / "new" / "baseline.yaml").read_bytes() == (stored / "baseline.yaml").read_bytes()


def test_a_stored_study_is_not_run_on_the_packaged_recipe_of_its_name(tmp_path: Path) -> None:
    """A recipe may change after the study."""
    copy = Path(shutil.copytree(STUDIES[-1], tmp_path / "copy"))
    baseline = copy / "baseline.yaml"
    lines = [line for line in baseline.read_text().splitlines() if not line.startswith("#")]
    write_sealed(baseline, "\n".join(lines).replace("lr: 0.001", "lr: 0.004") + "\n")
    plan = load_study(copy).arms[0].plans[0]
    assert plain(plan)["optimizer"]["lr"] == 0.004 != plain(read_plan("mini"))["optimizer"]["lr"]


def test_the_folder_of_an_unfinished_study_as_out_resumes_it(stored: Path) -> None:
    first = run_study(load_study(stored, arms=["twice"]), stored, 1)
    again = run_study(load_study(stored), stored, 1)
    assert first.done == again.done == 4 and not again.failed


def test_overrides_change_the_stored_baseline_further(stored: Path, tmp_path: Path) -> None:
    smaller = load_study(stored, "seeds=[7]", "set=[train.batch=2]", "evaluation.count=16")
    (plan,) = smaller.arms[0].plans
    assert (plan.seed, plan.train.steps, plan.train.batch, smaller.settings.evaluation.count) == (7, 3, 2, 16)
    assert smaller.settings.set == ("train.steps=3", "train.batch=2")
    (tmp_path / "new").mkdir()
    claim_folder(smaller, tmp_path / "new")
    assert stored_study(tmp_path / "new") == smaller


@pytest.mark.parametrize("given", ["recipe=pocket", "resolutions=[{name: a}, {name: b}]"])
def test_another_baseline_for_a_stored_study_is_refused(given: str, stored: Path) -> None:
    with pytest.raises(UserError, match=rf"{given[:6]}.*has its own baseline .*set=\[key.path=value\]"):
        load_study(stored, given)


def test_a_stored_study_file_without_its_folder_says_where_its_baseline_is(stored: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.yaml"
    shutil.copy(stored / "study.yaml", alone)
    with pytest.raises(UserError, match=r"alone\.yaml, line 2: .*baseline\.yaml.*remove the line `name`"):
        load_study(alone)


def test_a_study_file_of_ones_own_may_be_called_study_and_its_plan_baseline(tmp_path: Path) -> None:
    (tmp_path / "baseline.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLAN", "baseline.yaml"))
    assert load_study(tmp_path) == load_study(tmp_path / "study.yaml")


def test_a_missing_tokenizer_of_a_stored_study_has_the_command_that_makes_it(tmp_path: Path) -> None:
    study = ROOT / "studies" / "2026-11-15_tokenizers-mini"
    again = load_study(study)
    commands = re.findall(r"`(tintype tokenizer [^`]+|hf [^`]+)`", (study / "README.md").read_text())
    assert [line.partition("; this makes it: ")[2] for line in missing_files(again)] == commands
    with pytest.raises(UserError, match="vae-scenes is not here; this makes it: tintype tokenizer train --out vae-s"):
        prepare_study(again, tmp_path / "new")
    assert not (tmp_path / "new" / "study.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["train", "FOLDER"],
            r"is the folder of a study; the plan of its baseline is .*baseline\.yaml.*`tintype ablate",
        ),
        (["ablate", "FOLDER/.."], r"is a folder, but not the folder of a study \(no study\.yaml\)"),
        (["sample", "FOLDER/study.yaml", "a ball"], r"is a file; give the folder of a run, or of a study with --arm"),
    ],
)
def test_a_folder_or_file_that_does_not_fit_is_refused_in_words(words: list[str], message: str, stored: Path) -> None:
    given = [word.replace("FOLDER", str(stored)) for word in words]
    shown = CliRunner().invoke(app, [*given, "--out", str(stored / "new")])
    assert re.search(message, str(shown.exception), re.DOTALL)


@pytest.mark.parametrize("command", ["report", "propose", "status", "power"])
def test_commands_on_a_folder_take_the_study_file_in_it(command: str, tmp_path: Path) -> None:
    study = shutil.copytree(STUDIES[-1], tmp_path / "study")
    both = [CliRunner().invoke(app, [command, str(given)]) for given in (study, study / "study.yaml")]
    assert both[0].output == both[1].output and str(both[0].exception) == str(both[1].exception)


def test_the_seal_of_a_stored_study_is_checked(stored: Path) -> None:
    file = stored / "study.yaml"
    assert read_yaml(file.read_text(), "study.yaml").data["seeds"] == [0, 1]
    file.write_text(file.read_text().replace("question: Does it help", "question: Did it help"))
    with pytest.raises(UserError, match=r"study\.yaml is damaged"):
        load_study(stored)
