"""One, two and three ranks train the same weights, whatever they hold, and go on from each other's checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import RankError, run_ranks
from tests.stopping import train_to
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.train import checkpoint
from tintype.train import parts as parts_module
from tintype.train.clock import Clock
from tintype.train.gradients import clip
from tintype.train.interrupt import Interrupt
from tintype.train.layout import is_cut, local, rows_of_piece, share_of_batch, whole
from tintype.train.loop import train
from tintype.train.optim.muon import MuonSettings
from tintype.train.parts import build_parts
from tintype.train.state import TrainState, new_state
from tintype.train.update import update
from tintype.world import World, current

BATCH = "train.batch=12"
LAYOUTS = {
    "ddp of two": (2, []),
    "ddp of three": (3, []),
    "fsdp of two": (2, ["kind=fsdp"]),
    "fsdp of three, uneven": (3, ["kind=fsdp", "reshard=false"]),
    "hsdp of two by two": (4, ["kind=fsdp", "shards=2"]),
    "hsdp of three copies": (3, ["kind=fsdp", "shards=1"]),
}
CASES: dict[str, tuple[list[str], float]] = {
    "adamw": (["ema:decay=0.8"], 2e-6),
    "muon": (["muon:lr=0.01,weight_decay=0.1", "power-ema:snapshots=2"], 1e-3),
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
        assert train(tiny(settings, techniques), Path(folder) / name, Interrupt()).finished


def final(folder: Path, step: int = 6) -> dict[str, Tensor]:
    return checkpoint.read(checkpoint.folder_of(folder / "checkpoints", step))[0]


def difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest, in weights, averages and moments."""
    assert first.keys() == second.keys()
    assert all(first[name].shape == second[name].shape and first[name].dtype == second[name].dtype for name in first)
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same trainings by one process."""
    folder = tmp_path_factory.mktemp("alone")
    train_cases(str(folder), [])
    return folder


@dataclass(frozen=True)
class Launch:
    """What the ranks of a layout did in one go."""

    size: int
    folder: Path
    muon: list[dict[str, dict[str, Tensor]]]
    norms: list[tuple[float, float]]


@pytest.fixture(scope="module", params=list(LAYOUTS))
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    size, settings = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("ranks")
    found = run_ranks(size, all_at_once, str(folder), settings)
    return Launch(size, folder, [muon for muon, _ in found], [norms for _, norms in found])


def all_at_once(folder: str, settings: list[str]) -> tuple[dict[str, dict[str, Tensor]], tuple[float, float]]:
    """Starting processes takes longer than all of this."""
    train_cases(folder, settings)
    return muon_steps(settings), norms(settings)


def test_ranks_train_what_one_process_trains(launch: Launch, alone: Path) -> None:
    folder = launch.folder
    for name, (_, bound) in CASES.items():
        assert difference(final(alone / name), final(folder / name)) < bound, name
        assert losses(folder / name) == pytest.approx(losses(alone / name), rel=1e-3 if name == "muon" else 1e-5)
        about = json.loads((folder / name / "environment.json").read_text())
        assert about["ranks"] == launch.size
        assert about["parameters"] == json.loads((alone / name / "environment.json").read_text())["parameters"]
    stored, _ = checkpoint.read(checkpoint.folder_of(folder / "muon" / "snapshots", 6))
    expected, _ = checkpoint.read(checkpoint.folder_of(alone / "muon" / "snapshots", 6))
    assert difference(stored, expected) < CASES["muon"][1]


def parts_and_state(settings: Sequence[str], techniques: Sequence[str]) -> TrainState:
    return new_state(build_parts(tiny(settings, techniques)))


def give_gradients(state: TrainState, step: int) -> None:
    """The same to every rank, cut as the weights are."""
    generator = torch.Generator().manual_seed(step)
    for parameter in state.modules.parameters():
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        if is_cut(parameter):
            from torch.distributed.tensor import distribute_tensor

            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]
        parameter.grad = gradient


OPTIMIZERS = {
    "whole": ["muon:lr=0.01,weight_decay=0.1"],
    "by parts": ["muon:lr=0.01,fused=parts,scaling=original,nesterov=false"],
    "without modulation": ["muon:lr=0.01,modulation=false"],
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
            assert difference(expected[name], found[name]) < 1e-6


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
    modules = build_parts(plan).modules
    assert isinstance(plan.optimizer, MuonSettings)
    taken = plan.optimizer.taken(dict(modules.named_parameters()))
    numbers = sum(parameter.numel() for name, parameter in modules.named_parameters() if name in taken)
    batches = len({tuple(sorted(p.shape)) for name, p in modules.named_parameters() if name in taken})
    ranks = run_ranks(2, count_gathers, ["kind=fsdp"])
    assert [calls for rank in ranks for calls, _ in rank] == [2 * batches] * 4
    assert sum(there for (_, there), _ in ranks) == numbers and sum(back for _, (_, back) in ranks) == numbers
    assert all(there > 0.3 * numbers for (_, there), _ in ranks)


def go_on(folder: str, settings: list[str], techniques: list[str]) -> int:
    return train(tiny(settings, techniques), Path(folder), Interrupt()).step


def stop_early(folder: str, settings: list[str], techniques: list[str], step: int) -> None:
    train_to(tiny(settings, techniques), Path(folder), step)


@pytest.mark.parametrize("between", [(3, ["kind=fsdp"]), (2, []), (4, ["kind=fsdp", "shards=2"])])
def test_a_run_goes_on_with_other_ranks(between: tuple[int, list[str]], alone: Path, tmp_path: Path) -> None:
    """One process, then several, then one, each from the checkpoint of the one before."""
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
    assert len(losses(run)) == 6


def test_ranks_go_on_exactly_where_they_stopped(tmp_path: Path) -> None:
    """The same layout again is bit-identical, from pieces too."""
    techniques = CASES["muon"][0]
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
        current().wait()
        piece = checkpoint.folder_of(run / "checkpoints", 6) / "shard-00002-model-00001-of-00001.safetensors"
        if current().leads and harm == "remove":
            piece.unlink()
        elif current().leads:
            content = bytearray(piece.read_bytes())
            content[-5] ^= 1
            piece.write_bytes(content)
        current().wait()
        go_on(str(run), settings, techniques)
        again = final(run)
        same.append(all(torch.equal(whole_one[name], again[name]) for name in whole_one))
    return same


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
    with pytest.raises(checkpoint.DamagedError, match=r"does not know shard-00099"):
        checkpoint.read(tmp_path / "more")
    if json.loads((launch.folder / "adamw" / "environment.json").read_text())["copies"] == 1 and launch.size == 3:
        shutil.copytree(stored, tmp_path / "fewer")
        manifest = json.loads((tmp_path / "fewer" / "manifest.json").read_text())
        gone = "shard-00002-model-00001-of-00001.safetensors"
        del manifest["sha256"][gone]
        (tmp_path / "fewer" / gone).unlink()
        (tmp_path / "fewer" / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(OSError, match="do not make up a whole"):
            checkpoint.read(tmp_path / "fewer")


def spoil_one_rank(settings: list[str]) -> tuple[bool, bool]:
    """A loss that is not finite on rank 1 only: whether the step counts as finite, and whether all weights stayed."""
    parts = build_parts(tiny(settings))
    state = new_state(parts)
    clock = Clock(parts.device)
    update(parts, state, clock)
    before = {name: local(p.detach()).clone() for name, p in parts.modules.named_parameters()}
    if current().rank == 1:
        parts.denoiser.final_layer.register_forward_hook(lambda module, args, out: out * float("nan"))
    result = update(parts, state, clock)
    same = all(torch.equal(local(p.detach()), before[name]) for name, p in parts.modules.named_parameters())
    return result.finite, same


@pytest.mark.parametrize("layout", ["ddp of two", "fsdp of two"])
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(layout: str) -> None:
    size, settings = LAYOUTS[layout]
    assert run_ranks(size, spoil_one_rank, settings) == [(False, True)] * size


def norms(settings: list[str]) -> tuple[float, float]:
    parts = build_parts(tiny(settings))
    state = new_state(parts)
    give_gradients(state, 0)
    before = float(clip(state.parameters, 0.5, parts.layout))
    return before, float(clip(state.parameters, None, parts.layout))


def test_the_norm_is_that_of_all_pieces_and_is_clipped_once(launch: Launch) -> None:
    expected = norms([])
    assert expected[1] == pytest.approx(0.5, rel=1e-5)
    for found in launch.norms:
        assert found == pytest.approx(expected, rel=1e-6)


def rounded_replicas() -> dict[str, Tensor]:
    """What every rank has a copy of, after stochastic rounding."""
    plan = tiny(["kind=fsdp"], ["bf16-storage:rounding=stochastic", "muon:lr=0.01", "sprint:share=0.5"])
    state = new_state(build_parts(plan))
    for step in range(2):
        give_gradients(state, step)
        state.optimizer.update_number = step  # type: ignore[attr-defined]
        state.optimizer.step()
    return {name: p.detach().clone() for name, p in state.modules.named_parameters() if not is_cut(p)}


def test_copies_stay_the_same_where_rounding_is_random() -> None:
    first, second = run_ranks(2, rounded_replicas)
    assert first and all(torch.equal(first[name], second[name]) for name in first)


def what_is_cut(settings: list[str]) -> dict[str, bool]:
    state = new_state(build_parts(tiny(settings, ["ema"])))
    give_gradients(state, 0)
    state.optimizer.step()
    return {name: is_cut(tensor) for name, tensor in state.tensors().items()}


def test_fsdp_cuts_the_denoiser_with_its_moments_and_averages() -> None:
    for found in run_ranks(2, what_is_cut, ["kind=fsdp"]):
        for name, cut in found.items():
            assert cut == ("denoiser." in name and not name.endswith("/step")), name


def types_inside(settings: list[str]) -> dict[str, str]:
    """The types of what reaches a block and the time embedding, under autocast."""
    parts = build_parts(tiny(settings, more=["precision.compute=bf16"]))
    seen: dict[str, str] = {}
    block = parts.denoiser.blocks[0]
    block.register_forward_pre_hook(lambda module, args: seen.update(rotation=str(args[4].dtype)))
    parts.denoiser.register_forward_pre_hook(lambda module, args: seen.update(t=str(args[1].dtype)))
    parts.denoiser.time_in.register_forward_pre_hook(lambda module, args: seen.update(wave=str(args[0].dtype)))
    update(parts, new_state(parts), Clock(parts.device))
    gradient = parts.denoiser.blocks[0].get_parameter("up_proj.weight").grad
    return {**seen, "gradient": str(gradient.dtype if gradient is not None else None)}


def test_timesteps_rotations_and_gradients_stay_in_fp32() -> None:
    wanted = dict.fromkeys(("rotation", "t", "wave", "gradient"), "torch.float32")
    for settings in (["kind=fsdp"], []):
        assert run_ranks(2, types_inside, settings) == [wanted] * 2


def first_weights() -> dict[str, Tensor]:
    """Of a rank whose seeds are its own, as if another processor had drawn them."""
    true = parts_module.seeded
    parts_module.seeded = lambda seed, name: true(seed + current().rank, name)
    return {name: tensor.clone() for name, tensor in build_parts(tiny()).modules.state_dict().items()}


def test_all_ranks_begin_with_the_weights_of_the_first() -> None:
    first, second = run_ranks(2, first_weights)
    assert all(torch.equal(first[name], second[name]) for name in first)
    expected = build_parts(tiny()).modules.state_dict()
    assert all(torch.equal(first[name], expected[name]) for name in first)


def gathered_in_bf16() -> float:
    parts = build_parts(tiny(["kind=fsdp"], more=["precision.compute=bf16", "precision.gather=bf16"]))
    state = new_state(parts)
    return [float(update(parts, state, Clock(parts.device)).losses["loss"]) for _ in range(3)][-1]


def test_weights_gathered_in_bf16_give_nearly_the_same() -> None:
    plan = tiny(more=["precision.compute=bf16"])
    parts = build_parts(plan)
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


def test_rows_are_shared_as_fsdp_shares_them() -> None:
    for rows in range(1, 12):
        for pieces in range(1, 6):
            expected = [len(one) for one in torch.arange(rows).chunk(pieces)]
            expected += [0] * (pieces - len(expected))
            assert [rows_of_piece(rows, piece, pieces) for piece in range(pieces)] == expected


def test_a_batch_that_ranks_cannot_share_is_refused() -> None:
    plan = tiny_plan("train.batch=8", "train.accumulate=2")
    assert share_of_batch(plan.train, World(0, 2)) == 2
    with pytest.raises(UserError, match=r"4 samples at a time, which 3 ranks cannot share evenly.*a multiple of 6"):
        share_of_batch(plan.train, World(0, 3))


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        (["kind=fsdp", "shards=2"], [], "shards is 2, which does not divide the 3 ranks; valid: 1, 3"),
        (
            ["kind=fsdp"],
            ["model.bottleneck=2"],
            "3 ranks cannot share the 2 rows of denoiser.img_in.0.weight; set it to 2",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(settings: list[str], more: list[str], message: str) -> None:
    with pytest.raises(RankError, match=message):
        run_ranks(3, build_only, settings, more)


def build_only(settings: list[str], more: list[str]) -> None:
    build_parts(tiny(settings, more=more))
