from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from tests.fault.promises import Promise
from tests.plan_fields import fields
from tests.tiny import GOLDEN_PLAN, tiny_plan
from tintype.cli.shared import plan_of
from tintype.config.strict import assignments_in, marks_of, read_yaml, settings_in, write_yaml
from tintype.data.mixture.settings import MixedSource
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.plan import (
    Change,
    Plan,
    diff,
    plan_from_document,
    plan_from_yaml,
    read_plan,
    settings_by_key,
    short_diff,
    unhashed_diff,
)
from tintype.recipes import packaged
from tintype.settings import Settings, chosen, plain
from tintype.study.settings import ArmSettings, StudySettings
from tintype.study.study import load_study, resolve
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import Application, apply_techniques, check_arm
from tintype.wording import option, rendered


def test_a_copy_with_other_settings_has_a_hash_of_its_own() -> None:
    """The hash is computed once for each plan."""
    plan = tiny_plan()
    known = plan.hash
    assert plan.model_copy(update={"seed": 5}).hash != known == plan.model_copy().hash
    assert plan == plan.model_copy() and "hash" not in str(dict(plan))


@pytest.mark.parametrize("name", packaged.names("plans"))
def test_every_recipe_resolves_and_round_trips(name: str) -> None:
    plan = plan_from_document(packaged.find("plans", name))
    assert plan_from_yaml(plan.to_yaml(), name) == plan
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_the_hash_is_stable_and_leaves_out_housekeeping() -> None:
    plan = tiny_plan()
    assert plan.hash == "6ab885a7c3c78c49"
    assert tiny_plan("run.save_every_steps=7", "run.device=auto").hash == plan.hash
    assert plan_from_yaml(plan.to_yaml(), "again").hash == plan.hash
    assert tiny_plan("model.resolution_embeds=true").hash != plan.hash


def test_the_hash_has_the_chosen_settings_alone_and_the_kinds_of_parts() -> None:
    """A setting that is added later keeps the hashes of all plans that do not use it."""
    plan = read_plan("mini", ["optimizer.kind=muon", "model.registers=0"])
    found = chosen(plan)
    assert found["optimizer"] == {"kind": "muon"}
    assert "registers" not in found.get("model", {}) and chosen(Plan()) == {}
    assert read_plan("mini", ["optimizer.kind=muon"]).hash != read_plan("mini").hash


DEFAULTS = Path(__file__).parents[1] / "golden" / "defaults.json"


@pytest.mark.parametrize("model", [Plan, Protocol], ids=lambda model: str(model.__name__))
def test_defaults_are_as_recorded(model: type[Settings], request: pytest.FixtureRequest) -> None:
    """A hash leaves out settings at their defaults, so plans with an old and a new default would have one hash.

    `pytest -n 0 tests/unit/test_plan.py --record` records the defaults of new settings.
    """
    every: dict[str, set[str]] = {}
    for path, _, owner in fields(model):
        if path[0] != "run" and not owner.model_fields[str(path[-1])].is_required():
            every.setdefault(f"{model.__name__}: {owner.__name__}.{path[-1]}", set()).add(
                plain_default(owner, str(path[-1]))
            )
    found = {name: [json.loads(one) for one in sorted(values)] for name, values in every.items()}
    recorded = json.loads(DEFAULTS.read_text()) if DEFAULTS.exists() else {}
    if request.config.getoption("--record"):
        lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted({**found, **recorded}.items()))
        DEFAULTS.write_text("{" + ",\n".join(lines) + "}\n")
        return
    changed = {name: (recorded.get(name), value) for name, value in found.items() if recorded.get(name) != value}
    assert not changed, "a setting keeps its default; a new one is recorded"


def plain_default(owner: type[Settings], name: str) -> str:
    return TypeAdapter(Any).dump_json(owner.model_fields[name].get_default(call_default_factory=True)).decode()


def test_the_plan_of_the_golden_losses_keeps_its_hash() -> None:
    assert read_plan(str(GOLDEN_PLAN)).hash == "c589df9cf91afeb2"


