from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from tests.ranks import run_ranks
from tintype import cli
from tintype.errors import UserError
from tintype.runtime import dist as world
from tintype.runtime.dist import ALONE, World, current, refuse_other_steps
from tintype.runtime.gradients import GradientMean
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import Layout


def _rows(item: int) -> Tensor:
    """As many rows as the item says, each with its number."""
    return torch.full((item, 2), item, dtype=torch.uint8)


def _share(items: list[int]) -> tuple[Tensor | None, list[int]]:
    taken: list[int] = []

    def work(item: int) -> Tensor:
        taken.append(item)
        return _rows(item)

    return current().share(items, work), taken


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("items", [[3, 1, 2, 5, 4], [2, 0, 1], [4]])
def test_shared_rows_come_in_the_order_of_items_and_ranks_take_turns(size: int, items: list[int]) -> None:
    results = run_ranks(size, _share, items)
    assert torch.equal(results[0][0], torch.cat([_rows(item) for item in items]))
    assert all(rows is None for rows, _ in results[1:])
    assert [taken for _, taken in results] == [items[rank::size] for rank in range(size)]


def _share_named() -> dict[str, Tensor] | None:
    def work(item: int) -> dict[str, Tensor]:
        return {"a": torch.full((2, 3), item / 3, dtype=torch.float64), "b": torch.arange(2)[:, None] + item}

    return current().share_named([10, 20, 30], work)


def test_several_tensors_are_shared_by_name_and_keep_their_types() -> None:
    found, nothing = run_ranks(2, _share_named)
    assert nothing is None and list(found) == ["a", "b"]
    assert torch.equal(found["a"][:, 0], torch.tensor([10, 10, 20, 20, 30, 30], dtype=torch.float64) / 3)
    assert torch.equal(found["b"], torch.tensor([10, 11, 20, 21, 30, 31])[:, None])


def _mistake_of(failing: list[int]) -> str:
    """Return the error of this rank when some ranks find a mistake in what all do together."""
    try:
        with current().fail_together():
            if current().rank in failing:
                raise UserError(f"rank {current().rank} has no room")
    except UserError as error:
        return str(error)
    return ""


def _signalled(rank: int | None) -> tuple[bool, int | None]:
    """Whether this rank stops where a signal came to one, and by which signal."""
    interrupt = Interrupt()
    interrupt.signal = signal.SIGTERM if current().rank == rank else None
    return interrupt.on_any_rank(current()), interrupt.signal


def _agree() -> tuple[object, ...]:
    ranks = current()
    told = ranks.all_gather({"rank": ranks.rank, "text": "é" * ranks.rank})
    return (
        ranks.any(ranks.rank == 1),
        ranks.any(False),
        told,
        ranks.broadcast([ranks.rank, "x"]),
        [_mistake_of([1]), _mistake_of([2, 1]), _mistake_of([])],
        [_signalled(1), _signalled(None)],
        ranks.all_gather_tensor(torch.tensor([ranks.rank, 10])).tolist(),
        float(ranks.all_reduce_mean(torch.tensor(float(ranks.rank**2)))),
    )


def test_ranks_agree() -> None:
    told = [{"rank": rank, "text": "é" * rank} for rank in range(3)]
    alike = (True, False, told, [0, "x"])
    mistakes = ["rank 1 has no room", "rank 1 has no room", ""]
    signals = [(True, signal.SIGTERM), (False, None)]
    found = run_ranks(3, _agree)
    assert found == [(*alike, mistakes, signals, [0, 10, 1, 10, 2, 10], pytest.approx(5 / 3))] * 3


ROWS, WIDTH = 6, 3


def _contrast(world: World, x_BW: Tensor, weight_WW: Tensor, scale: Tensor, detach: bool) -> Tensor:
    """Mean loss over this rank's rows, each told apart from the rows of all ranks: every row is in every loss."""
    mine_BW = torch.tanh(x_BW @ weight_WW)
    all_NW = world.all_gather_tensor(mine_BW.detach() if detach else mine_BW)
    target_B = torch.arange(len(mine_BW)) + world.rank * len(mine_BW)
    spread = world.all_reduce_mean(mine_BW.square().mean())
    return torch.nn.functional.cross_entropy(scale * mine_BW @ all_NW.T, target_B) + spread.square()


def _gradients(detach: bool = False) -> list[Tensor]:
    """The gradients of shared weights, averaged over the ranks as training does it."""
    world, generator = current(), torch.Generator().manual_seed(0)
    x_NW = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))
    scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    gradients = GradientMean([weight, scale], Layout(world))
    with gradients.over(last=True):
        _contrast(world, x_NW.chunk(world.size)[world.rank], weight, scale, detach).backward()
    return [one.grad for one in (weight, scale) if one.grad is not None]


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_flow_to_the_rows_of_other_ranks(size: int) -> None:
    """As those of one process with the whole batch; averaging is in fp32. The control: without, they differ."""
    (alone,) = run_ranks(1, _gradients)
    for found in run_ranks(size, _gradients):
        for mine, whole in zip(found, alone, strict=True):
            torch.testing.assert_close(mine, whole, rtol=1e-6, atol=1e-6)
    if size == 2:
        detached = run_ranks(size, _gradients, True)[0]
        assert (detached[0] - alone[0]).abs().max() > 1e-2


def test_alone_nobody_is_asked() -> None:
    assert ALONE.all_gather(1) == [1] and ALONE.broadcast(2) == 2 and not ALONE.any(False)
    said: list[str] = []
    ALONE.say_once("a mistake", said.append)
    assert said == ["a mistake"]


def _say(texts: list[str]) -> list[str]:
    world._AGREE_S = 30.0 if len({*texts}) == 1 else 0.3  # where all find it, a slow rank is waited for
    said: list[str] = []
    if text := texts[current().rank]:
        current().say_once(text, said.append)
    return said


def test_a_mistake_of_all_ranks_is_said_once_and_that_of_one_with_its_number() -> None:
    everyone = run_ranks(3, _say, ["no such run"] * 3)
    assert sorted(everyone) == [[], [], ["no such run"]]
    assert run_ranks(3, _say, ["", "", "disk full"]) == [[], [], ["rank 2: disk full"]]
    some = run_ranks(3, _say, ["", "bad", "bad"])
    assert sorted(some) in ([[], [], ["rank 1: bad"]], [[], [], ["rank 2: bad"]])
    assert run_ranks(2, _say, ["a", "b"]) == [["rank 0: a"], ["rank 1: b"]]


def test_ranks_that_loaded_different_weights_do_not_mix_them() -> None:
    refuse_other_steps([6, 6, 6], Path("run"))
    with pytest.raises(
        UserError, match="run was saved again, at step 8, while this process was loading it; run the same command again"
    ):
        refuse_other_steps([6, 8, 6], Path("run"))


@pytest.mark.parametrize(
    "command",
    [
        "ablate pocket --out x",
        "report x",
        "bench",
        "encoder train --out x",
        "evaluate --images a --reference b",
    ],
)
def test_commands_of_one_process_refuse_several(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"})
    with pytest.raises(
        UserError, match=r"`tintype .*` runs only as a single process; start the command without torchrun"
    ):
        CliRunner().invoke(cli.app, command.split(), catch_exceptions=False)


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(os, "environ", {**os.environ, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"})
    with pytest.raises(UserError, match=r"started 3 processes .* has 2 GPUs; start torchrun with `--nproc-per-node 2`"):
        world._meet()
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "2")
    with pytest.raises(SystemExit):  # it is told once
        world._meet()


def test_ranks_that_are_started_again_do_not_hear_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.store_key("gone")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert world.store_key("gone") != before
