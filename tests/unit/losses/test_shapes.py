"""Losses and routes on images of several shapes: each shape against the formula, and whole runs in buckets and stages.

B: samples. C: channels. H, W: rows, columns. L: tokens. D, T: widths of denoiser and teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, normalize

from tests.bounds import distance, network_bound
from tests.slow import third
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_dino import FOLDER, REGISTERS, dino_model, write_dino
from tests.tiny_perceptual import view_of, write_alexnet
from tests.tiny_store import image_file, imported, parquet_of
from tests.tiny_tuning import BASELINE, NO_PERCEPTUAL, write_small_vae
from tests.unit.losses.alignment_views import CPU, WIDTH, normal
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.data.sources import forget_sources
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.flow.sprint import group_side
from tintype.losses.alignment import AlignmentTerm
from tintype.losses.irepa import IrepaSettings, spatially_normalised
from tintype.losses.lpips import LpipsLossSettings, shrunk_sides
from tintype.losses.perceptual import PerceptualTerm
from tintype.losses.perceptual_dino import PerceptualDinoSettings, patch_grid
from tintype.losses.repa import RepaSettings
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Draws, LossContext, LossInputs, Output, Sample
from tintype.tokenizers.pixels import Pixels
from tintype.train import checkpoint
from tintype.train.loop import train
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.lpips import load_lpips
from tintype.vision.scene_encoder import SceneTeacherSettings

SQUARE, TOKEN_PX = (4, 4), 4
GRIDS = [(4, 4), (3, 5), (5, 3), (2, 2)]
"""A square, two buckets, and an earlier stage."""
RUNS = ("stopped", "whole")
STAGES = "resolution-stages:sizes=[16],until=[3]"


def context(
    grids: Sequence[tuple[int, int]] = (), stage_grids: Sequence[Sequence[tuple[int, int]]] = ()
) -> LossContext:
    data = ScenesSettings(size_px=16, count=24, max_objects=2)
    source, stages = SceneSource(data, "train", CPU), tuple(map(tuple, stage_grids))
    return LossContext(WIDTH, SQUARE, CPU, source, data.model_dump_json(), TOKEN_PX, tuple(grids), stages)


def images(grid: tuple[int, int], count: int = 2, seed: int = 3) -> Tensor:
    shape = (count, 3, grid[0] * TOKEN_PX, grid[1] * TOKEN_PX)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def inputs(token_BLD: Tensor, image_BCHW: Tensor, seen_BLT: Tensor) -> LossInputs:
    x = torch.zeros(image_BCHW.shape)
    sample = Sample(x, x, torch.zeros(len(x)), x)
    draws = Draws(0, torch.arange(len(x)))
    return LossInputs(Output(x, {1: token_BLD}, None), sample, x, x, None, image_BCHW, [""], draws, 0, seen_BLT)


def minus_cosine(a_BLT: Tensor, b_BLT: Tensor) -> Tensor:
    return -(normalize(a_BLT.double(), dim=-1) * normalize(b_BLT.double(), dim=-1)).sum(-1).mean(1)


def looked(one: AlignmentTerm, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens of the denoiser, those of the teacher, and the term's loss of them."""
    image_BCHW = images(grid)
    token_BLD = normal(2, grid[0] * grid[1], WIDTH, seed=grid[0])
    seen_BLT = one.look(image_BCHW, [1, 2])
    return token_BLD, seen_BLT, one.loss(inputs(token_BLD, image_BCHW, seen_BLT))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", ["scenes", "dinov2"])
def test_a_teacher_of_another_grid_is_one_that_was_built_for_it(kind: str, grid: tuple[int, int]) -> None:
    part = SceneTeacherSettings() if kind == "scenes" else Dinov2TeacherSettings(source=str(write_dino()))
    moved, built = part.build(SQUARE, CPU).at_grid(grid), part.build(grid, CPU)
    assert (moved.identity, moved.definition, moved.grid) == (built.identity, built.definition, grid)
    assert torch.equal(moved.tokens(images(grid)), built.tokens(images(grid)))
    assert moved.tokens(images(grid)).shape == (2, grid[0] * grid[1], built.width)


@torch.no_grad()
def test_repa_compares_each_shape_with_the_tokens_of_its_own_grid() -> None:
    torch.manual_seed(0)
    one = RepaSettings(block=2, hidden=16, teacher=Dinov2TeacherSettings(source=str(write_dino()))).build(context())
    one.ready()
    for grid in GRIDS:
        token_BLD, seen_BLT, loss_B = looked(one, grid)
        size = (grid[0] * 14, grid[1] * 14)
        small = interpolate(images(grid).double(), size, mode="bicubic", antialias=True).clamp(0, 255) / 255
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        wanted_BLT = dino_model()(((small - mean) / std).float()).last_hidden_state[:, 1 + REGISTERS :]
        assert distance(seen_BLT, wanted_BLT) < network_bound(dino_model(), wanted_BLT)
        torch.testing.assert_close(
            loss_B.double(), minus_cosine(one.projector(token_BLD), wanted_BLT), atol=1e-5, rtol=1e-4
        )


