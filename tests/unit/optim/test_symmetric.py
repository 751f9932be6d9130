"""Symmetric products: torch's own against closed forms, which tensors the kernel is given, and the kernel on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.bounds import rounding_bound
from tintype.optim import symmetric
from tintype.optim.muon import COEFFICIENTS, orthogonalise
from tintype.optim.symmetric import bracket, gram, runs_on

ON_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
SHAPES = [(2, 1792, 1792), (3, 384, 1152), (2, 200, 328), (5, 8, 24), (2, 136, 4104), (1, 1096, 1104), (2, 33, 77)]

HALF_A_PLACE = 2.0**-8
"""The largest relative error of one rounding to bf16; that of the sum over a matrix is half of it or a little more."""


def matrices(shape: tuple[int, int, int], turned: bool = False, device: str = "cpu") -> Tensor:
    """Matrices of different sizes, whose singular values are not alike."""
    generator = torch.Generator().manual_seed(0)
    x_NRC = torch.randn(shape, generator=generator) * torch.logspace(-2, 1, shape[0])[:, None, None]
    x_NRC = x_NRC * torch.logspace(0, -1, shape[1])[:, None]
    x_NRC = x_NRC.to(device)
    return x_NRC.mT.contiguous().mT if turned else x_NRC


def exact_bracket(gram_NRR: Tensor, norm_N: Tensor | None) -> Tensor:
    """From the eigenvalues, so by no product of the matrix with itself."""
    a, b, c = COEFFICIENTS
    values_NR, vectors_NRR = torch.linalg.eigh(gram_NRR.double())
    n_N1 = torch.ones(len(gram_NRR), 1).to(values_NR) if norm_N is None else norm_N.double()[:, None]
    wanted_NR = (a + b * values_NR / n_N1**2 + c * values_NR**2 / n_N1**4) / n_N1
    found_NRR: Tensor = (vectors_NRR * wanted_NR[:, None]) @ vectors_NRR.mT
    return found_NRR


def norms(x_NRC: Tensor) -> Tensor:
    return x_NRC.float().square().sum((1, 2)).sqrt()


def error(found: Tensor, exact: Tensor) -> float:
    """Return the error of the worst matrix."""
    difference = torch.linalg.vector_norm(found.double() - exact, dim=(1, 2))
    return float((difference / torch.linalg.vector_norm(exact, dim=(1, 2))).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
def test_torchs_own_is_the_closed_form(dtype: torch.dtype, turned: bool) -> None:
    x_NRC = matrices((3, 10, 17), turned).to(dtype)
    exact_NRR = torch.einsum("nrc,nsc->nrs", x_NRC.double(), x_NRC.double())
    assert error(gram(x_NRC), exact_NRR) < rounding_bound(17, 1.0, dtype)
    largest = sum(map(abs, COEFFICIENTS))
    for norm_N in (None, norms(x_NRC)):
        found_NRR = bracket(exact_NRR.to(dtype), *COEFFICIENTS, norm_N)
        assert found_NRR.dtype == dtype
        assert error(found_NRR, exact_bracket(exact_NRR, norm_N)) < rounding_bound(3 * 10, largest)  # norms are float32


def test_with_norms_it_is_the_step_from_the_divided_matrix() -> None:
    x_NRC = matrices((3, 6, 9)).double()
    divided_NRC = x_NRC / norms(x_NRC).double()[:, None, None]
    found_NRC = bracket(gram(x_NRC), *COEFFICIENTS, norms(x_NRC).double()) @ x_NRC
    assert torch.allclose(found_NRC, bracket(gram(divided_NRC), *COEFFICIENTS) @ divided_NRC)


def test_the_arguments_stay_as_they_are() -> None:
    x_NRC = matrices((2, 4, 6))
    gram_NRR = gram(x_NRC)
    before = x_NRC.clone(), gram_NRR.clone()
    bracket(gram_NRR, *COEFFICIENTS, norms(x_NRC))
    bracket(gram_NRR, *COEFFICIENTS)
    assert torch.equal(x_NRC, before[0]) and torch.equal(gram_NRR, before[1])


def test_the_kernel_takes_what_bulk_copies_can() -> None:
    """Each row begins at sixteen bytes, in the argument and in the result, whichever side lies along memory."""
    x_NRC = torch.zeros(2, 16, 24, dtype=torch.bfloat16)
    taken = [x_NRC, x_NRC.mT, x_NRC[:, :8], x_NRC[:, :, 8:], x_NRC[:, :, :11], x_NRC[1:]]
    left = [x_NRC[:, :12], x_NRC[:, :, 1:], x_NRC[:, :, ::2], torch.zeros(2, 8, 12, dtype=torch.bfloat16)]
    assert [symmetric._is_aligned(one) for one in taken] == [True] * len(taken)
    assert [symmetric._is_aligned(one) for one in left] == [False] * len(left)
    assert not runs_on(x_NRC)  # a CPU's


def test_small_matrices_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start the kernel takes the host longer than the product takes the GPU."""
    monkeypatch.setattr(symmetric, "runs_on", lambda x_NRC: True)
    x_NRC = torch.zeros(1, symmetric.FEWEST_ROWS, 1, dtype=torch.bfloat16)
    assert symmetric._takes(x_NRC) and not symmetric._takes(x_NRC[:, 1:])


