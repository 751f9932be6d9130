"""Exact runs on a GPU: the flags, why a run is not exact, and torch's word for an operation without an exact form."""

from __future__ import annotations

import os

import pytest
import torch
import torch._inductor.config as inductor

from tests.tiny import tiny_plan
from tintype.plan import diff
from tintype.runtime.determinism import allow_inexact, deterministic, inexact_operation, why_inexact

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def flags() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    mode = torch.get_deterministic_debug_mode()
    filled, compiled = torch._C._get_deterministic_fill_uninitialized_memory(), getattr(inductor, "deterministic", None)
    return mode, filled, cudnn.deterministic, cudnn.benchmark, compiled


@pytest.fixture(autouse=True)
def own_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "unset at the end")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_the_strict_mode_holds_on_a_gpu_and_ends() -> None:
    """Torch warns and goes on in its mode 1, in which attention is not exact; it raises in 2."""
    before = flags()
    with deterministic(GPU, []):
        assert flags()[:4] == (2, False, True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert flags() == before and "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_a_mode_and_a_workspace_that_were_there_before_are_there_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = flags()
        with deterministic(GPU, []):
            assert flags()[0] == 2
        assert flags() == before and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("device", "inexact"), [(CPU, []), (GPU, ["run.deterministic is false"])])
def test_nothing_changes_on_the_cpu_nor_where_a_run_cannot_be_exact(device: torch.device, inexact: list[str]) -> None:
    before = flags()
    with deterministic(device, inexact):
        assert flags() == before and "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_runs_are_exact_unless_told_otherwise_and_it_is_no_part_of_their_meaning() -> None:
    usual, inexact = tiny_plan(), tiny_plan("run.deterministic=false")
    assert usual.run.deterministic and not inexact.run.deterministic
    assert usual.hash == inexact.hash and not diff(usual, inexact)


def test_why_a_run_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_inexact(GPU, wanted=True, ranks=1) == [] == why_inexact(CPU, wanted=False, ranks=4)
    assert why_inexact(GPU, wanted=False, ranks=1) == ["run.deterministic is false"]
    assert "4 ranks" in why_inexact(GPU, wanted=True, ranks=4)[0]
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    assert "CUBLAS_WORKSPACE_CONFIG is :0:0" in why_inexact(GPU, wanted=True, ranks=1)[0]


def inexact() -> None:
    """Call an operation that has no exact form on the CPU either."""
    torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_torchs_refusal_names_the_operation_and_can_be_lifted() -> None:
    with deterministic(GPU, []):
        with pytest.raises(RuntimeError) as refused:
            inexact()
        assert inexact_operation(refused.value) == "put_"
        assert inexact_operation(RuntimeError("out of memory")) is None
        allow_inexact()
        with pytest.warns(UserWarning, match="put_ does not have"):
            inexact()
    inexact()


def test_products_that_torch_refuses_for_good_are_named_too() -> None:
    """Torch reads the variable at the first product of a process: one that came before makes all later ones inexact."""
    refusal = RuntimeError(
        "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
        "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses "
        "CuBLAS and you have CUDA >= 10.2."
    )
    with deterministic(GPU, []):
        assert "CUBLAS_WORKSPACE_CONFIG" in str(inexact_operation(refusal))
        allow_inexact()
        assert inexact_operation(refusal) is None
