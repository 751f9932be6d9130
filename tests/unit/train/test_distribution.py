"""One, two and three ranks train the same weights, whatever they hold, and go on from each other's checkpoints."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.bounds import muon_bound, rounding_bound
from tests.edit_checked import edit_json
from tests.fault.promises import Promise
from tests.ranks import RankError, run_ranks
from tests.slow import slow_unless
from tests.stopping import train_to
from tests.tiny import tiny_plan
from tintype import rng
from tintype.errors import UserError
from tintype.optim.muon import MuonSettings
from tintype.optim.spread import Spread
from tintype.plan import Plan
from tintype.runtime import gradients
from tintype.runtime.clock import Clock
from tintype.runtime.dist import World, current
from tintype.runtime.gradients import GradientMean, clip
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import Layout, can_reshard, is_sharded, local, rows_of_shard, share_of_batch, whole
from tintype.train import checkpoint, loop
from tintype.train import parts as parts_module
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.session import build_session
from tintype.train.start import resume
from tintype.train.state import TrainState, new_state
from tintype.train.update import update

BATCH = "train.batch=12"
LAYOUTS = {
    "ddp of two": (2, []),
    "fsdp of two": (2, ["kind=fsdp"]),
    "fsdp of three, uneven": (3, ["kind=fsdp", "reshard=false"]),
    "hsdp of two by two": (4, ["kind=fsdp", "shards=2"]),
}
ACCUMULATED = ["train.batch=24", "train.accumulate=2"]
CASES: dict[str, tuple[list[str], float]] = {
    "adamw": (["ema:decay=0.8"], 2e-6),
    "muon": (["muon:lr=0.01,weight_decay=0.1", "power-ema:snapshots=2"], 1e-3),
    "other blocks": (["registers:count=2", "value-residual", "shared-adaln", "no-qk-norm"], 2e-6),
    "contrastive sprint": (["contrastive", "sprint:share=0.5"], 2e-6),
}
"""Techniques, and how far weights may be apart. The gradients of a tiny model have next to no rank, and the iteration
of Muon makes directions of what rounding left there: what it does with given gradients is tested below."""


def tiny(settings: Sequence[str] = (), techniques: Sequence[str] = (), more: Sequence[str] = ()) -> Plan:
    plan = tiny_plan(BATCH, *[f"run.distribution.{one}" for one in settings], *more, techniques=techniques)
    if not isinstance(plan.optimizer, MuonSettings):
        return plan
    changes: dict[str, object] = {"compute": "fp32"}
    if plan.route is not None:  # then matrices outside the denoiser too, of which every rank has a copy
        changes["matrices"] = ("denoiser.blocks.", "router.", "text.")
    return plan.model_copy(update={"optimizer": plan.optimizer.model_copy(update=changes)})


def train_cases(folder: str, settings: list[str]) -> None:
    for name, (techniques, _) in CASES.items():
        more = ACCUMULATED if name == "adamw" else []
        assert train(tiny(settings, techniques, more), Path(folder) / name, Interrupt()).finished


def final(folder: Path, step: int = 6) -> dict[str, Tensor]:
    return checkpoint.read(checkpoint.folder_of(folder / "checkpoints", step))[0]


def difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest, in weights, averages and moments."""
    assert first.keys() == second.keys()
    assert all(first[name].shape == second[name].shape and first[name].dtype == second[name].dtype for name in first)
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def logged(folder: Path) -> list[float]:
    """Return the log of the training itself: losses, norms, and errors by time, -1 where no sample had it."""
    return [
        -1.0 if number is None else number
        for line in lines(folder)
        for number in (line["loss"], line["flow"], line["grad_norm"], *line["flow_by_time"].values())
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same trainings by one process."""
    folder = tmp_path_factory.mktemp("alone")
    train_cases(str(folder), [])
    return folder


@dataclass(frozen=True)
class Launch:
    """Results of the ranks of a layout."""

    size: int
    folder: Path
    muon: list[dict[str, dict[str, Tensor]]]
    norms: list[tuple[float, float]]
    drawn: list[tuple[int, dict[str, Tensor]]]
    averaged: list[tuple[list[Tensor | None], list[int]]]


@pytest.fixture(scope="module", params=slow_unless("ddp of two".__eq__, LAYOUTS))
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    size, settings = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("ranks")
    found = run_ranks(size, all_at_once, str(folder), settings)
    return Launch(size, folder, *map(list, zip(*found, strict=True)))


def all_at_once(folder: str, settings: list[str]) -> tuple[object, ...]:
    """Starting processes takes longer than all of this."""
    train_cases(folder, settings)
    return muon_steps(settings), norms(settings), rounded_at_random(settings), averaged_in_buckets()


def test_ranks_train_what_one_process_trains(launch: Launch, alone: Path) -> None:
    folder = launch.folder
    for name, (_, bound) in CASES.items():
        assert difference(final(alone / name), final(folder / name)) < bound, name
        assert logged(folder / name) == pytest.approx(logged(alone / name), rel=1e-2 if name == "muon" else 1e-4)
        about = json.loads((folder / name / "environment.json").read_text())
        assert about["ranks"] == launch.size
        assert about["parameters"] == json.loads((alone / name / "environment.json").read_text())["parameters"]
    stored, _ = checkpoint.read(checkpoint.folder_of(folder / "muon" / "snapshots", 6))
    expected, _ = checkpoint.read(checkpoint.folder_of(alone / "muon" / "snapshots", 6))
    assert difference(stored, expected) < CASES["muon"][1]


def parts_and_state(settings: Sequence[str], techniques: Sequence[str]) -> TrainState:
    return new_state(build_session(tiny(settings, techniques)))


def give_gradients(state: TrainState, step: int) -> None:
    """The same to every rank, cut as the weights are."""
    generator = torch.Generator().manual_seed(step)
    for parameter in state.modules.parameters():
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        if is_sharded(parameter):
            from torch.distributed.tensor import distribute_tensor

            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]
        parameter.grad = gradient


OPTIMIZERS = {
    "whole": ["muon:lr=0.01,weight_decay=0.1"],
    "by parts": ["muon:lr=0.01,fused=parts,scaling=original,nesterov=false"],
    "without modulation": ["muon:lr=0.01,modulation=false"],
    "even rows": ["normuon:lr=0.01,weight_decay=0.1,cautious=true,iteration=polar-express"],
    "even rows by parts": ["normuon:lr=0.01,fused=parts", "sprint:share=0.5"],
    "of other rooms too": ["muon:lr=0.01", "sprint:share=0.5"],
}


def muon_steps(settings: list[str]) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, techniques in OPTIMIZERS.items():
        state = parts_and_state(settings, techniques)
        for step in range(3):
            give_gradients(state, step)
            state.optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
            state.optimizer.step()
        found[name] = {key: whole(tensor.detach()).clone() for key, tensor in state.tensors().items()}
    return found


def test_muon_is_the_same_wherever_its_matrices_lie(launch: Launch) -> None:
    expected = muon_steps([])
    for found in launch.muon:
        for name in OPTIMIZERS:
            assert difference(expected[name], found[name]) < muon_bound(3, 0.01, 192)


def count_gathers(settings: list[str]) -> list[tuple[int, int]]:
    """How many exchanges a step of Muon makes, and how many numbers of fp32 this rank receives in each direction."""
    state = parts_and_state(settings, OPTIMIZERS["whole"])
    give_gradients(state, 0)
    state.optimizer.step()
    seen: list[int] = []
    exchange = dist.all_to_all_single

    def counting(output: Tensor, *args: object, **kwargs: object) -> object:
        seen.append(output.numel() // 4)
        return exchange(output, *args, **kwargs)  # type: ignore[arg-type]

    dist.all_to_all_single = counting
    give_gradients(state, 1)
    state.optimizer.step()
    return [(len(seen), sum(seen[0::2])), (len(seen), sum(seen[1::2]))]


def test_each_matrix_is_gathered_once_a_step_and_the_work_is_shared() -> None:
    plan = tiny(techniques=OPTIMIZERS["whole"])
    modules = build_session(plan).modules
    assert isinstance(plan.optimizer, MuonSettings)
    taken = plan.optimizer.taken(dict(modules.named_parameters()))
    numbers = sum(parameter.numel() for name, parameter in modules.named_parameters() if name in taken)
    batches = len({tuple(sorted(p.shape)) for name, p in modules.named_parameters() if name in taken})
    ranks = run_ranks(2, count_gathers, ["kind=fsdp"])
    assert [calls for rank in ranks for calls, _ in rank] == [2 * batches] * 4
    assert sum(there for (_, there), _ in ranks) == numbers and sum(back for _, (_, back) in ranks) == numbers
    assert all(there > 0.3 * numbers for (_, there), _ in ranks)


@pytest.mark.parametrize(("copies", "pieces"), [(1, 2), (3, 1), (2, 2), (2, 3)])
def test_ranks_take_turns_with_the_matrices_of_all_batches(copies: int, pieces: int) -> None:
    size, count = copies * pieces, 4 * copies * pieces

    def owned(rank: int, matrices: int, first: int) -> list[int]:
        layout = Layout(World(rank, size), pieces)
        found = Spread([torch.Size((4, 4))] * matrices, first, layout)._owned_by(layout.shard)
        return [first + index for index in found]

    together = [owned(rank, count, 0) for rank in range(size)]
    assert sorted(index for some in together for index in some) == list(range(count)) and {
        len(some) for some in together
    } == {4}
    assert together == [owned(rank, 5, 0) + owned(rank, count - 5, 5) for rank in range(size)]


def go_on(folder: str, settings: list[str], techniques: list[str]) -> int:
    return train(tiny(settings, techniques), Path(folder), Interrupt()).step


def stop_early(folder: str, settings: list[str], techniques: list[str], step: int) -> None:
    train_to(tiny(settings, techniques), Path(folder), step)


RANKS_BETWEEN: list[tuple[int, list[str]]] = [(3, ["kind=fsdp"]), (2, []), (4, ["kind=fsdp", "shards=2"])]


@pytest.mark.promise(9)
@pytest.mark.parametrize("between", slow_unless(lambda case: case[0] == 2, RANKS_BETWEEN))
def test_a_run_goes_on_with_other_ranks(between: tuple[int, list[str]], alone: Path, tmp_path: Path) -> None:
    """Train with one process, then several, then one, each from the checkpoint of the one before."""
    size, settings = between
    techniques, bound = CASES["muon"]
    run = tmp_path / "run"
    stop_early(str(run), [], techniques, 2)
    run_ranks(size, stop_early, str(run), settings, techniques, 4)
    files = {file.name for file in checkpoint.folder_of(run / "checkpoints", 4).glob("*.safetensors")}
    assert files == (
        {f"shard-{n:05d}-model-00001-of-00001.safetensors" for n in range(1, size + 1)}
        if settings
        else {"state.safetensors"}
    )
    assert go_on(str(run), [], techniques) == 6
    assert difference(final(alone / "muon"), final(run)) < bound
    assert len(lines(run)) == 6


@pytest.mark.promise(9, control="the position in the data is lost")
def test_a_run_that_begins_its_data_anew_is_another(
    promise: Promise, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume without the number of images seen: the weights are further apart than rounding."""
    techniques, bound = CASES["muon"]
    stop_early(str(tmp_path), [], techniques, 2)

    def forget(folder: RunFolder, state: TrainState) -> None:
        resume(folder, state)
        state.images_seen = 0

    monkeypatch.setattr(loop, "resume", forget)
    assert go_on(str(tmp_path), [], techniques) == 6
    promise.count(held=difference(final(alone / "muon"), final(tmp_path)) < bound, what="data from its beginning")


@pytest.mark.slow
@pytest.mark.promise(9)
@pytest.mark.parametrize("techniques", [CASES["muon"][0], ["normuon:lr=0.01"]], ids=["muon", "normuon"])
def test_ranks_go_on_exactly_where_they_stopped(techniques: list[str], tmp_path: Path) -> None:
    """Stop two ranks and start them again: the weights are bit-identical, from pieces too."""
    run_ranks(2, stop_and_go_on_too, str(tmp_path), ["kind=fsdp"], techniques)
    first, second = final(tmp_path / "whole"), final(tmp_path / "cut")
    assert all(torch.equal(first[name], second[name]) for name in first)


def stop_and_go_on_too(folder: str, settings: list[str], techniques: list[str]) -> None:
    go_on(f"{folder}/whole", settings, techniques)
    stop_early(f"{folder}/cut", settings, techniques, 2)
    go_on(f"{folder}/cut", settings, techniques)


def go_on_after_damage(folder: str, settings: list[str], techniques: list[str]) -> list[bool]:
    """Trains, damages one file of the last checkpoint, trains again: whether the end was the same, for each damage."""
    same = []
    for harm in ("flip", "remove"):
        run = Path(folder) / harm
        go_on(str(run), settings, techniques)
        whole_one = final(run)
        current().barrier()
        piece = checkpoint.folder_of(run / "checkpoints", 6) / "shard-00002-model-00001-of-00001.safetensors"
        if current().leads and harm == "remove":
            piece.unlink()
        elif current().leads:
            content = bytearray(piece.read_bytes())
            content[-5] ^= 1
            piece.write_bytes(content)
        current().barrier()
        go_on(str(run), settings, techniques)
        again = final(run)
        same.append(all(torch.equal(whole_one[name], again[name]) for name in whole_one))
    return same


@pytest.mark.slow
def test_damage_to_one_piece_is_found_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    assert run_ranks(2, go_on_after_damage, str(tmp_path), ["kind=fsdp"], CASES["adamw"][0]) == [[True, True]] * 2
    for harm in ("flip", "remove"):
        events = [json.loads(line) for line in (tmp_path / harm / "events.jsonl").read_text().splitlines()]
        assert [event["event"] for event in events] == ["damaged-checkpoint"]


def test_what_the_manifest_does_not_name_is_not_read(launch: Launch, tmp_path: Path) -> None:
    """A stranger's file would be read with the others, and a file that is gone would leave what memory held."""
    stored = checkpoint.folder_of(launch.folder / "adamw" / "checkpoints", 6)
    shutil.copytree(stored, tmp_path / "more")
    some = next(stored.glob("*.safetensors"))
    shutil.copy(some, tmp_path / "more" / "shard-00099-model-00001-of-00001.safetensors")
    with pytest.raises(checkpoint.DamagedError, match=r"does not list: shard-00099"):
        checkpoint.read(tmp_path / "more")
    if json.loads((launch.folder / "adamw" / "environment.json").read_text())["copies"] == 1 and launch.size == 3:
        shutil.copytree(stored, tmp_path / "fewer")
        gone = "shard-00002-model-00001-of-00001.safetensors"
        edit_json(tmp_path / "fewer" / "manifest.json", lambda manifest: manifest["sha256"].pop(gone))
        (tmp_path / "fewer" / gone).unlink()
        with pytest.raises(OSError, match="do not add up"):
            checkpoint.read(tmp_path / "fewer")


def fill_the_disk_of(failing: list[int], settings: list[list[str]], folder: str) -> list[tuple[str, list[str]]]:
    """A save that fails on one rank, for each of some layouts: what this rank hears, and what lies in the folder."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    found = []
    for number, (rank, one) in enumerate(zip(failing, settings, strict=True)):
        state, path, message = parts_and_state(one, []), Path(folder) / str(number), ""
        checkpoint.save(path, state, 2, current())
        state.step += 1
        if current().rank == rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        try:
            checkpoint.save(path, state, 2, current())
        except UserError as error:
            message = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        current().barrier()
        found.append((message, [file.name for file in path.iterdir()]))
    return found


def test_a_save_that_fails_on_one_rank_fails_on_all_and_loses_nothing(tmp_path: Path) -> None:
    for found in run_ranks(2, fill_the_disk_of, [0, 1], [[], ["kind=fsdp"]], str(tmp_path)):
        for message, files in found:
            assert "cannot write the checkpoint of step 1" in message and "step 0 is intact" in message
            assert files == ["step-000000000"]


def norms(settings: list[str]) -> tuple[float, float]:
    parts = build_session(tiny(settings))
    state = new_state(parts)
    give_gradients(state, 0)
    before = float(clip(state.parameters, 0.5, parts.layout))
    return before, float(clip(state.parameters, None, parts.layout))


def test_the_norm_is_that_of_all_pieces_and_is_clipped_once(launch: Launch) -> None:
    expected, numbers = norms([]), sum(p.numel() for p in build_session(tiny()).modules.parameters())
    assert expected[1] == pytest.approx(0.5, rel=1e-5)
    for found in launch.norms:
        assert found == pytest.approx(expected, rel=rounding_bound(numbers, 1.0))


def rounded_replicas() -> dict[str, Tensor]:
    """Return the replicated weights, after stochastic rounding."""
    plan = tiny(["kind=fsdp"], ["bf16-storage:rounding=stochastic", "muon:lr=0.01", "sprint:share=0.5"])
    state = new_state(build_session(plan))
    for step in range(2):
        give_gradients(state, step)
        state.optimizer.update_number = step  # type: ignore[attr-defined]
        state.optimizer.step()
    return {name: p.detach().clone() for name, p in state.modules.named_parameters() if not is_sharded(p)}


def test_copies_stay_the_same_where_rounding_is_random() -> None:
    first, second = run_ranks(2, rounded_replicas)
    assert first and all(torch.equal(first[name], second[name]) for name in first)


WEIGHTS = ((3, torch.float32), (70, torch.float32), (5, torch.bfloat16), (2, torch.float32), (6, torch.float32))
UNUSED, EARLY = 4, 1
"""The weight that has no gradient, and the one that has none in the last micro-batch."""


def gradient_of(index: int, micro: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * index + 10 * micro + rank)
    size, kind = WEIGHTS[index]
    return torch.randn(size, generator=generator).to(kind)


def averaged_in_buckets() -> tuple[list[Tensor | None], list[int]]:
    """Gradients of two micro-batches in small buckets, which fill up in another order on each rank; and their sizes as
    they were sent."""
    weights = [nn.Parameter(torch.zeros(size, dtype=kind)) for size, kind in WEIGHTS]
    world, sent, reduce, room = current(), list[int](), dist.all_reduce, gradients._BUCKET_BYTES

    def noting(flat: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(flat.numel())
        return reduce(flat, *args, **kwargs)

    gradients._BUCKET_BYTES, dist.all_reduce = 32, noting  # type: ignore[assignment]
    try:
        mean = GradientMean(weights, Layout(world))
        for micro in range(2):
            used = [index for index in range(len(WEIGHTS)) if index not in ((UNUSED, EARLY) if micro else (UNUSED,))]
            with mean.over(last=micro == 1):
                for index in used[world.rank :] + used[: world.rank]:
                    weights[index].backward(gradient_of(index, micro, world.rank))
    finally:
        gradients._BUCKET_BYTES, dist.all_reduce = room, reduce
    return [weight.grad for weight in weights], sent


def test_gradients_are_averaged_once_a_step_in_buckets_of_one_order(launch: Launch) -> None:
    for found, sent in launch.averaged:
        assert sent == [6 + 2, 5, 70, 3], "the last weights first, each bucket of one type"
        for index, gradient in enumerate(found):
            if index == UNUSED:
                assert gradient is None
                continue
            ranks = range(launch.size)
            sums = [
                sum(gradient_of(index, micro, rank) for micro in range(1 if index == EARLY else 2)) for rank in ranks
            ]
            exact = torch.stack([torch.as_tensor(one).double() for one in sums]).mean(0).to(WEIGHTS[index][1])
            assert gradient is not None and torch.allclose(
                gradient, exact, rtol=0, atol=rounding_bound(2 * launch.size, 4.0)
            )


MUONS, CUT, COPIED = "denoiser.blocks.0.gate_proj.weight", "denoiser.img_in.weight", "text.word.weight"
"""A matrix of Muon's, one of AdamW's that FSDP cuts, and one that every rank has."""


def rounded_at_random(settings: list[str]) -> tuple[int, dict[str, Tensor]]:
    """The piece of this rank, and what it holds of weights whose numbers all begin alike and have the same step."""
    parts = build_session(tiny(settings, ["bf16-storage:rounding=stochastic", "muon:lr=0.01"]))
    state = new_state(parts)
    give_gradients(state, 0)
    held = {name: parts.modules.get_parameter(name) for name in (MUONS, CUT, COPIED)}
    for weight in held.values():
        assert weight.grad is not None
        local(weight.data).fill_(1.0)
        local(weight.grad).fill_(1.0)
    state.optimizer.step()
    return parts.layout.shard, {name: local(weight.detach()).clone() for name, weight in held.items()}


def test_copies_are_rounded_alike_and_pieces_each_with_its_own_numbers(launch: Launch) -> None:
    for name in (MUONS, CUT, COPIED):
        for piece, held in launch.drawn:
            assert len(held[name].unique()) > 1
            for other, beside in launch.drawn:
                assert torch.equal(held[name], beside[name]) == (name == COPIED or piece == other), name


def what_is_cut(settings: list[str]) -> dict[str, bool]:
    state = new_state(build_session(tiny(settings, ["ema"])))
    give_gradients(state, 0)
    state.optimizer.step()
    return {name: is_sharded(tensor) for name, tensor in state.tensors().items()}


def test_fsdp_cuts_the_denoiser_with_its_moments_and_averages() -> None:
    for found in run_ranks(2, what_is_cut, ["kind=fsdp"]):
        for name, cut in found.items():
            assert cut == ("denoiser." in name and not name.endswith("/step")), name


def types_inside(many: list[list[str]]) -> list[dict[str, str]]:
    """The types of what reaches a block and the time embedding, under autocast, with each of some settings."""
    return [_types_inside(settings) for settings in many]


def _types_inside(settings: list[str]) -> dict[str, str]:
    parts = build_session(tiny_plan(BATCH, "precision.compute=bf16", *settings))
    seen: dict[str, str] = {}
    block = parts.denoiser.blocks[0]
    block.register_forward_pre_hook(lambda module, args: seen.update(weight=str(module.up_proj.weight.dtype)))
    block.register_forward_pre_hook(lambda module, args: seen.update(rotation=str(args[4].dtype)))
    parts.denoiser.register_forward_pre_hook(lambda module, args: seen.update(t=str(args[1].dtype)))
    parts.denoiser.time_in.register_forward_pre_hook(lambda module, args: seen.update(wave=str(args[0].dtype)))
    update(parts, new_state(parts), Clock(parts.device))
    gradient = parts.denoiser.get_parameter("final_layer.linear.weight").grad
    assert gradient is not None
    mean = local(gradient)
    kept = not torch.equal(mean, mean.bfloat16().float())  # each rank's own is of bf16's numbers, their mean is not
    return {**seen, "gradient": str(gradient.dtype), "mean": "exact" if kept else "rounded"}


def test_timesteps_rotations_and_gradients_stay_in_fp32() -> None:
    wanted = dict.fromkeys(("rotation", "t", "wave", "gradient", "weight"), "torch.float32") | {"mean": "exact"}
    fsdp = "run.distribution.kind=fsdp"
    found = run_ranks(2, types_inside, [[], [fsdp], [fsdp, "precision.gather=bf16"]])
    assert found == [[wanted, wanted, wanted | {"weight": "torch.bfloat16"}]] * 2


def first_weights() -> dict[str, Tensor]:
    """Return the weights of a rank whose seeds are its own, as if another processor had drawn them."""
    true = rng.seeded
    setattr(parts_module, "seeded", lambda seed, name: true(seed + current().rank, name))  # noqa: B010
    return {name: tensor.clone() for name, tensor in build_session(tiny()).modules.state_dict().items()}


def test_all_ranks_begin_with_the_weights_of_the_first() -> None:
    first, second = run_ranks(2, first_weights)
    assert all(torch.equal(first[name], second[name]) for name in first)
    expected = build_session(tiny()).modules.state_dict()
    assert all(torch.equal(first[name], expected[name]) for name in first)


def gathered_in_bf16() -> float:
    parts = build_session(tiny(["kind=fsdp"], more=["precision.compute=bf16", "precision.gather=bf16"]))
    state = new_state(parts)
    return [float(update(parts, state, Clock(parts.device)).losses["loss"]) for _ in range(3)][-1]


def test_weights_gathered_in_bf16_give_nearly_the_same() -> None:
    plan = tiny(more=["precision.compute=bf16"])
    parts = build_session(plan)
    state = new_state(parts)
    expected = [float(update(parts, state, Clock(parts.device)).losses["loss"]) for _ in range(3)][-1]
    assert sum(run_ranks(2, gathered_in_bf16)) / 2 == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["precision.gather=bf16"], "gathered in bf16 are computed with in bf16"),
        (["run.distribution.shards=2"], "shards and reshard are for kind fsdp"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(*settings)


@pytest.mark.parametrize(
    ("version", "device", "expected"),
    [("2.11.0+cpu", "cpu", False), ("2.13.0", "cpu", True), ("3.0.1", "cpu", True), ("2.11.0+cu130", "cuda", True)],
)
def test_gathered_weights_stay_on_the_cpu_with_a_torch_that_cannot_release_them(
    version: str, device: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert can_reshard(device) == expected


def test_rows_are_shared_as_fsdp_shares_them() -> None:
    for rows in range(1, 12):
        for pieces in range(1, 6):
            expected = [len(one) for one in torch.arange(rows).chunk(pieces)]
            expected += [0] * (pieces - len(expected))
            assert [rows_of_shard(rows, piece, pieces) for piece in range(pieces)] == expected


def test_a_batch_that_ranks_cannot_share_is_refused() -> None:
    plan = tiny_plan("train.batch=8", "train.accumulate=2")
    assert share_of_batch(plan.train.batch, plan.train.accumulate, World(0, 2)) == 2
    with pytest.raises(
        UserError, match=r"4 samples per micro-batch, which cannot be split evenly over 3 ranks.*a multiple of 6"
    ):
        share_of_batch(plan.train.batch, plan.train.accumulate, World(0, 3))


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        (["kind=fsdp", "shards=2"], [], "shards is 2, but must divide the number of ranks, 3; valid: 1, 3"),
        (
            ["kind=fsdp"],
            ["model.bottleneck=2"],
            "3 shards are too many for the 2 rows of denoiser.img_in.0.weight; choose a number of shards",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(settings: list[str], more: list[str], message: str) -> None:
    with pytest.raises(RankError, match=message):
        run_ranks(3, build_only, settings, more)


def build_only(settings: list[str], more: list[str]) -> None:
    build_session(tiny(settings, more=more))
