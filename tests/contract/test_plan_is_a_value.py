"""A Plan is a value: it is built, validated, hashed and compared without opening a file."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.offline import NAMES, OFFLINE, baseline_for
from tests.tiny import tiny_plan
from tests.tiny_vae import write_tiny_vae
from tintype.errors import UserError
from tintype.plan import Plan, diff, plan_from_document
from tintype.recipes import packaged
from tintype.settings import chosen
from tintype.techniques.apply import Application, apply_techniques, check_arm
from tintype.tokenizers.part import Compression
from tintype.tokenizers.small_vae import SmallVaeSettings


@contextmanager
def no_file_is_opened() -> Iterator[None]:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError(f"a file was asked for: {args}")

    with pytest.MonkeyPatch.context() as patch:
        for module, names in (
            (os, ("stat", "lstat", "open", "scandir", "listdir")),
            (io, ("open",)),
            (builtins, ("open",)),
        ):
            for name in names:
                patch.setattr(module, name, refuse)
        yield


def test_control_a_file_that_is_asked_for_is_noticed(tmp_path: Path) -> None:
    folder = str(write_tiny_vae(tmp_path / "vae"))
    for ask in (Path(folder).exists, SmallVaeSettings(folder=folder).resolved, (tmp_path / "x").open):
        with no_file_is_opened(), pytest.raises(AssertionError, match="was asked for"):
            ask()


@pytest.mark.parametrize("name", packaged.names("plans"))
def test_the_plan_of_a_recipe_opens_no_file(name: str) -> None:
    document = packaged.find("plans", name)
    with no_file_is_opened():
        assert plan_from_document(document).hash


@pytest.mark.parametrize("name", NAMES)
def test_a_technique_opens_no_file(name: str) -> None:
    spec = "sft:from=runs/base" if name == "sft" else OFFLINE.get(name, name)
    baseline, application = baseline_for(name), Application.parse(spec)
    with no_file_is_opened():
        plan = apply_techniques(baseline, [application])
        assert diff(baseline, plan) and plan.hash != baseline.hash
        assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_a_plan_says_the_shape_of_its_small_vae(tmp_path: Path) -> None:
    folder = write_tiny_vae(tmp_path / "vae")
    plan = tiny_plan("model.patch=1", f"tokenizer={{kind: small-vae, folder: {folder}}}")
    found = plan.tokenizer.compression
    assert isinstance(plan.tokenizer, SmallVaeSettings)
    given = plan.tokenizer.model_copy(update={"channels": 7})
    with pytest.raises(UserError, match=r"tokenizer\.channels.* 7 .*leave both settings out"):
        given.open()
    assert chosen(given) == chosen(plan.tokenizer), "the weights say it, so runs keep their names"
    gone = SmallVaeSettings(folder=str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="channels and stride_px"):
        _ = gone.compression
    assert gone.resolved({gone.folder: found}).compression == found == Compression(found.channels, found.stride_px)


def test_the_shifts_of_training_and_of_sampling_are_two_decisions() -> None:
    plan = tiny_plan()
    for key in ("time.shift", "sampling.shift"):
        one = tiny_plan(f"{key}=3.0")
        assert list(diff(plan, one)) == [key] and one.hash != plan.hash
        with pytest.raises(UserError, match="also changes"):
            check_arm("it", plan, one, {"objective"})
    assert "sampling.shift to 3" in " ".join(tiny_plan("time.shift=3.0").warnings)
    assert not tiny_plan("time.shift=3.0", "sampling.shift=3.0").warnings
