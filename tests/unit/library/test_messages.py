"""Errors and notes of the library name arguments of its functions, where those of the command line name options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tintype
from tests.tiny import tiny_plan
from tests.tiny_store import tiny_store
from tests.written_runs import Writer, written_runs
from tintype.errors import DivergedError, UserError
from tintype.library import for_python
from tintype.runtime.notes import note
from tintype.wording import MARKS, option, rendered

EVALUATION = {"count": 8, "reference_count": 16, "validation_count": 4, "also": [], "sampler": {"steps": 1}}
BY_POSITION = {"set", "technique", "plugin"}
"""Options whose values a function takes by position. A message may name them wherever a plan is made."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, a table of runs, and a folder of something else."""
    folder = tmp_path_factory.mktemp("messages")
    (folder / "runs.csv").write_text("arm,seed,fid\nbaseline,0,9\nbaseline,1,8\nmuon,0,7\nmuon,1,6\n")
    (folder / "other").mkdir()
    (folder / "other" / "notes.txt").write_text("mine")
    (folder / "idea.py").write_text("x = 1\n")
    study = tintype.make_study("q", tiny_plan(), {"fast": "optimizer.lr=0.01"}, seeds=[0, 1], evaluation=EVALUATION)
    with written_runs(Writer({"fast": -20.0})):
        tintype.run_study(study, folder / "study")
    return folder


