"""Every command that takes a run takes the folder of a study with --arm and --arm-seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.tiny import TINY
from tests.unit.cli.test_help import ALL
from tintype.cli import app
from tintype.cli.shared import named_command
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.study.folder import claim_folder
from tintype.study.lab import choose_run
from tintype.study.study import Study, load_study
from tintype.train.loop import train

STUDY = """
question: q
recipe: plan.yaml
seeds: [3, 4]
arms: [{techniques: [ema]}, {techniques: [short-captions], name: "short [s]"}]
"""
SMALL = ["count=8", "reference_count=8", "validation_count=2", "sampler.steps=1", "also=[]", "metrics=[mmd]"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    """A study of which only the arm ema is trained."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6, batch: 4, warmup_steps: 2", "steps: 1, batch: 4"))
    (folder / "study.yaml").write_text(STUDY)
    loaded, out = load_study(str(folder / "study.yaml")), folder / "out"
    out.mkdir()
    claim_folder(loaded, out)
    for plan in loaded.arms[1].plans:
        train(plan, out / "runs" / plan.hash, Interrupt())
    return out, loaded


def ask(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code in (0, 1), result.output
    return result.output


def test_a_run_is_chosen_by_arm_and_seed(study: tuple[Path, Study]) -> None:
    out, loaded = study
    plans = {(arm.name, plan.seed): plan for arm in loaded.arms for plan in arm.plans}
    for (arm, seed), plan in plans.items():
        assert choose_run(out, arm, seed).plan == plan
        assert choose_run(out, arm, seed).folder == out / "runs" / plan.hash
    assert choose_run(out, "ema", None).plan.seed == 3, "the first one"
    with pytest.raises(UserError, match=r'--arm baseline  \(seeds 3, 4\)\n  --arm ema .*\n  --arm "short \[s\]"  '):
        choose_run(out, None, None)
    with pytest.raises(UserError, match=r"--arm emma: .* has no arm with this name; did you mean 'ema'"):
        choose_run(out, "emma", None)
    with pytest.raises(UserError, match=r"has no arm with this name; it has these:\n  --arm baseline ") as unknown:
        choose_run(out, "qqq", None)
    assert str(unknown.value).count("ema") == 1, "the arms are listed once"
    with pytest.raises(UserError, match=r"--arm-seed 5: arm 'ema' of .* has only the seeds 3, 4"):
        choose_run(out, "ema", 5)
    with pytest.raises(UserError, match=r"arm 'short \[s\]', seed 4 is not trained yet"):
        choose_run(out, "short [s]", 4).trained_folder()


def test_a_log_names_the_command_and_what_it_works_on() -> None:
    words = ["--plugin", "mine.py", "ablate", "my study.yaml", "--out", "out"]
    assert named_command(words) == "tintype ablate 'my study.yaml'"
    assert len(named_command(["sample", "run", "a red ball " * 99])) <= 100


def test_every_command_that_takes_a_run_can_choose_it() -> None:
    takers = [
        path
        for path, command in ALL.items()
        if any(one.param_type_name == "argument" and "of a run" in (one.help or "") for one in command.params)
    ]
    assert len(takers) >= 9
    for path in takers:
        assert {"arm", "arm_seed"} <= {one.name for one in ALL[path].params}, path


def test_commands_find_the_run(study: tuple[Path, Study], tmp_path: Path) -> None:
    out, loaded = study
    plan = loaded.arms[1].plans[1]
    run, chosen = (str(out / "runs" / plan.hash), ["--arm", "ema", "--arm-seed", "4"])
    assert run in ask("sample", out, "a", *chosen, "--seed", "7", "--steps", "1", "--out", tmp_path)
    with Image.open(tmp_path / "0000.png") as image:
        about = json.loads(image.info["tintype"])
    assert (about["plan"], about["seed"]) == (plan.hash, 7), "the seed of the run and that of the noise are two"
    overrides = [part for one in SMALL for part in ("--set", one)]
    assert run in ask("evaluate", out, *chosen, *overrides)
    assert f"arm 'ema', seed 4: {run}" in ask("audit", out, *chosen, "--steps", "1")
    assert plan.hash in ask("card", out, *chosen)
    assert ask("plan", "show", out, *chosen).startswith(f"# hash: {plan.hash}\nseed: 4\n")
    refusals: dict[str, list[str | Path]] = {
        "no snapshots": ["ema", out],
        "a single file with the denoiser": ["export", out, "--to", "safetensors", "--out", tmp_path / "x.safetensors"],
        "did not tune its tokenizer": ["tokenizer", "save", out, "--out", tmp_path / "x"],
    }
    for reason, command in refusals.items():  # which come after the run is found
        with pytest.raises(UserError, match=reason):
            ask(*command, *chosen)


def test_plans_of_arms_are_compared(study: tuple[Path, Study]) -> None:
    out, _ = study
    assert ask("plan", "diff", out, "--arm", "ema") == "ema: off -> on\n"
    with pytest.raises(UserError, match=r"choose the arm to compare with the baseline:\n  --arm ema  \(seeds 3, 4\)\n"):
        ask("plan", "diff", out)
    assert ask("plan", "diff", out, "--arm", "ema", "--all").startswith("ema: off -> on\nema.decay: None -> 0.999\n")
    assert ask("plan", "diff", out, out, "--arm", "ema").startswith("no difference")
    assert "ema: on -> off" in ask("plan", "diff", out, "pocket", "--arm", "ema")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "nowhere", "a", "--arm", "x"], "nowhere is not a study: study.yaml is missing"),
        (["audit", "pocket", "--arm-seed", "1"], "pocket is not a folder"),
        (["plan", "show", "pocket", "--arm", "x"], "pocket is not a study"),
        (["plan", "diff", "pocket", "mini", "--arm", "x"], "pocket is not a study"),
        (["plan", "diff", "pocket"], "give a second plan, or the folder of a study with --arm"),
        (["evaluate", "--images", "a", "--reference", "b", "--arm", "x"], "no folder of a study is given"),
        (["sample", "STUDY", "a"], "choose one of its runs with --arm and --arm-seed:"),
        (["plan", "show", "STUDY", "--arm", "ema", "--set", "seed=1"], "are only for recipes and plan files"),
    ],
)
def test_what_cannot_be_chosen_is_said(arguments: list[str], message: str, study: tuple[Path, Study]) -> None:
    with pytest.raises(UserError) as refused:
        ask(*(str(study[0]) if word == "STUDY" else word for word in arguments))
    assert message in str(refused.value)
