from __future__ import annotations

from pathlib import Path

import pytest

from tintype.config.strict import read_yaml
from tintype.errors import UserError
from tintype.recipes import packaged
from tintype.study.preview import notes_before
from tintype.study.study import Study, choose_arms, load_study, read_settings, resolve

TEXT = """
question: why?
recipe: pocket
seeds: [0, 1]
control_seeds: [7, 8]
arms:
  - techniques: [x-prediction]
  - name: both
    techniques: [x-prediction:clamp=0.1, short-captions]
"""


def study(text: str = TEXT) -> Study:
    return resolve("test", read_settings(read_yaml(text, "study.yaml"), Path()))


def test_arms_are_resolved_with_paired_seeds() -> None:
    arms = study().arms
    assert [(arm.name, arm.role, [plan.seed for plan in arm.plans]) for arm in arms] == [
        ("baseline", "baseline", [0, 1]),
        ("control", "control", [7, 8]),
        ("x-prediction", "arm", [0, 1]),
        ("both", "arm", [0, 1]),
    ]
    assert set(arms[3].changes) == {"objective.kind", "objective.clamp", "captions.column"}
    assert len({plan.hash for arm in arms for plan in arm.plans}) == 8


@pytest.mark.parametrize("name", packaged.names("studies"))
def test_every_packaged_study_resolves(name: str) -> None:
    assert len(load_study(name).arms) > 1


@pytest.mark.parametrize("name", ["captions", "captions-mini"])
def test_the_study_of_captions_asks_for_both_kinds_of_prompts(name: str) -> None:
    study = load_study(name)
    kinds = [(plan.captions.kind, plan.captions.keep_parts) for plan in (arm.plans[0] for arm in study.arms)]
    assert kinds == [("column", 1.0), ("column", 1.0), ("mix", 1.0), ("curriculum", 1.0), ("column", 0.5)]
    assert study.settings.primary == ("scene_accuracy", "scene_accuracy_short")
    asked = {(sampling.prompts, sampling.count) for sampling in study.settings.evaluation.conditions}
    assert asked == {("long", study.settings.evaluation.count), ("short", study.settings.evaluation.count)}


@pytest.mark.parametrize(("also", "said"), [("[]", True), ("[{name: short, prompts: short}]", False)])
def test_arms_of_captions_that_are_asked_for_one_kind_of_prompt_are_noted_before_they_run(
    also: str, said: bool, tmp_path: Path
) -> None:
    text = f"{TEXT}primary: [scene_accuracy]\nevaluation: {{also: {also}}}\n"
    texts = " ".join(note.text for note in notes_before(study(text), tmp_path))
    assert ("Scored on long prompts only, though both reads other captions" in texts) == said


@pytest.mark.parametrize(
    ("name", "metrics", "said"), [("phases", "[fd]", True), ("phases", "", False), ("routing", "[fd]", False)]
)
def test_a_study_with_a_fine_tune_says_before_it_runs_where_copies_are_not_measured(
    name: str, metrics: str, said: bool, tmp_path: Path
) -> None:
    found = load_study(name, [f"evaluation.metrics={metrics}"] if metrics else [])
    texts = " ".join(note.text for note in notes_before(found, tmp_path))
    note = "Copies of training images are not measured, though sft may memorise a small set of images"
    assert (note in texts) == said


def test_every_packaged_study_with_a_fine_tune_looks_for_copies() -> None:
    studies = [load_study(name) for name in packaged.names("studies")]
    tuned = [one for one in studies if any(arm.plans[0].start is not None for arm in one.arms)]
    assert len(tuned) >= 5 and all(one.settings.evaluation.reads_training_images for one in tuned)