MISTAKES: list[tuple[Callable[..., object], Callable[[Path], tuple[Any, ...]], dict[str, Any], str]] = [
    (tintype.load_plan, lambda here: ("pocket", "train.stepz=3"), {}, '^"train.stepz=3": train.stepz: unknown key'),
    (tintype.load_plan, lambda here: ("pocket", "seed=[0,1]"), {}, r'^"seed=\[0,1\]": seed'),
    (
        tintype.load_plan,
        lambda here: ("pocket", "seed"),
        {},
        '^"seed" does not assign a value to a setting; write it as key.path=value',
    ),
    (
        tintype.load_run,
        lambda here: (here / "study",),
        {},
        'choose one of its runs with `arm` and `seed`:\n  arm="baseline"',
    ),
    (tintype.load_run, lambda here: (here / "study",), {"arm": "slow"}, '^arm="slow": .* has no arm with this name'),
    (tintype.load_run, lambda here: (here / "study",), {"arm": "fast", "seed": 9}, "^seed=9: arm 'fast'"),
    (tintype.load_run, lambda here: (here / "other",), {"arm": "fast"}, "^`arm` and `seed` choose a run of a study"),
    (
        tintype.judge,
        lambda here: (here / "runs.csv",),
        {"margin": "much"},
        '^margin="much" is not a valid size of a difference',
    ),
    (
        tintype.judge,
        lambda here: (here / "runs.csv",),
        {"baseline": "x"},
        "no arm has the name 'x', which `baseline` gives",
    ),
    (tintype.judge, lambda here: (here / "runs.csv",), {"seed_column": "x"}, "name the column with `seed_column`"),
    (tintype.judge, lambda here: (here / "runs.csv",), {"metric": "x"}, "has no column 'x' for `metric`"),
    (tintype.judge, lambda here: (here / "runs.csv",), {"metric": ":lower"}, '^metric=":lower": the name is missing'),
    (tintype.estimate, lambda here: ({"baseline": [1, 2], "a": [1, 2]},), {"primary": "x"}, 'estimate: primary="x"'),
    (tintype.estimate, lambda here: ({"baseline": [1, 2], "a": [1, 2]},), {"baseline": "x"}, "which `baseline` gives"),
    (tintype.train, lambda here: (tiny_plan(), here / "other"), {}, "choose an empty or new folder for `out`"),
    (tintype.train, lambda here: (tiny_plan("run.device=cuda:99"), here / "gpu"), {}, "run.device"),
    (tintype.load_plugins, lambda here: (here / "idea.py",), {}, r'^"\S+idea.py": the plugin adds nothing'),
    (
        tintype.load_plugins,
        lambda here: (here / "no-idea.py",),
        {},
        r'^"\S+no-idea.py" is not a valid name for a Python module',
    ),
    (tintype.run_study, lambda here: ("pocket", here / "runs.csv"), {}, "cannot write to .*; choose another `out`"),
    (tintype.run_study, lambda here: ("pocket", here / "study"), {}, "another baseline; choose another `out`"),
    (tintype.apply, lambda here: ("pocket", "muom"), {}, "^unknown technique 'muom'; did you mean 'muon'"),
    (
        tintype.evaluate,
        lambda here: (here / "study",),
        {},
        "choose one of its runs with `arm` and `seed`, or give the run's",
    ),
    (tintype.evaluate, lambda here: (run_in(here), "cont=8"), {}, '^"cont=8": cont: unknown key; did you mean'),
    (
        tintype.evaluate,
        lambda here: (run_in(here),),
        {"ema_length": 0.1},
        'to reconstruct other lengths, train with "power-ema"',
    ),
    (tintype.evaluate, lambda here: (), {"images": "other"}, "give the folder of a run, or images="),
    (tintype.ema, lambda here: (run_in(here),), {}, 'to reconstruct other lengths, train with "power-ema"'),
    (tintype.sample, lambda here: (run_in(here),), {}, "prompt"),
    (
        tintype.sample,
        lambda here: (run_in(here), ["a ball"]),
        {"guide_step": 1.0},
        '^`guide_step` and `guide_length` apply only to guidance_kind="autoguidance"',
    ),
    (tintype.compare, lambda here: (here / "other", here / "study"), {}, "is not a run|is a study"),
    (tintype.pool, lambda here: (here / "study", here / "study"), {}, "is given twice; give each study once"),
    (
        tintype.import_images,
        lambda here: (tiny_store(here, 4).with_suffix(".parquet"), here / "new"),
        {"caption": {"long": "x"}},
        r"^caption=\"long=x\": .*store.parquet has no text column 'x'",
    ),
    (tintype.data_presets, lambda here: ("coco",), {}, "^unknown preset 'coco'"),
    (tintype.choose_shapes, lambda here: (), {"size": 65}, "^size=65 is not a multiple of unit=16"),
    (tintype.show_store, lambda here: (tiny_store(here, 4, "shown"),), {"where": "wdth > 3"}, "^`where`, character 1"),
    (
        tintype.inspect_store,
        lambda here: (here / "other", here / "x.json"),
        {},
        '^out="\\S+x.json": the output is an HTML page',
    ),
    (tintype.export_store, lambda here: (here / "shown", here), {"to": "parquet"}, "an empty or new folder for `out`"),
    (tintype.recaption_store, lambda here: (here / "shown",), {"column": "vlm"}, '^model="MODEL" is missing'),
    (tintype.train_encoder, lambda here: (here / "other",), {"device": "tpu"}, "'tpu' is not a valid device"),
    (tintype.train_tokenizer, lambda here: (here / "vae", "stepz=2"), {}, '^"stepz=2": stepz: unknown key'),
    (tintype.cache_latents, lambda here: ("pocket",), {}, "'pixels' has no latents to cache"),
    (tintype.save_tokenizer, lambda here: (here / "other", here / "vae"), {}, "is not a run"),
    (tintype.compare_tokenizers, lambda here: (["pixls"], here / "report"), {}, "did you mean 'pixels'"),
    (tintype.status, lambda here: (here / "other",), {}, "is not a study"),
    (tintype.report, lambda here: (here / "other",), {}, "is not a study"),
    (tintype.replicate, lambda here: (here / "study",), {"jobs": "many"}, '^jobs="many" is not a valid number of runs'),
    (tintype.propose, lambda here: (here / "study",), {"arm": "x"}, '^arm="x" is not a valid arm'),
    (tintype.work, lambda here: (here / "study",), {"run": "x"}, '^run="x": is no run of this study'),
    (tintype.launch, lambda here: (here / "study",), {"on": "nowhere"}, '^on="nowhere"'),
    (tintype.serve, lambda here: (here / "nothing",), {}, "is not a folder; give the folder of runs"),
    (
        tintype.power,
        lambda here: ([here / "study"],),
        {"effect": "much"},
        '^effect="much" is not a valid size of a difference',
    ),
    (tintype.load_study, lambda here: ("pocket", "seeds=[0,"), {}, r'^"seeds" is not valid YAML'),
    (tintype.load_study, lambda here: ("pocket",), {"arms": ["muom"]}, "^unknown arm 'muom'"),
    (tintype.load_results, lambda here: (here / "other",), {}, "give the folder of a study that has a report"),
    (tintype.make_study, lambda here: ("q", "pocket", {"a": "muom"}, [0]), {}, "unknown technique 'muom'"),
    (
        tintype.show_plan,
        lambda here: ("pocket",),
        {"arm": "x"},
        "^`arm` and `seed` choose a run of a study, but pocket",
    ),
    (
        tintype.show_plan,
        lambda here: (here / "study",),
        {},
        'choose one of its runs with `arm` and `seed`:\n  arm="baseline"',
    ),
    (tintype.diff_plans, lambda here: ("pocket",), {}, "^only one plan is given: pocket; give a second plan"),
    (tintype.plan_cost, lambda here: ("pocket",), {"gpu": "h999"}, '^gpu="h999": unknown kind'),
    (
        tintype.audit,
        lambda here: ("pocket",),
        {"arm": "x"},
        "^`arm` and `seed` choose a run of a study, but pocket is no",
    ),
    (tintype.audit, lambda here: (here / "other",), {}, "is not a run: plan.yaml is missing"),
    (
        tintype.bench,
        lambda here: (),
        {"data": True, "metrics": True},
        "^`data` and `metrics` cannot be measured togeth",
    ),
    (tintype.bench, lambda here: (), {"study": True, "steps": 3}, '^`steps`: .*use "train.steps=N"'),
    (tintype.bench, lambda here: (), {"batch": "4,0"}, "write it as batch="),
    (tintype.check, lambda here: (here / "idea.py",), {}, r'^"\S+idea.py": the plugin adds nothing'),
    (tintype.new_technique, lambda here: ("My Idea",), {}, "My Idea"),
    (
        tintype.export_run,
        lambda here: (run_in(here),),
        {"to": "tintype", "out": "x", "yes": True},
        "^`yes` applies only to `push`",
    ),
    (
        tintype.export_run,
        lambda here: (run_in(here),),
        {"to": "safetensors", "out": "x", "license_": "mit"},
        "^`license_` applies only to a folder with a model card",
    ),
    (tintype.import_model, lambda here: (here / "idea.py", here / "new"), {}, "idea.py"),
    (
        tintype.write_card,
        lambda here: (run_in(here),),
        {"license_": "My Own"},
        '^license_="My Own" is not a licence ident',
    ),
    (
        tintype.push,
        lambda here: (here / "other",),
        {"repo": "a/b"},
        "^the upload must be confirmed, but .*; pass `yes`",
    ),
    (tintype.sync, lambda here: (str(here),), {}, "give a target to copy .* to, or `list_` and no target"),
]
CANNOT_FAIL = {"plan_schema", "recipes", "studies", "techniques"}
"""Functions without arguments."""