def test_data_of_another_kind_takes_the_place_of_scenes() -> None:
    expected = {"kind": "store", "size_px": 16, "path": "DIR", "limit": None, "sha256": None}
    expected |= {"where": None, "skip": None, "skip_sha256": None, "buckets": [], "fit": "crop"}
    expected |= {"evaluate_path": None, "evaluate_sha256": None}
    for assignments in (["data.kind=store", "data.path=DIR"], ["data.path=DIR", "data.kind=store"]):
        assert plain(tiny_plan(*assignments).data) == expected, "what both kinds have stays, the rest goes"
    assert plain(tiny_plan("data={kind: store, path: DIR}").data) == {**expected, "size_px": 64}
    assert tiny_plan("data.kind=scenes") == tiny_plan()
    with pytest.raises(UserError, match=r"data\.path: this key is required"):
        tiny_plan("data.kind=store")
    with pytest.raises(UserError, match=r"data\.count: kind store has no such key; kind scenes has it"):
        tiny_plan("data.kind=store", "data.path=DIR", "data.count=3")
    with pytest.raises(UserError, match="unknown kind 'stor'; did you mean 'store'"):
        tiny_plan("data.kind=stor")


def test_any_section_takes_another_kind_and_drops_what_that_one_lacks() -> None:
    plan = tiny_plan("optimizer.kind=muon", "captions.kind=mix", "captions.weights={long: 1, short: 1}")
    assert (plan.optimizer.kind, plan.captions.kind) == ("muon", "mix")
    assert plan.optimizer.lr == tiny_plan().optimizer.lr, "what both kinds have stays"


def test_a_pinned_store_names_a_run_wherever_it_lies() -> None:
    def hash_of(*assignments: str) -> str:
        return tiny_plan("data.kind=store", *assignments).hash

    assert hash_of("data.path=A") != hash_of("data.path=B")
    pin = "data.sha256=0123456789abcdef"
    assert hash_of("data.path=A", pin) == hash_of("data.path=B", pin) != hash_of("data.path=A")
    assert hash_of("data.path=A", pin) != hash_of("data.path=A", "data.sha256=1123456789abcdef")
    assert hash_of("data.path=A", pin) != hash_of("data.path=A", pin, "data.limit=3")


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    return [path]


@pytest.mark.parametrize(
    "assignment",
    [
        *("seed=1", "data.count=25", "captions.dropout=0.2", "model.compile=true", "train.steps=7", "time.shift=2.0"),
        *("captions.keep_parts=0.5", "captions.max_words=9", "captions.max_tokens=9"),
    ],
)
def test_what_changes_the_run_changes_the_hash(assignment: str) -> None:
    assert tiny_plan(assignment).hash != tiny_plan().hash


@pytest.mark.parametrize("path", [leaf for leaf in leaves(tiny_plan().model_dump(mode="json")) if leaf[-1] != "kind"])
def test_a_misspelt_key_is_refused_with_the_nearest_name(path: tuple[str, ...]) -> None:
    dotted = ".".join((*path[:-1], path[-1] + "x"))
    with pytest.raises(UserError) as refused:
        tiny_plan(f"{dotted}=1")
    assert f"--set {dotted}=1: {dotted}: unknown key" in str(refused.value)
    assert f"did you mean '{path[-1]}'" in str(refused.value)


def test_a_key_of_another_kind_is_named_with_it() -> None:
    wanted = "data.buckets: kind scenes has no such key; kind store has it"
    with pytest.raises(UserError, match=wanted):
        read_plan("mini", ["data.buckets=[[64,64]]"])