@torch.no_grad()
def test_irepa_convolves_over_the_grid_of_each_shape() -> None:
    torch.manual_seed(0)
    one = IrepaSettings(block=2, teacher=SceneTeacherSettings()).build(context())
    one.ready()
    weight, bias = (one.projector.get_parameter(part).double() for part in ("weight", "bias"))
    for rows, columns in GRIDS:
        token_BLD, seen_BLT, loss_B = looked(one, (rows, columns))
        map_BDHW = token_BLD.double().transpose(1, 2).reshape(2, WIDTH, rows, columns)
        wanted_BLT = conv2d(map_BDHW, weight, bias, padding=1).flatten(2).transpose(1, 2)
        exact_B = minus_cosine(wanted_BLT, spatially_normalised(seen_BLT.double(), 0.6))
        torch.testing.assert_close(loss_B.double(), exact_B, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_cached_tokens_of_several_shapes_share_rows_and_are_those_that_are_not_cached(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Image 1 is square, image 2 is not, as in a bucket; images 3 to 6 are a stage's, smaller, too.

    Image 7 has a grid in the stage that images of another bucket have in the last one.
    """
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path))
    options = {"block": 2, "hidden": 16, "teacher": SceneTeacherSettings()}
    place = context(GRIDS[:3], [[(2, 2), (2, 3), (3, 5)]])
    cached = RepaSettings(**options, cache=cache).build(place)  # type: ignore[arg-type]
    live = RepaSettings(**options).build(context())  # type: ignore[arg-type]
    for one in (cached, live):
        one.ready()
    seen = [(1, (4, 4)), (2, (3, 5)), (3, (2, 2)), (4, (5, 3)), (5, (2, 2)), (6, (2, 3)), (6, (4, 4))]
    for id_, grid in [*seen, (7, (3, 5)), (7, (5, 3))]:
        for _ in range(2):
            found = cached.look(images(grid, 1), [id_])
            torch.testing.assert_close(found, live.look(images(grid, 1), [id_]), rtol=2**-10, atol=1e-4)
    rows = {grid: one.rows for grid, one in cached._caches.items()}
    assert rows[4, 4] is rows[5, 3] and rows[2, 2] is rows[2, 3] and rows[2, 2].shape[1] == 6
    assert rows[3, 5] not in (rows[4, 4], rows[2, 2]), "its images may have another grid in another stage"
    for grids, token_px, hidden in (
        (GRIDS[:2], TOKEN_PX, (3, 5)),
        (GRIDS[:3], 8, (3, 5)),
        (GRIDS[:3], TOKEN_PX, (5, 3)),
    ):
        other = context(grids, [[(2, 2), (2, 3), hidden]])
        apart = RepaSettings(**options, cache="memory").build(replace(other, token_px=token_px))  # type: ignore[arg-type]
        apart.ready()
        assert apart._cache((2, 2)).rows is not rows[2, 2], "in other buckets an image has another shape"
        apart.release()
    cached.release()


def smooth(height: int, width: int, seed: int) -> Tensor:
    coarse = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return (interpolate(coarse, (height, width), mode="bilinear") * 255).to(torch.uint8)


@torch.no_grad()
@pytest.mark.parametrize(("height", "width", "rows", "columns"), [(32, 32, 4, 4), (24, 40, 3, 5), (64, 16, 8, 2)])
def test_perceptual_dino_keeps_the_proportions_of_an_image(height: int, width: int, rows: int, columns: int) -> None:
    term = PerceptualTerm(PerceptualDinoSettings(source=str(write_dino()), size_px=56), CPU)
    term.ready()
    image, predicted = smooth(height, width, 0), Pixels().encode(smooth(height, width, 1))
    mean, std = (torch.tensor(v).double().view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def patches(x_BCHW: Tensor) -> Tensor:
        small = interpolate(x_BCHW.double(), (rows * 14, columns * 14), mode="bilinear", antialias=True)
        token_BLD: Tensor = dino_model().double()(((small + 1) / 2 - mean) / std).last_hidden_state
        return token_BLD[:, 1 + REGISTERS :]

    wanted_B = 1 + minus_cosine(patches(predicted), patches(Pixels().encode(image)))
    torch.testing.assert_close(term.loss(view_of(predicted, image)).double(), wanted_B, atol=1e-5, rtol=1e-4)
    assert patch_grid(height, width, 4) == (rows, columns)


def test_the_patches_of_every_shape_are_about_as_many() -> None:
    assert all(patch_grid(px, px, 16) == (16, 16) for px in (16, 224, 1024))
    for width in range(256, 1025, 32):
        rows, columns = patch_grid(512, width, 16)
        assert abs(rows * columns - 256) <= 20 and abs(rows / columns - 512 / width) < 0.1 * 512 / width


@torch.no_grad()
def test_lpips_of_an_oblong_image_is_that_of_the_image_shrunk_in_proportion() -> None:
    term = PerceptualTerm(LpipsLossSettings(net="alexnet", weights=str(write_alexnet()), largest_px=64), CPU)
    term.ready()
    network = load_lpips("alexnet", weights=str(write_alexnet()))
    for height, width, sides in ((96, 64, (64, 43)), (48, 96, (32, 64)), (40, 64, (40, 64))):
        predicted, true = (Pixels().encode(smooth(height, width, seed)) for seed in (1, 0))
        wanted_B = network(*(interpolate(x, sides, mode="bilinear", antialias=True) for x in (predicted, true)))
        found_B = term.loss(view_of(predicted, smooth(height, width, 0)))
        torch.testing.assert_close(found_B, wanted_B, atol=1e-5, rtol=1e-4)
        assert shrunk_sides(height, width, 64) == sides


def test_lpips_refuses_a_shape_whose_short_side_is_too_small() -> None:
    wide = ["data.kind=store", "data.path=DIR", "data.size_px=64", "data.buckets=[[64,64],[24,128]]"]
    with pytest.raises(UserError, match=r"at least 31 px, but the shortest side of 24 × 128, .* is 24"):
        tiny_plan(*wide, techniques=["x-prediction", "lpips:net=alexnet"])


TECHNIQUES = {
    "repa": ["repa:teacher=scenes,hidden=8"],
    "repa-memory": ["repa:teacher=scenes,hidden=8,cache=memory"],
    "irepa": ["irepa:teacher=scenes"],
    "repa-tread": ["tread", "repa:teacher=scenes,hidden=8"],
    "sprint": ["sprint"],
    "sprint-random": ["sprint:sampling=random", "repa:teacher=scenes,hidden=8"],
    "repa-e": [NO_PERCEPTUAL],
    "perceptual-dino": ["x-prediction", f"perceptual-dino:source={FOLDER},size_px=28"],
    "lpips": ["x-prediction", "lpips:net=alexnet,weights={alexnet}"],
}


def plan_of(name: str, *more: str, stages: bool = False) -> Plan:
    forget_sources()
    write_dino()
    techniques = [text.format(alexnet=write_alexnet()) for text in TECHNIQUES[name]]
    if name == "repa-e":
        write_small_vae()
        more = (*BASELINE, *more)
    return tiny_plan(*more, techniques=[*([STAGES] if stages else []), *techniques])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    sizes = [(72, 72), (216, 72), (72, 216)]
    pictures = [image_file(index, sizes[index % 3]) for index in range(18)]
    table = parquet_of(tmp_path / "a.parquet", pictures, caption=[f"number {index}" for index in range(18)])
    imported(table, tmp_path / "store", ImportOptions(eval_share=0))
    return tmp_path / "store"


def trained_shapes(plan: Plan) -> set[tuple[int, int]]:
    """Train the plan; return the shapes of the latents that the denoiser saw."""
    parts = build_session(plan)
    parts.ready()
    state, seen = new_state(parts), set()
    parts.denoiser.register_forward_pre_hook(lambda module, args: seen.add(tuple(args[0].shape[2:])))
    for _ in range(plan.train.steps):
        assert update(parts, state, Clock(CPU)).finite
    return seen


@pytest.mark.parametrize("name", TECHNIQUES)
def test_it_trains_on_every_bucket(name: str, store: Path) -> None:
    size_px, buckets = 16, "[[16,16],[8,24],[24,8]]"
    if name == "lpips":  # which takes no side below 31 px
        size_px, buckets = 64, "[[64,64],[32,96],[96,32]]"
    data = f'data={{"kind":"store","path":"{store}","size_px":{size_px},"buckets":{buckets}}}'
    plan = plan_of(name, data)
    seen = trained_shapes(plan)
    stride = 4 if name == "repa-e" else 1
    assert seen == {(height // stride, width // stride) for height, width in plan.data.shapes}


@pytest.mark.parametrize("name", third([name for name in TECHNIQUES if name != "lpips"]))
def test_it_trains_across_stages_and_resumes_as_if_it_had_not_stopped(name: str, tmp_path: Path) -> None:
    plan = plan_of(name, "data.size_px=32", stages=True)
    stride = 4 if name == "repa-e" else 1
    assert trained_shapes(plan) == {(16 // stride, 16 // stride), (32 // stride, 32 // stride)}
    stop_and_go_on(plan, tmp_path / "stopped", 4)
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    stopped, whole = (checkpoint.read(checkpoint.folder_of(tmp_path / run / "checkpoints", 6))[0] for run in RUNS)
    assert stopped.keys() == whole.keys() and all(torch.equal(stopped[key], whole[key]) for key in whole)


def test_sprint_refuses_a_bucket_that_its_squares_do_not_fill() -> None:
    wide = ["data.kind=store", "data.path=DIR", "data.buckets=[[16,16],[12,20]]"]
    side = group_side(0.75)
    with pytest.raises(UserError, match=rf"sprint: 3 × 5 tokens cannot be divided into squares of {side} × {side}"):
        tiny_plan(*wide, techniques=["sprint"])
    tiny_plan(*wide, techniques=["sprint:sampling=random"])


def test_irepa_refuses_a_stage_of_one_token() -> None:
    with pytest.raises(UserError, match="irepa: images with a single token have no spatial structure"):
        tiny_plan("data.size_px=32", "model.patch=16", techniques=[STAGES, "irepa:teacher=scenes"])
