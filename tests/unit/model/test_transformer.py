from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.bounds import distance, network_bound
from tintype.model import Transformer
from tintype.model.islands import attend
from tintype.model.transformer import _put_back
from tintype.seams import Output, Route, Tapped, TextTokens
from tintype.settings import ModelSettings

SETTINGS = ModelSettings(depth=3, width=32, heads=2, mlp_ratio=2.0, patch=2)
CHANNELS, TEXT = 4, 12


def random_model(settings: ModelSettings = SETTINGS) -> Transformer:
    """Every parameter random, the zero-initialised ones too, so that nothing is hidden."""
    torch.manual_seed(0)
    model = Transformer(settings, CHANNELS, TEXT)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def inputs(batch: int = 3, side: int = 8) -> tuple[Tensor, Tensor, TextTokens]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, CHANNELS, side, side, generator=generator)
    tokens = torch.randn(batch, 5, TEXT, generator=generator)
    mask = torch.arange(5)[None, :] < torch.tensor([5, 2, 1])[:batch, None]
    return x, torch.linspace(0.1, 0.9, batch), TextTokens(tokens, mask)


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("bottleneck", [None, 6])
@pytest.mark.parametrize("resolution", [False, True])
def test_equals_diffusers_with_the_same_weights(bottleneck: int | None, resolution: bool) -> None:
    diffusers = pytest.importorskip("diffusers")
    model = random_model(SETTINGS.model_copy(update={"bottleneck": bottleneck, "resolution_embeds": resolution}))
    theirs = diffusers.PRXTransformer2DModel(
        in_channels=CHANNELS,
        patch_size=2,
        context_in_dim=TEXT,
        hidden_size=32,
        mlp_ratio=2.0,
        num_heads=2,
        depth=3,
        axes_dim=[8, 8],
        bottleneck_size=bottleneck,
        resolution_embeds=resolution,
    )
    assert set(theirs.state_dict()) == set(model.state_dict())
    theirs.load_state_dict(model.state_dict())
    x, t, text = inputs()
    x = x[:, :, :, :6]  # height and width differ
    with torch.no_grad():
        ours = model(x, t, text).prediction_BCHW
        expected = theirs(x, t, text.tokens_BLC, text.mask_BL).sample
    assert distance(ours, expected) < network_bound(model, expected)
    assert float(expected.abs().max()) > 0.1


def test_the_small_prx_has_its_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Transformer(ModelSettings(), 16, 2304)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_170_691_648


@pytest.mark.usefixtures("other_rounding")
def test_padding_is_never_seen() -> None:
    model, (x, t, text) = random_model(), inputs()
    noisy = text.tokens_BLC + 100 * (~text.mask_BL)[:, :, None]
    with torch.no_grad():
        clean, dirty = model(x, t, text), model(x, t, TextTokens(noisy, text.mask_BL))
    assert torch.equal(clean.prediction_BCHW, dirty.prediction_BCHW), "a weight of zero is exact"


def test_cached_text_gives_the_same_prediction() -> None:
    model, (x, t, text) = random_model(), inputs()
    with torch.no_grad():
        assert torch.equal(model(x, t, text).prediction_BCHW, model(x, t, model.read_text(text)).prediction_BCHW)


def test_the_untrained_model_predicts_zero() -> None:
    x, t, text = inputs()
    assert Transformer(SETTINGS, CHANNELS, TEXT)(x, t, text).prediction_BCHW.abs().max() == 0


def test_half_precision_timesteps_are_refused() -> None:
    x, t, text = inputs()
    with pytest.raises(TypeError, match="float32"):
        random_model()(x, t.bfloat16(), text)


def test_close_timesteps_stay_apart_under_autocast() -> None:
    """bf16 cannot tell 0.9001 from 0.9: the sinusoid must be taken in fp32."""
    model = random_model()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        near = [model._embed_time(torch.full((1,), value)) for value in (0.9000, 0.9001, 0.9005)]
    assert not torch.equal(near[0], near[1]) and not torch.equal(near[1], near[2])


def all_kept(x: Tensor) -> Tensor:
    return torch.arange(16).expand(len(x), -1)


def predict(model: Transformer, route: Route | None, taps: tuple[int, ...] = ()) -> Output:
    x, t, text = inputs()
    with torch.no_grad():
        output: Output = model(x, t, text, route=route, taps=taps)
    return output


