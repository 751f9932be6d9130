"""`tintype check` passes techniques that keep the contract, and fails each kind of broken one."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.plugin_files import EVERY_PART, EXAMPLES, only_these_plugins, write_plugin
from tintype.cli import app
from tintype.contract import run
from tintype.contract import technique as contract
from tintype.contract.run import check_file, require_contract
from tintype.contract.template import write_technique
from tintype.errors import UserError
from tintype.study.study import load_study
from tintype.techniques import TECHNIQUES
from tintype.train import update

Check = Callable[..., Any]
BESIDE = ("ema", "min-snr", "repa", "text-encoder")
"""Some techniques to try others with: the full list takes seconds."""
DIFFERENCES = "error_BCHW = inputs.velocity_BCHW - inputs.target_BCHW"
MODULE = [
    ("class MyIdea(LossTerm):", "class MyIdea(LossTerm, torch.nn.Module):"),
    ("        self.power = power", "        super().__init__()\n        self.power = power\n        PARAMETER"),
    ("from torch import Tensor", "import torch\nfrom torch import Tensor"),
]
SCALE = ("PARAMETER", "self.scale = torch.nn.Parameter(torch.ones(()))")
USED = ("return down_B + across_B", "return self.scale * (down_B + across_B)")
DECLARED = ("trains=frozenset(),", 'trains=frozenset({"losses_my-idea"}),')
APPLY = "options=MyIdeaSettings,"
BROKEN: dict[str, tuple[list[tuple[str, str]], Check, str]] = {
    "it changes nothing": (
        [(APPLY, f"{APPLY}\n        part=MyIdeaSettings,\n        apply=lambda plan, options: {{}},")],
        contract.check_seams,
        "changes nothing",
    ),
    "it changes another seam": (
        [
            (
                APPLY,
                f"{APPLY}\n        apply=lambda plan, options: {{'losses': (options,), "
                "'train': plan.train.model_copy(update={'batch': 8})},",
            )
        ],
        contract.check_seams,
        "also changes train.batch",
    ),
    "it loses a setting in YAML": (
        [
            (
                "    def build(",
                '    @field_serializer("power")\n    def _rounded(self, value: float) -> float:\n'
                "        return value + 1\n\n    def build(",
            ),
            ("from pydantic import Field", "from pydantic import Field, field_serializer"),
        ],
        contract.check_round_trip,
        "changes when it is written and read again: losses.0.power",
    ),
    "it changes the process": (
        [
            (
                DIFFERENCES,
                "from tintype.train import update\n        update.lr_factor = lambda plan, step: 0.0\n"
                f"        {DIFFERENCES}",
            )
        ],
        contract.check_off,
        "losses change after a run with the technique",
    ),
    "it hides a parameter": (
        [*MODULE, SCALE, USED],
        contract.check_parameters,
        "the technique adds the parameters losses_my-idea.scale but does not name them",
    ),
    "it declares a parameter that it lacks": (
        [DECLARED],
        contract.check_parameters,
        "the technique adds no such parameters",
    ),
    "its parameter gets no gradient": (
        [*MODULE, SCALE, DECLARED],
        contract.check_parameters,
        "losses_my-idea.scale have no gradient",
    ),
    "it remembers what no checkpoint has": (
        [
            ("        self.power = power", "        self.power, self.calls = power, 0"),
            (DIFFERENCES, f"self.calls += 1\n        {DIFFERENCES} * self.calls"),
        ],
        contract.check_resume,
        "in its buffers or parameters",
    ),
    "it draws from the global generator": (
        [("return down_B + across_B", "return down_B * torch.rand(()) + across_B"), MODULE[2]],
        contract.check_resume,
        "ends with other weights",
    ),
    "it fails beside another technique": (
        [(DIFFERENCES, f"assert inputs.weight_B is None, 'no weights'\n        {DIFFERENCES}")],
        contract.check_pair,
        "AssertionError: no weights (my_idea.py, line ",
    ),
    "it is not finite beside another technique": (
        [("return down_B + across_B", "return down_B + across_B * (1.0 if inputs.weight_B is None else float('nan'))")],
        contract.check_pair,
        "a training step together with 'min-snr' has a loss or gradient that is not finite",
    ),
    "it refuses another technique without its name": (
        [
            (
                "    def build(",
                "    def check(self, plan: PlanView) -> None:\n        if plan.ema is not None:\n"
                '            raise UserError("no averages, please")\n\n    def build(',
            ),
            ("import LossPart", "import LossPart, PlanView"),
            ("from pydantic import Field", "from pydantic import Field\nfrom tintype.errors import UserError"),
        ],
        contract.check_pair,
        "the error for the combination with 'ema' must name both techniques, but says: no averages, please",
    ),
    "it needs nothing and says that it does": (
        [(APPLY, f"{APPLY}\n        needs={{'train.batch': '4'}},")],
        contract.check_needs,
        "can also be applied to a plan without these settings",
    ),
}


@pytest.fixture(autouse=True)
def no_plugins() -> Iterator[None]:
    with only_these_plugins():
        yield


def technique_file(folder: Path, changes: list[tuple[str, str]]) -> Path:
    """Write the template's technique with some of its text replaced."""
    file = write_technique("my-idea", folder / "my_idea.py")
    text = file.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
    return file