def test_errors_name_the_file_the_line_and_the_key() -> None:
    text = "seed: 1\noptimizer:\n  kind: adamw\n  lrr: 0.1\ntrain:\n  steps: many\n"
    with pytest.raises(UserError) as refused:
        plan_from_yaml(text, "my.yaml")
    lines = str(refused.value).splitlines()
    assert "my.yaml, line 4: optimizer.lrr: unknown key; did you mean 'lr'?" in lines
    assert any(line.startswith("my.yaml, line 6: train.steps: ") and "'many'" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nseed: 2", "line 2: the key 'seed' is given twice"),
        ("a: &x 1\nb: *x", "YAML aliases .* are not supported"),
        ("seed: !!python/object/apply:os.system ['true']", "the YAML tag"),
        ("[1, 2]", "expected keys and values"),
        ("seed: [", "not valid YAML"),
        ("train:\n\tsteps: 5", "line 2, column 1: a tab; YAML takes spaces only, so put spaces there$"),
        ("train:\n  steps:\t5", "line 2, column 9: a tab; "),
        ("seed：1", "line 1: the colon after 'seed' is full-width (："),
        ("seed： 1\ntrain: {}", "line 1: the colon after 'seed' is full-width (："),
        ("seed: 1\ntrain:\n  steps： 5", "line 3: the colon after 'steps' is full-width (："),
        ("train: {steps：5}", "line 1: the colon after 'steps' is full-width (："),
        ("objective: {kind: x-predicton}", "unknown kind 'x-predicton'; did you mean 'x-prediction'"),
        ("route: {share: 0.1}", "route: say which kind; valid: sprint, tread"),
        ("seed: true", "seed: must be a whole number (found true"),
        ("seed: '3'", "seed: must be a whole number (found '3'); write it without quotes"),
        ("train: {steps: 1e3}", "train.steps: must be a whole number (found 1000.0); write 1000"),
        ("train: 4", "train: must be keys and values, as {key: value} (found 4"),
        ("model: {compile: 1}", "model.compile: must be true or false (found 1"),
        ("losses: repa", "losses: must be a list, as "),
        ("train: {batch: 10, accumulate: 3}", "multiple of accumulate"),
        ("model: {width: 100, heads: 3}", "multiple of heads"),
        ("losses: [{kind: repa-ish}]", "unknown kind 'repa-ish'; did you mean 'repa'"),
        ("seed: 1\nlosses: [{kind: contrastive}, {kind: contrastive}]", "line 2: losses: 'contrastive' is given twice"),
        ("model:\n  patch: 8\ndata:\n  count: 9\n  size_px: 36", "line 5: data.size_px (36"),
        ("losses: [{kind: contrastive, schedule: {kind: until, start: 9, end: 4}}]", "after it starts"),
        ("train: {steps: 5}\nlosses: [{kind: contrastive, schedule: {kind: ramp, start: 5, end: 9}}]", "has 5 steps"),
        ("a: " + "[" * 5000, "bad.yaml, line 1: the values are nested more than 40 levels deep"),
        ("a: " + "{b: " * 60 + "1" + "}" * 60, "nested more than"),
    ],
)
def test_bad_plans_are_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace(")", r"\)")):
        plan_from_yaml(text, "bad.yaml")


@pytest.mark.parametrize(
    ("assignments", "cause"),
    [
        (["optimizer.lr=fast"], "--set optimizer.lr=fast: optimizer.lr: "),
        (["model.heads=5"], "--set model.heads=5: model: width "),
        (["model={depth: x}"], '--set "model={depth: x}": model.depth: '),
        (["train.steps=7", "data.size_px=18"], "--set data.size_px=18: data.size_px (18) must be a multiple of 4"),
        (
            ["model.patch=5", "train.steps=7", "data.size_px=18"],
            "--set model.patch=5, --set data.size_px=18: data.size",
        ),
        (["data.kind=store", "train.steps=7"], "--set data.kind=store: data.path: this key is required"),
        (["data.kind=store", "data.path=DIR", "train.steps=x"], "--set train.steps=x: train.steps: "),
        (["optimizer={lr: 1, lr2: 2}"], '--set "optimizer={lr: 1, lr2: 2}": optimizer.lr2: unknown key'),
    ],
)
def test_errors_after_an_override_name_it_and_no_line_of_the_recipe(assignments: list[str], cause: str) -> None:
    with pytest.raises(UserError) as refused:
        plan_from_document(packaged.find("plans", "pocket"), assignments)
    assert str(refused.value).startswith(cause), refused.value


def test_a_mistake_of_the_file_is_not_blamed_on_an_override() -> None:
    with pytest.raises(UserError) as refused:
        plan_from_yaml("seed: 1\nmodel: {width: 100, heads: 3}\n", "my.yaml", ["model.depth=4", "train.steps=8"])
    assert str(refused.value).startswith("my.yaml, line 2: model: width (100)")


@pytest.mark.parametrize("assignment", ["optimizer.lr", "=3", "optimizer..lr=3", "seed.deeper=3"])
def test_bad_overrides_are_refused(assignment: str) -> None:
    with pytest.raises(UserError, match="--set"):
        tiny_plan(assignment)


