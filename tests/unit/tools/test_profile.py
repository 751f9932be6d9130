"""Where the time of a step goes, and what products take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny import tiny_plan
from tools.speed import products, profile


def test_kernels_are_summed_by_what_they_compute() -> None:
    own = {"_attend": 1.0, "_attend_back_keys": 2.0, "_attend_back_queries": 0.5, "_gelu_gate": 3.0, "_norm_back": 4.0}
    others = {"nvjet_sm90_tst_192x192": 10.0, "void at::native::reduce_kernel<_norm>": 0.25}
    found = profile.by_part({**own, **others})
    assert found["attention forward"] == 1.0 and found["attention backward"] == 2.5
    assert found["products"] == 10.0 and found["rest"] == 0.25
    assert found["all kernels"] == sum(own.values()) + sum(others.values())
    assert found["longest of the rest"] == {"void at::native::reduce_kernel<_norm>": 0.25}


@pytest.mark.slow
def test_a_step_is_profiled_on_any_device() -> None:
    found = profile.measure(tiny_plan())
    assert all(isinstance(found[key], float) and found[key] for key in ("wall", "all kernels"))


def test_the_large_model_takes_one_micro_batch_a_step() -> None:
    for name, work in profile.WORK.items():
        plan = work.plan()
        assert plan.train.accumulate == 1 and plan.train.batch == work.batch, name


def test_products_are_measured_in_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["products", str(tmp_path / "out.json"), "--tiny"])
    products.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["bf16, ms"] > 0 and found["weights' gradients, bf16, ms"] > 0
