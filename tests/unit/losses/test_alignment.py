"""The loss of alignment, its projector, and how long its teacher stays."""

from __future__ import annotations

import gc
import signal
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.bounds import distance, network_bound
from tests.ranks import run_ranks
from tests.read_ahead import note_taken
from tests.slow import slow_unless
from tests.tiny import tiny_plan
from tests.tiny_clip import write
from tests.tiny_dino import dino_model
from tests.unit.losses.alignment_views import CPU, GRID, SAMPLES, WIDTH, normal, place, view
from tintype.errors import UserError
from tintype.losses.alignment import AlignmentTerm
from tintype.losses.repa import RepaSettings
from tintype.plan import Plan
from tintype.runtime import notes, shared
from tintype.runtime.clock import Clock
from tintype.runtime.dist import World
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import Layout
from tintype.runtime.rows import Rows
from tintype.seams import Route
from tintype.train import checkpoint
from tintype.train.loop import train
from tintype.train.prepare import prepare_images, prepare_term
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.steps import Progress
from tintype.train.update import update
from tintype.vision import teacher_cache
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.scene_encoder import SceneTeacherSettings


def term(**changes: Any) -> AlignmentTerm:
    torch.manual_seed(0)
    settings = {"block": 2, "hidden": 16, "teacher": SceneTeacherSettings(), **changes}
    return RepaSettings(**settings).build(place())


def written_out(projector: nn.Module, token_BLD: Tensor, teacher_BLT: Tensor) -> Tensor:
    """The paper's formula in float64: linear, SiLU, linear, SiLU, linear; minus the mean cosine over the tokens."""
    h = token_BLD.double()
    for index in range(3):
        weight, bias = (projector.get_parameter(f"{2 * index}.{part}").double() for part in ("weight", "bias"))
        h = torch.einsum("bli,oi->blo", h, weight) + bias
        h = h * torch.sigmoid(h) if index < 2 else h
    y = teacher_BLT.double()
    cosine_BL = (h * y).sum(-1) / (h.square().sum(-1).sqrt() * y.square().sum(-1).sqrt())
    return -cosine_BL.sum(1) / cosine_BL.shape[1]


def test_loss_and_gradients_are_those_of_the_formula_in_float64() -> None:
    one = term()
    token = normal(SAMPLES, 6, WIDTH).requires_grad_()
    teacher = normal(SAMPLES, 6, 128, seed=1)
    wanted = [token, *one.projector.parameters()]
    loss_B, exact_B = one.loss(view(token, teacher)), written_out(one.projector, token, teacher)
    assert loss_B.shape == (SAMPLES,)
    assert distance(loss_B.double(), exact_B) < network_bound(one.projector, torch.ones(())), "cosines are at most 1"
    weight_B = torch.tensor([1.0, -2.0, 0.5, 3.0])
    found = torch.autograd.grad((weight_B * loss_B).sum(), wanted)
    exact = torch.autograd.grad((weight_B.double() * exact_B).sum(), wanted)
    for name, ours, theirs in zip(("tokens", *dict(one.projector.named_parameters())), found, exact, strict=True):
        assert distance(ours, theirs) < network_bound(one.projector, weight_B), name


def test_the_projector_is_the_papers() -> None:
    torch.manual_seed(0)
    projector = RepaSettings(block=2, teacher=SceneTeacherSettings()).build(place()).projector
    shapes = {name: list(parameter.shape) for name, parameter in projector.named_parameters()}
    assert shapes == {
        "0.weight": [2048, WIDTH],
        "0.bias": [2048],
        "2.weight": [2048, 2048],
        "2.bias": [2048],
        "4.weight": [128, 2048],
        "4.bias": [128],
    }