def test_a_route_that_keeps_all_tokens_is_the_dense_model() -> None:
    model = random_model()
    routed = predict(model, Route(1, 2, all_kept(inputs()[0])))
    assert torch.equal(routed.prediction_BCHW, predict(model, None).prediction_BCHW)


@pytest.mark.usefixtures("other_rounding")
def test_kept_tokens_may_come_in_any_order() -> None:
    """Rotations follow their tokens, and tokens come back to their place."""
    model = random_model()
    shuffled = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    routed, dense = predict(model, Route(0, 3, shuffled)).prediction_BCHW, predict(model, None).prediction_BCHW
    assert distance(routed, dense) < network_bound(model, dense)


def test_routing_every_token_around_a_block_removes_the_block() -> None:
    model = random_model()
    routed = predict(model, Route(1, 2, torch.empty(3, 0, dtype=torch.int64)))
    del model.blocks[1]
    assert torch.equal(routed.prediction_BCHW, predict(model, None).prediction_BCHW)


def test_a_route_without_a_list_of_tokens_keeps_all_and_can_still_merge_them() -> None:
    model = random_model()
    dense = predict(model, None).prediction_BCHW
    assert torch.equal(predict(model, Route(1, 2, None)).prediction_BCHW, dense)
    first = predict(model, Route(1, 2, None, lambda whole, inside, kept: whole)).prediction_BCHW
    del model.blocks[1]
    assert torch.equal(first, predict(model, None).prediction_BCHW)


def test_the_size_of_the_latents_matters_to_a_model_that_is_told() -> None:
    x, t, text = inputs()
    told, plain = random_model(SETTINGS.model_copy(update={"resolution_embeds": True})), random_model()
    vectors = [told.resolution_embedder(height, 8, t) for height in (8, 12)]  # type: ignore[misc]
    assert not torch.allclose(*vectors)
    assert not torch.allclose(told(x, t, text).prediction_BCHW, plain(x, t, text).prediction_BCHW)


def test_the_embedding_of_the_size_leaves_the_other_weights_alone() -> None:
    models = []
    for embeds in (False, True):
        torch.manual_seed(0)
        models.append(Transformer(SETTINGS.model_copy(update={"resolution_embeds": embeds}), CHANNELS, TEXT))
    told = models[1].state_dict()
    assert all(torch.equal(told[name], tensor) for name, tensor in models[0].state_dict().items())


def test_taps_return_features_and_which_tokens_they_are() -> None:
    model, kept = random_model(), torch.tensor([[0, 3], [5, 1], [2, 9]])
    output = predict(model, Route(1, 2, kept), taps=(0, 1, 2))
    assert {block: features.shape[1] for block, features in output.features.items()} == {0: 16, 1: 2, 2: 16}
    inside = output.tokens_at(1)
    assert output.tokens_at(0) is None and inside is not None and torch.equal(inside, kept)
    assert output.tokens_at(2) is None


@pytest.mark.parametrize("route", [None, (0, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize("taps", [(0,), (1,), (2,), (0, 1)])
def test_only_the_blocks_up_to_the_last_tap_run_where_nothing_else_is_asked(
    taps: tuple[int, ...], route: tuple[int, int] | None
) -> None:
    model, (x, t, text), kept = random_model(), inputs(), torch.tensor([[0, 3], [5, 1], [2, 9]])
    way = None if route is None else Route(*route, kept)
    whole = predict(model, way, taps)
    ran: list[int] = []
    for index, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, index=index: ran.append(index))
    tapped = model(x, t, text, route=way, taps=taps, only_taps=True)
    assert isinstance(tapped, Tapped) and tapped.features.keys() == whole.features.keys()
    assert all(torch.equal(tapped.features[block], whole.features[block]) for block in taps)
    assert ran == list(range(max(taps) + 1))
    assert all((tapped.tokens_at(tap) is None) == (whole.tokens_at(tap) is None) for tap in taps)


def test_tapped_attention_is_that_of_the_block_among_image_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries and keys that the block's own attention gets, those of the text left out; the prediction stays."""
    model, (x, t, text) = random_model(), inputs()
    plain = model(x, t, text, route=Route(1, 2, all_kept(x)[:, :5])).prediction_BCHW
    seen: list[Tensor] = []

    def spy(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, softmax: str) -> Tensor:
        image = key[:, :, text.mask_BL.shape[1] :]
        seen.append(torch.einsum("bhqd,bhkd->bhqk", query.double(), image.double()) / query.shape[-1] ** 0.5)
        return attend(query, key, value, mask, softmax)

    monkeypatch.setattr("tintype.model.attention.attend", spy)
    output = model(x, t, text, route=Route(1, 2, all_kept(x)[:, :5]), attention_taps=frozenset({0, 1}))
    assert torch.equal(output.prediction_BCHW, plain) and set(output.attention) == {0, 1}
    for index, logits in output.attention.items():
        assert logits.shape == seen[index].shape and logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), seen[index], rtol=1e-5, atol=1e-5)
    output.attention[1].square().sum().backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert bool(gradients["blocks.1.attention.norm_q.weight"].any())


