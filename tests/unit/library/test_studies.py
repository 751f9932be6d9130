"""Studies from Python: made of values, stopped and resumed, and honest about collapsed runs."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tintype
from tests.studies import studies_in_process
from tests.tiny import tiny_plan
from tintype.study.runner import Message

EVALUATION = {"count": 8, "reference_count": 16, "validation_count": 4, "also": [], "sampler": {"steps": 1}}


def untyped(value: object) -> Any:
    """Return a value of a wrong type."""
    return value


def study_of(arms: dict[str, str | list[str]], **settings: Any) -> tintype.Study:
    return tintype.make_study("Does it matter?", tiny_plan(), arms, seeds=[0], evaluation=EVALUATION, **settings)


def test_a_study_is_made_of_values() -> None:
    study = study_of({"fast": "muon", "both": ["optimizer.lr=1e-4", "ema:decay=0.9"]}, control_seeds=[7])
    assert [arm.name for arm in study.arms] == ["baseline", "control", "fast", "both"]
    assert study.arms[2].plans[0].optimizer.kind == "muon"
    assert study.arms[3].plans[0].optimizer.lr == 1e-4 and study.arms[3].plans[0].ema is not None
    assert study.baselines[""].hash == tiny_plan().hash
    assert repr(study) == "<Study study: Does it matter? Arms: baseline, control, fast, both. Runs: 4>"
    planned = tintype.make_study(
        "q", "pocket", {"fast": "muon"}, {"first": 2, "most": 4}, evaluation="prx", primary=["fd_inception"]
    )
    assert len(planned.arms[0].plans) == 4 and planned.settings.evaluation.count > 8


def test_a_packaged_study_is_loaded_with_overrides_and_some_arms() -> None:
    study = tintype.load_study("pocket", "seeds=[4]", "control_seeds=[]", arms=["x-prediction"])
    assert [(arm.name, [plan.seed for plan in arm.plans]) for arm in study.arms] == [
        ("baseline", [4]),
        ("x-prediction", [4]),
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: study_of({"a": "mon"}), "^the study: arm 'a': unknown technique 'mon'; did you mean 'muon'"),
        (lambda: study_of({"a": "train.batch=4"}), "arm 'a': it changes nothing"),
        (
            lambda: study_of({"a": "muon"}, evalution={}),
            "^the study: evalution: unknown key; did you mean 'evaluation'",
        ),
        (lambda: study_of({"a": "muon"}, set=["train.steps=3"]), "^set: make_study gets its baseline as a plan"),
        (
            lambda: study_of(untyped(["muon"])),
            r"^make_study: the arms \['muon'\] have no names; give a mapping from names to arms, such as ",
        ),
        (
            lambda: study_of({"a": untyped([1])}),
            "^make_study: arm 'a': 1 has the type int, but only texts are allowed; write each text like \"muon\"",
        ),
        (
            lambda: tintype.make_study("Q?", tiny_plan(), {"a": "muon"}, untyped(2)),
            "^make_study: 2 is not a list of seeds; give seeds as ",
        ),
        (
            lambda: tintype.load_plan("pocket", untyped({"train.steps": 5})),
            "^load_plan: .* has the type dict, but only texts are allowed; ",
        ),
        (
            lambda: tintype.apply("pocket", untyped(["muon"])),
            "^apply: .* has the type list, but only texts are allowed; ",
        ),
        (lambda: tintype.load_study("poket"), "poket.*did you mean 'pocket'"),
        (lambda: tintype.load_study("pocket", "sedes=[0]"), '^"sedes=.0.": sedes: unknown key; did you mean .seeds'),
        (
            lambda: tintype.load_results("nothing"),
            "^nothing does not exist; give the folder of a study that has a report",
        ),
    ],
)
def test_mistakes_are_named_in_the_words_of_python(call: Callable[[], object], words: str) -> None:
    with pytest.raises(tintype.UserError, match=words) as found:
        call()
    assert "--" not in str(found.value)


def test_a_stopped_study_resumes_and_counts_the_runs_that_diverged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    study, messages = study_of({"wild": "optimizer.lr=1e9"}), list[Message]()

    def stop(message: Message) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    with studies_in_process():
        with pytest.raises(KeyboardInterrupt):
            tintype.run_study(study, tmp_path / "study", on_progress=stop)
        results = tintype.run_study(study, tmp_path / "study", on_progress=messages.append)
    assert {(message.key[0], message.state) for message in messages} >= {("baseline", "done"), ("wild", "diverged")}
    (failed,) = results.failed
    assert failed["arm"] == "wild" and failed["error"]
    assert {row["words"] for row in results.rows(primary=True)} == {"diverged 1 of 1"}
    assert results.content.sketch and "diverged 1 of 1" in str(results)
    with pytest.raises(tintype.UserError, match=r"another baseline; choose another `out`"):
        tintype.run_study(tintype.make_study("q", tiny_plan("train.steps=3"), {"a": "muon"}, [0]), tmp_path / "study")
    assert tintype.load_run(tmp_path / "study", "baseline").arm == "baseline"
    assert tintype.compare(*(run["path"] for run in results.runs())).changes[1] == {"optimizer.lr": (1e-3, 1e9)}
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]