needs_gpu = pytest.mark.skipif(not ON_GPU, reason="no GPU of compute capability 9.0 or more")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for small matrices too."""
    monkeypatch.setattr(symmetric, "FEWEST_ROWS", 1)


@needs_gpu
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_rounds_once_and_is_symmetric_to_the_bit(shape: tuple[int, int, int], turned: bool) -> None:
    x_NRC = matrices(shape, turned, "cuda").bfloat16()
    assert runs_on(x_NRC) == (shape[1] % 8 == 0)  # all but the last shape
    gram_NRR = gram(x_NRC)
    assert error(gram_NRR, x_NRC.double() @ x_NRC.double().mT) < HALF_A_PLACE
    symmetric_NRR = gram_NRR.tril() + gram_NRR.tril(-1).mT
    for norm_N in (None, norms(x_NRC)):
        found_NRR = bracket(symmetric_NRR, *COEFFICIENTS, norm_N)
        assert error(found_NRR, exact_bracket(symmetric_NRR, norm_N)) < (HALF_A_PLACE if runs_on(x_NRC) else 1e-2)
        if runs_on(x_NRC):
            assert torch.equal(gram_NRR, gram_NRR.mT) and torch.equal(found_NRR, found_NRR.mT)


@needs_gpu
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("rows", [384, 1096])
def test_all_configurations_give_the_same_bits(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that resumes, and tunes again, is the run that never stopped."""
    from tintype.optim import symmetric_kernel

    x_NRC = matrices((2, rows, 1608), device="cuda").bfloat16()
    found = []
    for config in [*symmetric_kernel.CONFIGS, *symmetric_kernel.SMALL_CONFIGS]:
        monkeypatch.setattr(symmetric_kernel._tuned, "early_config_prune", lambda *_, only=config, **__: [only])
        symmetric_kernel._tuned.cache.clear()
        gram_NRR = gram(x_NRC)
        found.append((gram_NRR, bracket(gram_NRR, *COEFFICIENTS, norms(x_NRC))))
    symmetric_kernel._tuned.cache.clear()
    assert all(torch.equal(one, other) for pair in found[1:] for one, other in zip(pair, found[0], strict=True))


@needs_gpu
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("turned", [False, True])
def test_the_iteration_with_the_kernel_is_no_further_from_the_truth_than_torchs(turned: bool) -> None:
    x_NRC = matrices((3, 384, 1152), turned, "cuda")
    exact_NRC = orthogonalise(x_NRC.double(), 5, torch.float64)
    ours = error(orthogonalise(x_NRC, 5, torch.bfloat16), exact_NRC)
    theirs = error(
        torch.stack([torch.optim._muon._zeropower_via_newtonschulz(one, COEFFICIENTS, 5, 1e-7) for one in x_NRC]),
        exact_NRC,
    )
    assert ours < 1.2 * theirs