def test_a_perfect_projector_gives_minus_one_and_a_wrong_one_plus_one() -> None:
    one = term()
    one.projector = nn.Identity()
    token = normal(SAMPLES, 6, 128)
    scale = normal(SAMPLES, 6, 1, seed=1).abs() + 0.1
    torch.testing.assert_close(one.loss(view(token, scale * token)), -torch.ones(SAMPLES))
    torch.testing.assert_close(one.loss(view(token, -scale * token)), torch.ones(SAMPLES))


def test_only_the_kept_tokens_count_and_each_against_its_own() -> None:
    one = term()
    whole, teacher = normal(SAMPLES, 6, WIDTH), normal(SAMPLES, 6, 128, seed=1)
    kept_BK = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i))[:4] for i in range(SAMPLES)])
    token = torch.stack([tokens[kept] for tokens, kept in zip(whole, kept_BK, strict=True)])
    picked = torch.stack([tokens[kept] for tokens, kept in zip(teacher, kept_BK, strict=True)])
    exact = written_out(one.projector, token, picked)
    found = one.loss(view(token, teacher, Route(1, 3, kept_BK)))
    bound = network_bound(one.projector, torch.ones(()))
    assert distance(found.double(), exact) < bound
    assert not torch.allclose(found.double(), written_out(one.projector, token, teacher[:, :4]))
    elsewhere = one.loss(view(whole, teacher, Route(2, 3, kept_BK)))
    assert distance(elsewhere.double(), written_out(one.projector, whole, teacher)) < bound


def test_projector_and_cosine_stay_in_fp32_under_autocast() -> None:
    one = term()
    token = normal(SAMPLES, 6, WIDTH).bfloat16().requires_grad_()
    teacher = normal(SAMPLES, 6, 128, seed=1)
    plain = one.loss(view(token.float(), teacher))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = one.loss(view(token, teacher))
        found.sum().backward()
    assert found.dtype == torch.float32 and torch.equal(found, plain)
    assert {parameter.dtype for parameter in one.parameters()} == {torch.float32}
    assert token.grad is not None and token.grad.dtype == torch.bfloat16


def test_a_term_is_built_and_loads_its_state_without_its_teacher(tmp_path: Path) -> None:
    folder = write(tmp_path / "dino", dino_model())
    (folder / "model.safetensors").unlink()
    one = term(teacher=Dinov2TeacherSettings(source=str(folder)))
    assert one.projector.get_parameter("4.weight").shape == (16, 16)
    with pytest.raises(UserError, match=r"no \.safetensors file"):
        one.ready()
    with pytest.raises(RuntimeError, match="repa: call ready"):
        one.look(torch.zeros(1, 3, 16, 16).byte(), [0])
    with pytest.raises(RuntimeError, match="repa: call look"):
        one.loss(view(normal(SAMPLES, 6, WIDTH), None))


def test_the_teacher_is_no_part_of_what_is_trained_and_saved() -> None:
    one = term()
    names = set(one.state_dict())
    one.ready()
    assert set(one.state_dict()) == names == {f"projector.{i}.{part}" for i in (0, 2, 4) for part in ("weight", "bias")}
    assert all(parameter.requires_grad for parameter in one.parameters())


def test_look_gives_the_teachers_tokens_of_the_clean_images() -> None:
    one = term()
    one.ready()
    image = place().source.images([3, 1])
    wanted = SceneTeacherSettings().build(GRID, CPU).tokens(image)
    assert torch.equal(one.look(image, [3, 1]), wanted)


@pytest.mark.parametrize("cache", ["none", "memory", "disk"])
def test_release_frees_the_teacher_and_what_is_kept_in_memory(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_cache, "_in_memory", {})  # other tests' runs keep theirs
    one = term(cache=cache)
    one.ready()
    one.look(place().source.images([3, 1]), [3, 1])
    held: list[weakref.ref[Any]] = [weakref.ref(teacher) for teacher in one._teachers.values()]
    assert held
    held += [weakref.ref(cache.rows) for cache in one._caches.values()]
    assert all(ref() is not None for ref in held)
    one.release()
    gc.collect()
    assert all(ref() is None for ref in held)
    assert not teacher_cache._in_memory