def test_numbers_and_words_are_read_as_people_mean_them() -> None:
    data = read_yaml("{a: 2e-4, b: 1e5, c: no, d: on, e: 007, f: true, g: ~, h: -1.5, i: '1e5', j: .5}", "x").data
    assert data == {
        "a": 2e-4, "b": 1e5, "c": "no", "d": "on", "e": 7, "f": True, "g": None, "h": -1.5, "i": "1e5", "j": 0.5,
    }  # fmt: skip
    assert read_yaml(write_yaml(data), "again").data == data


def test_a_full_width_colon_in_text_is_text() -> None:
    assert read_yaml("question: PRX：which?\n", "x").data == {"question": "PRX：which?"}


def test_a_warm_up_longer_than_the_training_is_warned_of() -> None:
    (warning,) = tiny_plan("train.warmup_steps=8").warnings
    assert "warmup_steps is 8" in warning and "never exceeds 75% of optimizer.lr" in warning
    assert tiny_plan("train.warmup_steps=6").warnings == []


def test_diff_shows_resolved_settings_only_where_they_differ() -> None:
    changed = apply_techniques(tiny_plan("seed=5"), ["x-prediction:clamp=0.1", "ema"])
    assert diff(tiny_plan(), changed) == {
        "objective.kind": ("velocity", "x-prediction"),
        "objective.clamp": (None, 0.1),
        "ema": ("off", "on"),
        "ema.decay": (None, 0.999),
        "ema.ramp": (None, True),
        "ema.every": (None, 1),
    }


@pytest.mark.parametrize(
    ("spec", "decisions"),
    [
        ("repa:teacher=scenes,hidden=32", {"losses": ("none", "repa (block=2, teacher=scenes, hidden=32)")}),
        ("ema", {"ema": ("off", "on")}),
        ("ema:decay=0.999", {"ema": ("off", "on (decay=0.999)")}),
        ("x-prediction", {"objective": ("velocity", "x-prediction")}),
        ("min-snr:gamma=5", {"weighting": ("off", "min-snr (gamma=5.0)")}),
        ("short-captions", {"captions.column": ("long", "short")}),
        (
            "muon:lr=1e-3",
            {"optimizer": ("adamw (lr=0.001, eps=1e-08)", "muon (lr=0.001, adamw.lr=0.001, adamw.eps=1e-08)")},
        ),
        (
            "mixture:add.other.data.seed=9",
            {
                "data": (
                    "scenes (count 24, max_objects 2)",
                    "mixture, scored on own: "
                    "own: share 1 of scenes (count 24, max_objects 2); "
                    "other: share 1 of scenes (count 24, max_objects 2, seed 9)",
                )
            },
        ),
    ],
)
def test_the_short_diff_shows_what_a_technique_decides(spec: str, decisions: dict[str, Change]) -> None:
    before, after = tiny_plan(), tiny_plan(techniques=[spec])
    assert short_diff(before, after, Application.parse(spec).given) == decisions
    assert len(diff(before, after)) >= len(decisions), "plans are compared by all of it"


def test_the_short_diff_names_parts_that_stay_by_their_kind() -> None:
    before = tiny_plan(techniques=["contrastive:weight=0.1"])
    changed = apply_techniques(before, ["repa:teacher=scenes,hidden=32"])
    assert short_diff(before, changed) == {
        "losses": ("contrastive", "contrastive, repa (block=2, teacher=scenes, hidden=32)")
    }
    other = tiny_plan(techniques=["contrastive:weight=0.2"])
    assert short_diff(before, other) == diff(before, other) == {"losses.0.weight": (0.1, 0.2)}


def test_the_short_diff_has_the_size_of_the_images_beside_another_kind_of_data() -> None:
    after = tiny_plan("data.kind=store", "data.path=images", "data.size_px=32")
    assert short_diff(tiny_plan(), after)["data.size_px"] == (16, 32)
    assert short_diff(tiny_plan(), after)["data"][1] == "store (path images)"