@pytest.mark.parametrize(
    ("name", "rates"), [("optimizers-mini", [3e-4, 1e-3, 3e-3]), ("optimizers", [3e-3, 8e-3, 2e-2])]
)
def test_the_study_of_optimizers_has_both_at_three_rates_and_each_rounding(name: str, rates: list[float]) -> None:
    plans = [arm.plans[0] for arm in load_study(name).arms]
    adamw = plans[0].optimizer.model_dump()
    fp32 = [plan.optimizer.model_dump() for plan in plans if plan.precision.storage == "fp32"]
    assert sorted(one["lr"] for one in fp32 if one["kind"] == "adamw") == rates
    assert sorted(one["lr"] for one in fp32 if one["kind"] == "muon") == rates
    assert all(one["adamw"] == adamw for one in fp32 if one["kind"] == "muon")
    bf16 = [plan for plan in plans if plan.precision.storage == "bf16"]
    assert [plan.precision.rounding for plan in bf16] == ["nearest", "stochastic", "kahan"]
    assert {plan.precision.compute for plan in plans} == {"bf16"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("question: why?", "", "study.yaml: question: this key is required"),
        ("x-prediction]", "x-predicton]", "unknown technique 'x-predicton'; did you mean 'x-prediction'"),
        ("[7, 8]", "[1, 8]", "study.yaml, line 5: control_seeds: 1 is given twice"),
        ("[7, 8]", "[7]", "study.yaml, line 5: control_seeds must have as many seeds"),
        ("name: both", "name: x-prediction", "study.yaml, line 8: arms.1: two arms are called x-prediction"),
        ("name: both", "name: baseline", "two arms are called baseline"),
        ("recipe: pocket", "recipe: poket", "unknown recipe 'poket'; did you mean 'pocket'"),
        ("short-captions", "x-prediction", "'x-prediction' and 'x-prediction' both set"),
        ("seeds: [0, 1]\n", "seeds: [x]\n", "seeds.0: must be a whole number (found 'x')"),
        ("seeds: [0, 1]\n", "seeds: []\n", "seeds: must have 1 or more values (found [])"),
        ("seeds: [0, 1]\n", "seeds: [0, -1]\n", "seeds.1: must be at least 0"),
        (
            "name: both\n    techniques: [x-prediction:clamp=0.1, short-captions]",
            "name: twin\n    techniques: [x-prediction:clamp=0.05]",
            "the arms 'x-prediction' and 'twin' have the same plan",
        ),
        ("arms:", "evaluation: {cuont: 3}\narms:", "evaluation.cuont: unknown key; did you mean 'count'"),
        ("arms:", "primary: [scene_acuracy]\narms:", "unknown metric 'scene_acuracy'; did you mean 'scene_accuracy'"),
        ("arms:", "primary: [fd_scenes, fd_scenes]\narms:", "line 6: primary: fd_scenes is given twice; name each"),
        (
            "arms:",
            "tune:\n  data.count: [1, 2]\narms:",
            "study.yaml, line 7: tune: data.count: seed, data, run must be",
        ),
        ("arms:", "evaluation:\n  metrics: [fdd]\narms:", "study.yaml, line 7: evaluation: metrics: unknown metric"),
        (
            "arms:",
            "analysis:\n  margins: {kid: x}\narms:",
            "line 7: analysis: margins: kid: x is not a valid size of a difference; write a percentage of",
        ),
        ("arms:", "evaluation: {encoders: [dino]}\narms:", "unknown kind 'dino'; did you mean"),
        ("recipe: pocket", "recipe: pocket\nset: [objective.kind=x-prediction]", "changes nothing"),
        ("arms:", "analysis: {margn: 3%}\narms:", "analysis.margn: unknown key; did you mean 'margin'"),
        ("arms:", "analysis: {method: paired}\narms:", "analysis.method: unknown key"),
        ("arms:", "analysis: {test: student}\narms:", "analysis.test: unknown key"),
        ("arms:", "analysis: {interval: student}\narms:", "analysis.interval: unknown key"),
    ],
)
def test_bad_studies_are_refused_in_words(old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        study(TEXT.replace(old, new, 1))
    assert message in str(refused.value) and "\n" not in str(refused.value)


OVERRIDES = """
  - set: [optimizer.lr=1e-3]
  - name: slow muon
    set: [optimizer.lr=1e-3]
    techniques: [muon]
"""


def test_an_arm_may_override_settings_of_the_baseline_before_its_techniques() -> None:
    *_, lower, muon = study(TEXT + OVERRIDES.lstrip("\n")).arms
    assert (lower.name, lower.summary) == ("optimizer.lr=1e-3", "optimizer.lr=1e-3")
    assert lower.changes == {"optimizer.lr": (8e-3, 1e-3)}
    assert {key.split(".")[0] for key in muon.changes} == {"optimizer"} and muon.summary.startswith(
        "optimizer.lr=1e-3; "
    )
    assert muon.plans[0].optimizer.model_dump()["lr"] == muon.plans[0].optimizer.model_dump()["adamw"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("set: [optimizer.lr=8e-3]", "arm 'optimizer.lr=8e-3': it changes nothing"),
        ("set: [optimizer.rl=3e-3]", "optimizer.rl: unknown key"),
        ("set: [optimizer.lr]", "write it as key.path=value"),
        ("set: [seed=3, optimizer.lr=1e-3]", "seed=3: seed, data, run must be the same for all arms of a study"),
        ("set: [run.device=cpu]", "run.device=cpu: seed, data, run must be the same"),
        ("set: [data.size_px=32]", "data.size_px=32: seed, data, run must be the same"),
        ("name: idle", "an arm must have techniques, or overrides of the baseline (set)"),
    ],
)
def test_bad_overrides_of_an_arm_are_refused_in_words(new: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        study(f"{TEXT}  - {new}\n")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "arms:",
            "set: [train.steps=9, train.batch=soon]\narms:",
            "s.yaml, line 6: set train.batch=soon: train.batch: ",
        ),
        (
            "arms:",
            "set:\n  - train.steps=9\n  - model.heads=5\narms:",
            "s.yaml, line 8: set model.heads=5: model: width",
        ),
        (
            "  - name: both",
            "  - set: [time.shift=x]\n  - name: both",
            "line 8: arm 'time.shift=x': set time.shift=x: time.sh",
        ),
        ("clamp=0.1", "clampp=1", "s.yaml, line 8: arm 'both': technique x-prediction:clampp=1: clampp: unknown key"),
        ("clamp=0.1, short", "clamp=0.1, x-prediction, short", "s.yaml, line 8: arm 'both': 'x-prediction' and "),
        (
            "name: both",
            "name: both\n    set: [model.patch=5]",
            "line 8: arm 'both': set model.patch=5: data.size_px (16)",
        ),
    ],
)
def test_errors_name_the_line_of_the_study_and_the_arm(old: str, new: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(UserError) as refused:
        load_study(str(file))
    assert message in str(refused.value) and "--set" not in str(refused.value)


def test_errors_name_the_override_of_a_study(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'^--set "set=\[train.steps=soon\]": set train.steps=soon: train.steps: must '):
        load_study("pocket", ["set=[train.steps=soon]"])
    with pytest.raises(UserError, match=r"^--set evaluation.count=x: evaluation.count: must be a whole number"):
        load_study("pocket", ["evaluation.count=x"])


RESOLUTIONS = """
resolutions:
  - {name: fine, set: [model.patch=2, train.batch=8]}
  - {name: coarse, set: [model.patch=8]}
"""


def test_every_arm_exists_at_each_resolution_fewest_tokens_first() -> None:
    arms = study(TEXT + RESOLUTIONS).arms
    assert [(arm.label, arm.tokens) for arm in arms] == [
        ("baseline @ coarse", 4),
        ("control @ coarse", 4),
        ("x-prediction @ coarse", 4),
        ("both @ coarse", 4),
        ("baseline @ fine", 64),
        ("control @ fine", 64),
        ("x-prediction @ fine", 64),
        ("both @ fine", 64),
    ]
    assert {arm.name for arm in arms} == {"baseline", "control", "x-prediction", "both"}
    assert all((arm.plans[0].model.patch, arm.plans[0].train.batch) == (2, 8) for arm in arms[4:])
    assert len({plan.hash for arm in arms for plan in arm.plans}) == 16
    assert set(arms[7].changes) == {"objective.kind", "objective.clamp", "captions.column"}


def test_the_studys_own_overrides_come_before_those_of_a_resolution() -> None:
    text = (TEXT + RESOLUTIONS).replace("recipe: pocket", "recipe: pocket\nset: [train.batch=4, train.steps=9]")
    coarse, fine = study(text).baselines.values()
    assert (coarse.train.batch, fine.train.batch) == (4, 8) and {coarse.train.steps, fine.train.steps} == {9}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  - {name: coarse, set: [model.patch=8]}\n", "", "'fine' is the only resolution; add another"),
        ("name: coarse", "name: fine", "two resolutions are called fine"),
        ("name: coarse", "name: so coarse", "resolutions.1.name: must have small letters"),
        ("model.patch=8", "model.patch=2", "the resolutions 'fine' and 'coarse' both have 64 tokens"),
        ("model.patch=8", "data.size_px=32,model.patch=4", "both have 64 tokens; change data.size_px or model.patch"),
        ("model.patch=8", "model.patsh=8", "at resolution 'coarse': "),
        ("model.patch=8", "model.patsh=8", "model.patsh: unknown key; did you mean 'patch'"),
        (
            "model.patch=8",
            "model.patch=8, objective.kind=x-prediction",
            "at resolution 'coarse': technique 'x-prediction' changes nothing",
        ),
    ],
)
def test_bad_resolutions_are_refused_in_words(old: str, new: str, message: str) -> None:
    new = new.replace(",model", ", model")
    with pytest.raises(UserError) as refused:
        study(TEXT + RESOLUTIONS.replace(old, new, 1))
    assert message in str(refused.value)