def test_skipped_tokens_and_their_gradients_pass_unchanged() -> None:
    model, (x, t, text) = random_model(), inputs()
    kept = torch.tensor([[0], [1], [2]])
    merged: list[Tensor] = []

    def note(whole: Tensor, inside: Tensor, kept_BK: Tensor | None) -> Tensor:
        merged.append(_put_back(whole, inside, kept_BK))
        return merged[0]

    output = model(x, t, text, route=Route(1, 2, kept, note), taps=(0, 1))
    before, behind = output.features[0], merged[0]
    gradient = torch.autograd.grad(output.prediction_BCHW.sum(), [before, behind])
    skipped = torch.ones(3, 16, dtype=torch.bool).scatter(1, kept, False)
    assert torch.equal(before[skipped], behind[skipped]) and output.features[1].shape[1] == 1
    assert torch.equal(gradient[0][skipped], gradient[1][skipped]) and bool(gradient[0][skipped].any())
    assert not torch.equal(gradient[0][~skipped], gradient[1][~skipped])
    plain = model(x, t, text, route=Route(1, 2, kept)).prediction_BCHW
    assert torch.equal(plain, output.prediction_BCHW)


def test_recomputing_activations_changes_nothing() -> None:
    x, t, text = inputs()
    gradients = []
    for recompute in (False, True):
        model = random_model(SETTINGS.model_copy(update={"activation_checkpointing": recompute}))
        model(x, t, text).prediction_BCHW.square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)


def test_latents_that_do_not_fit_the_patch_are_refused() -> None:
    _, t, text = inputs()
    with pytest.raises(ValueError, match="patches"):
        random_model()(torch.zeros(3, CHANNELS, 7, 8), t, text)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, when dynamo is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_routed_steps_compile_once_for_each_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph breaks, and nothing new to compile when only the choice of the tokens changes."""
    from torch._dynamo.utils import counters

    compile_block = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **how: compile_block(self, backend="eager", **how))
    torch._dynamo.reset()
    counters.clear()
    model, (x, t, text) = random_model(SETTINGS.model_copy(update={"compile": True})), inputs()
    graphs = []
    for step in range(4):
        kept = torch.stack(
            [torch.randperm(16, generator=torch.Generator().manual_seed(9 * step + i))[:8] for i in range(3)]
        )
        model(x, t, text, route=Route(1, 2, kept)).prediction_BCHW.sum().backward()
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [2, 2, 2, 2] and not counters["graph_break"]
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, when dynamo is imported
def test_more_shapes_are_compiled_than_torch_allows_by_itself() -> None:
    """Past the limit torch runs a block uncompiled, with no more than a line in the log."""
    Transformer(SETTINGS.model_copy(update={"compile": True}), CHANNELS, TEXT)
    assert torch._dynamo.config.recompile_limit >= 64


def test_rotations_of_many_shapes_stay_where_graphs_read_them() -> None:
    """A graph keeps the address of the table alone: memory that was freed would give it other angles."""
    model, cpu = random_model(), torch.device("cpu")
    first = model._rotation(2, 3, cpu).data_ptr()
    kept = [model._rotation(2, columns, cpu) for columns in range(4, 100)]
    assert model._rotation(2, 3, cpu).data_ptr() == first and len({one.data_ptr() for one in kept}) == len(kept)
