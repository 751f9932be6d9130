"""A plan or study file cannot name code, whatever stands in it and wherever."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fault.promises import Promise
from tests.plan_fields import Field, document, fields
from tests.tiny import tiny_plan
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.plan import Plan, plan_from_yaml
from tintype.settings import Settings
from tintype.study.settings import StudySettings
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import apply_techniques

PLAN_FIELDS = list(fields(Plan))
STUDY_FIELDS = list(fields(StudySettings))


def test_the_walk_finds_the_fields() -> None:
    paths = {".".join(map(str, path)) for path, _, _ in PLAN_FIELDS}
    assert {"objective.kind", "losses.0.weight", "data.sources.a.share", "optimizer.adamw.lr", "run.device"} <= paths
    assert len(PLAN_FIELDS) > 200 and len(STUDY_FIELDS) > 40


def attacks(trap: Path) -> list[Any]:
    """Values that make a folder if anything runs what they name."""
    call = f"__import__('os').mkdir({str(trap)!r})"
    return [
        {"_target_": "os.mkdir", "path": str(trap)},
        {"kind": "os.mkdir", "path": str(trap)},
        {"__class__": "os.mkdir", "__reduce__": [str(trap)]},
        call,
        f"{{{{ {call} }}}}",
        f"$(mkdir {trap})",
        "os.mkdir",
        "tintype.flow.x_prediction.XPrediction",
        [call, {"_partial_": True}],
    ]


@pytest.mark.promise(18)
def test_no_field_of_a_plan_or_study_runs_what_it_names(promise: Promise, tmp_path: Path) -> None:
    """Put calls, class names and shell commands into each field of a plan and a study, and look whether one ran."""
    trap = tmp_path / "made"
    models: list[tuple[type[Settings], list[Field]]] = [(Plan, PLAN_FIELDS), (StudySettings, STUDY_FIELDS)]
    cases = [(model, one, attack) for model, known in models for one in known for attack in attacks(trap)]
    for model, (path, kinds, _), attack in promise.choose(cases, short=200):
        name = f"{'.'.join(map(str, path))}: {attack}"
        text = json.dumps(document(path, kinds, attack))
        try:
            parse(model, read_yaml(text, "hostile.yaml"))
            held = isinstance(attack, str)  # taken for a text: a file's name, an arm's
        except UserError as error:
            held = "hostile.yaml" in str(error) or str(path[-1]) in str(error)  # with its place
        promise.count(held and not trap.exists(), name)


TAGS = ["object/apply:os.mkdir [TRAP]", "object/new:os.mkdir [TRAP]", "name:os.system ''", "module:os ''"]


@pytest.mark.promise(18)
def test_no_tag_of_yaml_runs_code(promise: Promise, tmp_path: Path) -> None:
    """Put the tags by which YAML makes objects at each section of a plan, as key and as value."""
    trap = tmp_path / "made"
    for section in Plan.model_fields:
        for tag in TAGS:
            tagged = f"!!python/{tag}".replace("TRAP", str(trap))
            for text in (f"{section}: {tagged}", f"? {tagged}\n: 1", f"{section}: {{kind: {tagged}}}"):
                with pytest.raises(UserError, match=r"hostile\.yaml"):
                    plan_from_yaml(text, "hostile.yaml")
                promise.count(not trap.exists(), text)


@pytest.mark.promise(18, control="a reader that makes objects")
def test_control_a_trusting_reader_runs_the_tag(promise: Promise, tmp_path: Path) -> None:
    """Read a tag with PyYAML's unsafe loader."""
    yaml.unsafe_load(f"seed: !!python/object/apply:os.mkdir [{tmp_path / 'made'}]")
    promise.count(not (tmp_path / "made").exists(), "object/apply")


@pytest.mark.promise(18)
@pytest.mark.parametrize("name", sorted(TECHNIQUES))
def test_no_option_of_a_technique_runs_what_it_names(promise: Promise, name: str, tmp_path: Path) -> None:
    """Give each option of each technique a call, a class name or a shell command."""
    trap = tmp_path / "made"
    cases = [(key, attack) for key in TECHNIQUES[name].options.model_fields for attack in attacks(trap)]
    for key, attack in promise.choose(cases, short=4):
        with suppress(UserError):
            apply_techniques(tiny_plan(), [f"{name}:{key}={json.dumps(attack)}"])
        promise.count(not trap.exists(), f"{name}:{key}={attack}")