def test_an_arm_is_chosen_at_all_resolutions() -> None:
    chosen = choose_arms(study(TEXT + RESOLUTIONS), ["both"])
    labels = ["baseline @ coarse", "both @ coarse", "baseline @ fine", "both @ fine"]
    assert [arm.label for arm in chosen.arms] == labels
    with pytest.raises(UserError, match="unknown arm 'bothh'; did you mean 'both'"):
        choose_arms(chosen, ["bothh"])


def test_arms_can_be_chosen_by_name() -> None:
    assert [arm.name for arm in choose_arms(study(), ["both"]).arms] == ["baseline", "both"]
    with pytest.raises(UserError, match="unknown arm 'bothh'; did you mean 'both'"):
        choose_arms(study(), ["bothh"])


def test_primary_metrics_are_those_that_the_data_can_have() -> None:
    text = "question: q\nrecipe: pocket\nseeds: [0, 1]\narms: [{techniques: [ema]}]\n"
    store = text + "set: ['data={kind: store, path: DIR, size_px: 16}']\n"
    encoders = "evaluation: {metrics: [kid, fd], encoders: [inception, vgg16]}\n"

    def primary(written: str) -> tuple[str, ...]:
        return resolve("s", read_settings(read_yaml(written, "s"), Path())).settings.primary

    assert primary(text) == ("scene_accuracy", "fd_scenes")
    assert primary(store + encoders) == ("kid_inception", "kid_vgg16")
    assert primary(store + encoders + "primary: [validation_loss]\n") == ("validation_loss",)
    with pytest.raises(UserError, match="'scene_accuracy' exists only for the embedded scenes"):
        primary(store + encoders + "primary: [scene_accuracy]\n")
    with pytest.raises(UserError, match="the resolutions have data of several kinds"):
        primary(text + "resolutions: [{name: a}, {name: b, set: ['data={kind: store, path: DIR}']}]\n")