def _another(field: FieldInfo, value: object) -> Any:
    """Another value of a setting, of the same type where that can be told; None where it is a list or a mapping."""
    literals = [one for one in marks_of(field) if get_origin(one) is Literal]
    if others := [option for one in literals for option in get_args(one) if option != value]:
        return others[0]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    return f"{value or ''}other" if isinstance(value, str | None) else None


def _changed_parts(part: Settings) -> Iterator[tuple[Any, Settings]]:
    """Each setting of a part changed alone, also within its sections: the new value, and the part with it."""
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Settings):
            yield from ((new, part.model_copy(update={name: inner})) for new, inner in _changed_parts(value))
        elif name != "kind" and (new := _another(field, value)) is not None:
            yield new, part.model_copy(update={name: new})


def _kinds() -> Iterator[tuple[str, type[Settings]]]:
    """The kinds of parts that the tiny plan does not have, with their sections."""
    for section, field in Plan.model_fields.items():
        for part in settings_in(field):
            if "kind" in part.model_fields and type(getattr(tiny_plan(), section)) is not part:
                yield section, part


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    ("section", "kind"), list(_kinds()), ids=lambda one: one if isinstance(one, str) else one.__name__
)
def test_no_setting_that_changes_with_a_kind_is_absent_from_a_diff(section: str, kind: type[Settings]) -> None:
    """The values are not validated: a diff names what differs, whatever fits together."""
    before, usual = tiny_plan(), {"sources": {"own": MixedSource()}, "evaluate": "own"}
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    given: dict[str, Any] = {name: usual.get(name, "given") for name in required}
    part = kind.model_construct(**given)
    changed = list(_changed_parts(part))
    assert changed or len(kind.model_fields) == 1
    for new, one in changed:
        after = before.model_copy(update={section: (one,) if section == "losses" else one})
        for pair in ((before, after), (after, before)):
            shown = str(short_diff(*pair)).lower()
            assert str(new).lower() in shown, (new, shown)


def test_a_diff_of_the_seed_and_the_housekeeping_has_what_the_other_leaves_out() -> None:
    before, after = tiny_plan(), tiny_plan("seed=3", "run.threads=2", "model.kernels=plain", "train.steps=9")
    assert unhashed_diff(before, after) == {
        "seed": (0, 3), "model.kernels": ("auto", "plain"), "run.threads": (before.run.threads, 2),
    }  # fmt: skip
    every = {key for key, value in settings_by_key(after).items() if settings_by_key(before)[key] != value}
    assert every == {*diff(before, after), *unhashed_diff(before, after)}


@pytest.mark.parametrize("name", packaged.names("studies"))
def test_no_arm_of_a_packaged_study_needs_more_than_a_few_lines(name: str) -> None:
    for arm in load_study(name).arms:
        assert len(arm.decisions) <= 5 and bool(arm.decisions) == bool(arm.changes)
        assert not any(old is None and isinstance(new, dict) for old, new in arm.decisions.values())


def test_an_empty_arm_and_a_stray_change_are_refused() -> None:
    plan = tiny_plan()
    with pytest.raises(UserError, match="changes nothing"):
        check_arm("arm 'a'", plan, plan, {"objective"})
    with pytest.raises(UserError, match=r"declares objective but also changes time\.shift"):
        check_arm("arm 'a'", plan, tiny_plan("time.shift=2.0", techniques=["x-prediction"]), {"objective"})


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown technique 'x-prediktion'; did you mean 'x-prediction'"):
        apply_techniques(tiny_plan(), ["x-prediktion"])
    with pytest.raises(UserError, match="technique x-prediction:clampp=1: clampp: unknown key; did you mean 'clamp'"):
        apply_techniques(tiny_plan(), ["x-prediction:clampp=1"])
    with pytest.raises(UserError, match="unknown recipe 'poket'; did you mean 'pocket'"):
        packaged.find("plans", "poket")
    with pytest.raises(UserError, match=r"cannot read missing.yaml"):
        packaged.find("plans", "missing.yaml")
    with pytest.raises(UserError, match="'prx-rows' is a study, not a recipe; `tintype ablate prx-rows --out DIR`"):
        read_plan("prx-rows")
    with pytest.raises(UserError, match="'prx-256' is a recipe, not a study; `tintype train prx-256 --out DIR`"):
        packaged.find("studies", "prx-256")


def test_a_plan_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        tiny_plan().seed = 3  # type: ignore[misc]