def test_fetch_asks_the_teacher() -> None:
    with pytest.raises(UserError, match="there is no folder /no/such"):
        RepaSettings(block=1, teacher=Dinov2TeacherSettings(source="/no/such")).fetch((4, 4))


def run(folder: Path, cache: str, stop: int | None = None) -> dict[str, Tensor]:
    """The end of a short run, stopped and taken up again where asked."""
    plan = tiny_plan("data.count=10", techniques=[f"repa:teacher=scenes,hidden=32,cache={cache}"])
    interrupt = Interrupt()

    def at(progress: Progress) -> None:
        if progress.step == stop:
            interrupt.signal = 15
            teacher_cache._in_memory.clear()  # as in another process

    train(plan, folder, interrupt, at)
    if stop is not None:
        train(plan, folder, Interrupt())
    tensors, _ = checkpoint.read(checkpoint.folder_of(RunRecord(folder).checkpoints, 6))
    return tensors


@pytest.mark.slow
@pytest.mark.parametrize("cache", slow_unless(lambda cache: cache == "disk", ["memory", "disk"]))
def test_a_cold_cache_a_warm_one_and_a_resumed_run_end_bit_for_bit_alike(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With ten images and batches of four, epochs end inside batches. No step finds tokens missing."""
    monkeypatch.setattr(notes, "_noted", set[str]())
    monkeypatch.setattr(teacher_cache, "_CPU_BATCH", 1)
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    teacher_cache._in_memory.clear()
    cold, warm = run(tmp_path / "cold", cache), run(tmp_path / "warm", cache)
    teacher_cache._in_memory.clear()
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "other"))
    resumed = run(tmp_path / "resumed", cache, stop=2)
    for other in (warm, resumed):
        assert all(torch.equal(cold[name], other[name]) for name in cold)
    assert "missing in a step" not in caplog.text
    plain = run(tmp_path / "plain", "none")
    differing = [name for name in plain if not torch.equal(plain[name], cold[name])]
    assert differing, "with a cache, tokens pass through fp16"
    assert all(torch.allclose(plain[name], cold[name], atol=1e-3) for name in plain)


def test_training_aligns(tmp_path: Path) -> None:
    plan = tiny_plan("train.steps=60", "optimizer.lr=3e-3", techniques=["repa:teacher=scenes,hidden=32,cache=memory"])
    parts = build_session(plan)
    for one in parts.terms:
        one.part.ready()
    state = new_state(parts)
    losses = [float(update(parts, state, Clock(CPU)).losses["repa"]) for _ in range(60)]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.3
    assert all(-1 <= loss <= 1 for loss in losses)


REPA = "repa:teacher=scenes,hidden=8,cache=memory"


def prepared_ids(plan: Plan, images_seen: int = 0, chunks: int = 99) -> list[int]:
    """Return the images whose tokens are there before the first step; a signal comes in a chunk of the work."""
    teacher_cache._in_memory.clear()
    parts, interrupt, begun = build_session(plan), Interrupt(), list[int]()
    parts.ready()

    def count() -> None:
        begun.append(0)
        if len(begun) == chunks:
            interrupt.signal = signal.SIGINT

    prepare_images(parts, images_seen, interrupt, count)
    (loss,) = parts.terms
    rows = loss.part._cache(parts.plan.token_grid).rows  # type: ignore[attr-defined]
    return sorted(set(range(60)) - set(rows.missing(range(60))))


def test_tokens_are_there_before_the_first_step_of_the_images_that_the_loss_will_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are there of all images of their blocks, here of three, and of no others."""
    monkeypatch.setattr(teacher_cache, "_CPU_BATCH", 3)
    plan = tiny_plan("data.count=60", techniques=[REPA])
    order = build_session(plan).order

    def of_blocks(first: int, count: int) -> list[int]:
        return [
            3 * block + place for block in sorted({id_ // 3 for id_ in order.ids(first, count)}) for place in range(3)
        ]

    assert prepared_ids(plan) == of_blocks(0, 24) != list(range(60))
    assert prepared_ids(plan, images_seen=8) == of_blocks(8, 16)
    some = tiny_plan("data.count=60", techniques=[f"{REPA},schedule={{kind: until, start: 1, end: 3}}"])
    assert prepared_ids(some) == of_blocks(4, 8)
    assert prepared_ids(some, images_seen=8) == of_blocks(8, 4)


def test_a_rank_with_rows_of_its_own_computes_all_of_them() -> None:
    """Steps store none, so what another rank has computed for itself would be missing here in every epoch."""
    teacher_cache._in_memory.clear()
    parts = build_session(tiny_plan("data.count=60", techniques=[REPA]))
    parts.ready()
    (loss,) = parts.terms
    for rank in range(2):
        prepare_term(replace(parts, layout=Layout(World(rank, 2))), loss, [rank, 40 + rank], 0)
        rows = loss.part._cache(parts.plan.token_grid).rows  # type: ignore[attr-defined]
        assert rows.missing(range(60)) == [*range(16, 32), *range(48, 60)]
        rows._sum_N.zero_()
        rows._known_N.zero_()


def test_a_signal_is_heard_while_tokens_are_computed() -> None:
    plan = tiny_plan("data.count=60", "train.steps=15", techniques=[REPA])
    assert prepared_ids(plan, chunks=3) == list(range(32)), "one chunk of images, two of a block"


def test_a_run_that_reads_ahead_is_one_that_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several micro-batches in a step, and epochs that end inside them."""
    plan = tiny_plan("data.count=10", "train.accumulate=2", techniques=[REPA])
    train(plan, tmp_path / "plain", Interrupt())
    monkeypatch.setattr(teacher_cache, "_AHEAD_ON", frozenset({"cpu"}))
    taken = note_taken(monkeypatch)
    train(plan, tmp_path / "ahead", Interrupt())
    assert taken == [False] + [True] * 11
    plain, ahead = (
        checkpoint.read(checkpoint.folder_of(RunRecord(tmp_path / name).checkpoints, 6))[0]
        for name in ("plain", "ahead")
    )
    assert all(torch.equal(plain[name], ahead[name]) for name in plain)


def _train_as_rank(plan: Plan, folder: Path, ahead: frozenset[str]) -> tuple[list[bool], list[list[int]]]:
    """Train, and return which batches were read ahead, and of which images this rank computed tokens at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher_cache, "_AHEAD_ON", ahead)
        patch.setattr(shared, "SMALLEST_BYTES", 0)
        patch.setattr(teacher_cache, "_CPU_BATCH", 4)
        taken, computed, write = note_taken(patch), list[list[int]](), Rows.write

        def noted(rows: Rows, id_M: Tensor, row_M: Tensor) -> None:
            computed.append(id_M.tolist())
            write(rows, id_M, row_M)

        patch.setattr(Rows, "write", noted)
        assert train(plan, folder, Interrupt()).finished
    return taken, computed


@pytest.mark.slow
def test_ranks_share_the_memory_and_each_reads_its_own_batches_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    plan = tiny_plan("data.count=10", techniques=[REPA])
    for name, ahead in (("plain", frozenset[str]()), ("ahead", frozenset({"cpu"}))):
        found = run_ranks(2, _train_as_rank, plan, tmp_path / name, ahead)
        assert [taken for taken, _ in found] == ([[False] + [True] * 5] * 2 if ahead else [[]] * 2)
        blocks = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert sorted(found[0][1] + found[1][1]) == blocks, "each block whole, and once on this machine"
    plain, ahead_too = ([line["loss"] for line in RunRecord(tmp_path / name).lines] for name in ("plain", "ahead"))
    assert plain == ahead_too and len(plain) == 6