def only(check: Check | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave one check of a technique alone, beside the first: all of them take seconds."""
    chosen = (contract.check_seams, check) if check in contract.CHECKS[1:] else contract.CHECKS[:1]
    monkeypatch.setattr(run, "CHECKS", chosen)


def test_the_written_file_passes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    checked = check_file(
        technique_file(tmp_path, []), others=BESIDE, report=lambda doing, done, total: seen.append((done, total))
    )
    assert checked.passed and len(checked.results) == len(contract.CHECKS) + 1
    assert (
        checked.results[-1].details
        == "3 trained, 0 refused, 1 as plans alone: their weights or their device are not here"
    )
    assert seen == sorted(seen) and seen[-1][0] < seen[-1][1]
    assert checked.parts == {"techniques": ["my-idea"], "losses": ["my-idea"]}


def test_parameters_that_are_declared_and_trained_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(contract.check_parameters, monkeypatch)
    checked = check_file(technique_file(tmp_path, [*MODULE, SCALE, USED, DECLARED]), others=())
    assert checked.passed and checked.results[1].details == "1 added"


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_technique_fails_the_check_that_it_breaks(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "lr_factor", update.lr_factor)
    changes, check, words = BROKEN[broken]
    only(check, monkeypatch)
    others = BESIDE if check is contract.check_pair else ()
    (failed,) = (one for one in check_file(technique_file(tmp_path, changes), others=others).results if not one.passed)
    title = run.PAIRS if check is contract.check_pair else str(check.__doc__).splitlines()[0].rstrip(".")
    assert failed.check == title and words in failed.details


def test_the_command_prints_a_line_for_each_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TECHNIQUES, "built_in", {"ema": TECHNIQUES["ema"]})
    only(contract.check_round_trip, monkeypatch)
    result = CliRunner().invoke(app, ["check", str(technique_file(tmp_path, []))])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line[:6] for line in lines[:-2]] == ["pass  "] * 3 and lines[-1] == "3 of 3 checks passed"


def test_json_and_a_failure(tmp_path: Path) -> None:
    file = technique_file(tmp_path, BROKEN["it changes nothing"][0])
    result = CliRunner().invoke(app, ["check", str(file), "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and not found["passed"] and found["results"][0]["technique"] == "my-idea"
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 1 and result.stdout.startswith("FAIL  my-idea: changes its own seam")


def test_options_and_settings_of_the_tiny_plan_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(contract.check_round_trip, monkeypatch)
    file = technique_file(tmp_path, [])
    checked = check_file(file, ["my-idea:power=3"], ["train.batch=2"], others=())
    assert checked.passed
    with pytest.raises(UserError, match=r"--technique other: .* defines no technique with this name; it has my-idea"):
        check_file(file, ["other"])


def test_it_is_not_blamed_for_a_technique_that_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(None, monkeypatch)
    monkeypatch.setattr(run, "SPECS", {"ema": "ema:decay=2"})
    checked = check_file(technique_file(tmp_path, []), others=("ema", "swiglu"))
    assert checked.passed and checked.results[-1].details.startswith("1 trained, 0 refused, 1 as plans alone")


def test_a_file_without_techniques_is_loaded_and_said_to_have_none(tmp_path: Path) -> None:
    file = write_plugin(tmp_path, "LAUNCHERS = {'a': print}")
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0 and "launcher a" in result.stdout and "it has no technique" in result.stdout
    with pytest.raises(AssertionError, match="has no technique"):
        require_contract(file)


SAMPLER = """
def mine(velocity, noise, times, draws, on_step):
    x = noise
    for now, then in zip(times, times[1:]):
        x = x + (then - now) * velocity(x, now)
        on_step()
    return x

SAMPLERS = {"mine": mine}
"""
RANDOM = ("return x", "import torch\n    return x + torch.randn(x.shape)")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("return x", "return x + draws.normal('mine', tuple(x.shape[1:]))"), "3 images, 4 steps"),
        (("return x", "return x / 0"), "the sampled images are not finite"),
        (("        on_step()\n", ""), "the sampler calls `on_step` 0 times in 4 steps"),
        (RANDOM, "differs between two batches: draw random numbers from `draws`"),
        (("return x", "return x - x.mean()"), "differs between two batches: .* compute each sample independently"),
        (("return x", "return x + nothing"), r"NameError: .*\(my_ideas.py, line 7\)"),
    ],
    ids=["draws", "infinite", "no progress", "random", "mixed", "error"],
)
def test_a_sampler_keeps_its_contract_or_is_told_how_it_breaks_it(
    change: tuple[str, str], words: str, tmp_path: Path
) -> None:
    (result,) = check_file(write_plugin(tmp_path, SAMPLER.replace(*change))).results
    assert result.technique == "mine" and result.passed == (words == "3 images, 4 steps")
    assert re.search(words, result.details)


def test_a_guidance_is_held_to_the_contract_of_samplers(tmp_path: Path) -> None:
    text = """
from typing import Literal
import torch
from tintype.flow.guidance import Branches, GuidancePart, PairFn

class Noisy(GuidancePart):
    kind: Literal["noisy"] = "noisy"

    def pair(self, branches: Branches) -> PairFn:
        return lambda x, t: (branches.captioned(x, t), torch.randn(x.shape))

GUIDANCES = (Noisy,)
"""
    (result,) = check_file(write_plugin(tmp_path, text)).results
    assert result.technique == "noisy" and not result.passed and "differs between two batches" in result.details


NEW_SEAMS = ["pseudo-huber", "preconditioned", "middle", "kumaraswamy", "every-second"]


@pytest.mark.parametrize("name", NEW_SEAMS)
def test_a_part_of_each_seam_keeps_the_contract(name: str) -> None:
    checked = check_file(EVERY_PART, [name], others=("min-snr", "tread", "contrastive"))
    assert checked.passed and len(checked.results) == len(contract.CHECKS) + 1


@pytest.mark.parametrize(
    ("name", "out", "error"),
    [
        ("My_Idea", None, "write lower-case words joined by -"),
        ("repa", None, "a technique with this name exists already"),
        ("my-idea", "ideas.txt", "name the file with letters"),
        ("my-idea", "there.py", r"there\.py exists"),
    ],
)
def test_new_refuses(name: str, out: str | None, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").touch()
    with pytest.raises(UserError, match=error):
        write_technique(name, Path(out) if out else None)


def test_new_writes_a_file_and_says_what_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "technique", "sharp-ends"])
    assert result.exit_code == 0 and "tintype check sharp_ends.py" in result.stdout
    text = (tmp_path / "sharp_ends.py").read_text()
    assert "class SharpEndsSettings(LossPart)" in text and "$" not in text


def test_the_example_has_the_mathematics_that_it_states_and_its_study_can_be_read() -> None:
    example = EXAMPLES / "my_technique"
    runpy.run_path(str(example / "fine_details.py"))["test_mathematics"]()
    with only_these_plugins(example / "fine_details.py"):
        assert [arm.name for arm in load_study(str(example / "study.yaml")).arms[2:]] == [
            "fine-details",
            "fine-details, strongly",
        ]


def test_the_code_and_the_study_of_the_tutorial_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the page says: write the file, put its class in, and name the technique in a study."""
    page = (EXAMPLES.parent / "docs" / "tutorials" / "your-own-technique.md").read_text()
    (code,), (study,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "yaml"))
    imports, term = code.split("\n\n\n", 1)
    file = write_technique("fine-details", tmp_path / "fine_details.py")
    before, rest = file.read_text().split("class FineDetails(LossTerm)")
    after = rest[rest.index("# tintype looks for these names") :]
    file.write_text(
        before.replace("from torch import", f"{imports.strip()}\nfrom torch import") + term + "\n\n" + after
    )
    only(contract.check_parameters, monkeypatch)
    assert check_file(file, others=BESIDE).passed
    (tmp_path / "fine.yaml").write_text(study)
    assert load_study(str(tmp_path / "fine.yaml")).arms[-1].plans[0].losses[0].weight == 1


@pytest.mark.slow
def test_the_example_keeps_the_contract_with_every_technique() -> None:
    file = EXAMPLES / "my_technique" / "fine_details.py"
    runpy.run_path(str(file))["test_contract"]()