def test_the_schema_describes_what_is_accepted() -> None:
    schema = Plan.model_json_schema()
    assert schema["additionalProperties"] is False
    kinds = json.dumps(schema)
    for technique in TECHNIQUES.values():
        assert technique.part is None or f'"{technique.part.model_fields["kind"].default}"' in kinds


def test_train_and_model_never_import_techniques() -> None:
    package = Path(packaged.__file__).parents[1]
    for room in ("train", "model", "flow", "data"):
        for file in (package / room).rglob("*.py"):
            assert "tintype.techniques" not in file.read_text(), file


@pytest.mark.parametrize(
    ("options", "assignments"),
    [
        ("", []),
        ("a=1,b=2", ["a=1", "b=2"]),
        ("a=[1,2],b=[[3,4],[5,6]],c=7", ["a=[1,2]", "b=[[3,4],[5,6]]", "c=7"]),
        ("where=contains(long, 'a, (b') and min(width,height) > 2,c=7",
         ["where=contains(long, 'a, (b') and min(width,height) > 2", "c=7"]),
        ("a={b: 1, c: 2},path=bob's,d=)e,f=1", ["a={b: 1, c: 2}", "path=bob's", "d=)e", "f=1"]),
    ],
)  # fmt: skip
def test_a_comma_within_a_value_parts_no_options(options: str, assignments: list[str]) -> None:
    assert assignments_in(options) == assignments


OVERWRITTEN = [
    ("ema.decay=0.5", "ema", r"ema\.decay=0\.5: the technique 'ema' overwrites ema\.decay \(0\.5 → 0\.999\); leave"),
    ("time={kind: logit-normal}", "uniform-time", r"'uniform-time' overwrites time\.kind \(logit-normal → uniform\)"),
    ("precision.compute=bf16", "fp32", r"'fp32' overwrites precision\.compute \(bf16 → fp32\)"),
    ("model.resolution_embeds=false", "resolution-aware", "'resolution-aware' overwrites model.resolution_embeds"),
]


@pytest.mark.promise(21)
@pytest.mark.parametrize(("given", "technique", "words"), OVERWRITTEN)
def test_a_setting_that_a_technique_overwrites_is_refused_with_both_names(
    given: str, technique: str, words: str
) -> None:
    """Set a key, by the command line and by an arm of a study, and apply a technique that sets it otherwise."""
    with pytest.raises(UserError, match=words) as refused:
        plan_of("pocket", [given], [technique])
    assert str(refused.value).startswith(f"{rendered(option('set', given))}: ")
    arm = ArmSettings(techniques=(technique,), set=(given,))
    settings = StudySettings(question="q", recipe="pocket", seeds=(0,), arms=(arm,))
    with pytest.raises(UserError, match=f"arm .*{words}"):
        resolve("s", settings)


@pytest.mark.parametrize(
    ("given", "technique"),
    [
        ("optimizer.lr=2e-3", "muon"),
        ("optimizer.kind=adamw", "muon"),  # it trains what muon does not
        ("losses=[]", "contrastive"),
        ("data={kind: scenes, size_px: 16, count: 24}", "caption-mix"),
        ("time.kind=uniform", "ema"),
    ],
)
def test_a_setting_that_a_technique_keeps_or_moves_is_accepted(given: str, technique: str) -> None:
    assert apply_techniques(tiny_plan(given), [technique], [given]) != tiny_plan(given)


@pytest.mark.promise(21, control="what was set is not compared")
@pytest.mark.parametrize(("given", "technique", "words"), OVERWRITTEN)
def test_control_without_the_comparison_the_technique_wins_silently(
    promise: Promise, given: str, technique: str, words: str
) -> None:
    """Apply a technique to a plan that has the setting, without a word of who set it."""
    plan = read_plan("pocket", [given])
    promise.count(not diff(plan, apply_techniques(plan, [technique])), given)


def test_a_study_is_named_where_a_plan_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("question: Does it help?\nrecipe: pocket\nseeds: [0]\narms: []\n")
    with pytest.raises(UserError, match=r"study.yaml is a study, not a plan; `tintype ablate .*study.yaml --out DIR`"):
        read_plan(str(tmp_path / "study.yaml"))