def test_scores_along_training_are_at_shares_or_steps_of_each_arm() -> None:
    overrides = ["score_at=[0.25, 0.5, 1.0]", "set=[train.steps=10]", "arms=[{set: [train.steps=20]}]"]
    study = load_study("pocket", overrides)
    steps = {arm.name: found.steps for arm in study.arms if (found := study.along(arm.plans[0]))}
    assert steps == {"baseline": (2, 5), "control": (2, 5), "train.steps=20": (5, 10)}
    study = load_study("pocket", ["score_at=[1, 1.0, 7, 7]", "set=[train.steps=10]", "score_count=32"])
    found = study.along(study.arms[0].plans[0])
    assert found is not None and found.steps == (1, 7)
    assert (found.protocol.count, found.protocol.also) == (32, ())


def test_score_at_is_no_part_of_a_plan() -> None:
    hashes = [
        [plan.hash for arm in load_study("pocket", given).arms for plan in arm.plans]
        for given in ([], ["score_at=[0.5]"])
    ]
    assert hashes[0] == hashes[1]
    assert load_study("pocket").along(load_study("pocket").arms[0].plans[0]) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("score_at=[1.5]", "score_at: 1.5 is neither a share of training (above 0, at most 1.0) nor a step"),
        ("score_at=[0.0]", "score_at: 0.0 is neither"),
        ("score_at=[-3]", "score_at: -3 is neither"),
        ("score_at=[half]", "score_at"),
        ("score_at=[0.5, 900000]", "score_at: step 900,000 comes after the last step of arm 'baseline'"),
        ("score_count=64", "score_count sets the number of images for the scores at score_at, but score_at is empty"),
    ],
)
def test_score_at_that_means_nothing_is_refused(given: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        load_study("pocket", [given])
    assert message in str(refused.value)