def run_in(here: Path) -> Path:
    """Return the folder of a run of the study."""
    return min((here / "study" / "runs").glob("*"))


def test_a_mistake_is_made_with_every_function_of_the_library() -> None:
    public = {name for name in tintype.__all__ if inspect.isfunction(getattr(tintype, name))}
    assert {function.__name__ for function, *_ in MISTAKES} == public - CANNOT_FAIL


@pytest.mark.parametrize(("function", "given", "named", "words"), MISTAKES)
def test_a_mistake_is_told_in_arguments(
    function: Callable[..., object],
    given: Callable[[Path], tuple[Any, ...]],
    named: dict[str, Any],
    words: str,
    here: Path,
) -> None:
    with pytest.raises(UserError, match=words) as raised:
        function(*given(here), **named)
    error = raised.value
    for text in (str(error), repr(error), error.problem, error.fix):
        assert "--" not in "".join(text.split("`")[::2]) and not MARKS & set(text)
    parameters = {**inspect.signature(function).parameters, **inspect.signature(tintype.load_run).parameters}
    for one in error.options:  # a run of a study is chosen by `load_run`
        assert one.name in BY_POSITION or rendered(option(one.name), "python").strip("`") in parameters


def test_the_same_mistake_names_options_on_the_command_line(here: Path) -> None:
    from tintype.library.runs import load_run

    with pytest.raises(UserError, match=r"^--arm slow: .* has no arm with this name"):
        load_run(here / "study", "slow")


def test_an_error_keeps_its_class_and_its_place() -> None:
    def fail(text: str) -> None:
        raise DivergedError(text)

    with pytest.raises(DivergedError, match="choose another `out`") as found:
        for_python(fail)(f"choose another {option('out')}")
    assert found.traceback[-1].name == "fail"
    assert for_python(fail).__name__ == "fail"


def test_a_note_names_arguments_within_a_call_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tintype"):
        for_python(note)(f"another {option('out')} trains them again")
        note(f"another {option('out')} trains them again")
    assert caplog.messages == ["another `out` trains them again", "another --out trains them again"]
