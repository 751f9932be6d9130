"""Weights from outside are those that were pinned, or those of the first use; anything else is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import tiny_autoencoders, tiny_text
from tests.fault.promises import Promise
from tests.tiny import tiny_plan
from tests.tiny_clip import write_clip
from tests.tiny_dino import SIZE_PX, write_dino
from tests.tiny_vae import write_tiny_vae
from tintype.errors import UserError
from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.pretrained import first_use
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.weights import Known, Url, fetch
from tintype.text.published import MiniLmSettings
from tintype.tokenizers.small_vae import SmallVaeSettings
from tintype.vision.clip import ClipSettings
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.part import COMMITS

transformers = pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore:The `local_dir_use_symlinks` argument")  # diffusers still gives it

CPU = torch.device("cpu")
FIRST, SECOND = "a" * 40, "b" * 40


@dataclass(frozen=True)
class Hub:
    """Cache of the hub, as downloads leave it; there is no network."""

    root: Path

    def publish(self, repo: str, commit: str, folder: Path, branch: str = "main") -> Path:
        """Put the files of a folder into a repository as a commit, the newest one of a branch."""
        place = self.root / f"models--{repo.replace('/', '--')}"
        snapshot = Path(shutil.copytree(folder, place / "snapshots" / commit))
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / branch).write_text(commit)
        return snapshot


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "tintype"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return Hub(tmp_path / "hub")


def write_teacher(folder: Path) -> Path:
    """A folder with a tiny DINOv2 and what it says of its input."""
    shutil.copytree(write_dino(), folder, dirs_exist_ok=True)
    about = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.2, 0.2, 0.2]}
    (folder / "preprocessor_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


def teacher(repo: str, **settings: Any) -> object:
    return Dinov2TeacherSettings(source=repo, **settings).build((2, 2), CPU)


def encoder(repo: str, **settings: Any) -> object:
    made: Any = ClipSettings(source=repo, **settings)._make(CPU)
    return made.encode_text(["a red ball"])


def text(repo: str, **settings: Any) -> object:
    return MiniLmSettings(weights=repo, max_tokens=8, **settings).build(CPU)


def tokenizer(repo: str, **settings: Any) -> object:
    given = {**tiny_autoencoders.chosen("taef1"), "weights": repo, **settings}
    said = ", ".join(f"{key}: {value}" for key, value in given.items())
    return tiny_plan(f"tokenizer={{{said}}}", "model.patch=2").tokenizer.build(CPU)


def loss(repo: str, **settings: Any) -> object:
    return PerceptualDinoSettings(source=repo, size_px=SIZE_PX, **settings).load(CPU)


LOADERS: dict[str, tuple[Callable[..., object], Callable[[Path], Path]]] = {
    "teacher": (teacher, write_teacher),
    "encoder": (encoder, write_clip),
    "text": (text, lambda folder: tiny_text.write_text_encoder("minilm")),
    "tokenizer": (tokenizer, lambda folder: tiny_autoencoders.write_autoencoder("taef1")),
    "loss": (loss, lambda folder: write_dino()),
}


def other_weights(folder: Path) -> None:
    file = next(folder.glob("*.safetensors"))
    save_file({name: tensor * 1.5 for name, tensor in load_file(file).items()}, file, {"format": "pt"})


def other_json(name: str, key: str, folder: Path) -> None:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).write_text(json.dumps({**content, key: "changed"}), encoding="utf-8")


CHANGES: list[tuple[str, str, Callable[[Path], None]]] = [
    *[(kind, "weights", other_weights) for kind in LOADERS],
    *[(kind, "config.json", partial(other_json, "config.json", "_note")) for kind in LOADERS],
    ("encoder", "preprocessor_config.json", partial(other_json, "preprocessor_config.json", "_note")),
    ("encoder", "tokenizer_config.json", partial(other_json, "tokenizer_config.json", "_note")),
    ("text", "tokenizer_config.json", partial(other_json, "tokenizer_config.json", "_note")),
]


def refused(load: Callable[[], object], words: str) -> bool:
    """Whether it is refused for this reason."""
    try:
        load()
    except UserError as error:
        assert words in str(error), error
        return True
    return False


def count_changes(promise: Promise, hub: Hub, tmp_path: Path, short: int) -> None:
    for kind, what, change in promise.choose(CHANGES, short):
        load, write = LOADERS[kind]
        repo = f"some/{kind}-{what.partition('.')[0]}"
        folder = Path(shutil.copytree(write(tmp_path / kind), tmp_path / repo))
        hub.publish(repo, FIRST, folder)
        load(repo)
        load(repo)
        change(folder)
        hub.publish(repo, SECOND, folder)
        promise.count(refused(partial(load, repo), f"{repo} at main"), f"{kind} {what}")


@pytest.mark.promise(20)
def test_a_repository_that_changes_after_its_first_use_is_refused(promise: Promise, hub: Hub, tmp_path: Path) -> None:
    """Load from a branch of the hub, move it to a commit with another weight, config or tokenizer, and load again."""
    count_changes(promise, hub, tmp_path, short=6)


@pytest.mark.promise(20, control="the first use is not written down")
def test_without_the_first_use_other_weights_are_taken(
    promise: Promise, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with nothing written down."""
    monkeypatch.setattr(first_use, "hold", lambda *args: None)
    count_changes(promise, hub, tmp_path, short=3)


def test_the_error_says_what_changed_and_how_to_accept_it(hub: Hub, tmp_path: Path) -> None:
    folder = write_teacher(tmp_path / "dino")
    hub.publish("some/dino", FIRST, folder)
    teacher("some/dino")
    other_weights(folder)
    hub.publish("some/dino", SECOND, folder)
    with pytest.raises(UserError) as caught:
        teacher("some/dino")
    record = first_use.record_file("some/dino", "main")
    for words in ("model.safetensors", f"(commit {SECOND})", f"revision to {FIRST}", f"remove {record}"):
        assert words in str(caught.value)
    teacher("some/dino", revision=FIRST)
    record.unlink()
    teacher("some/dino")


def test_a_commit_that_changes_nothing_that_is_loaded_is_accepted(hub: Hub, tmp_path: Path) -> None:
    folder = write_teacher(tmp_path / "dino")
    hub.publish("some/dino", FIRST, folder)
    teacher("some/dino")
    (folder / "README.md").write_text("more words")
    hub.publish("some/dino", SECOND, folder)
    teacher("some/dino")


@pytest.mark.promise(20)
def test_a_downloaded_file_that_is_damaged_is_refused(promise: Promise, hub: Hub, tmp_path: Path) -> None:
    """Flip one bit of the weights in the cache of the hub, of a commit that is pinned, and load again."""
    for kind in promise.choose(list(LOADERS), short=2):
        load, write = LOADERS[kind]
        snapshot = hub.publish(f"some/{kind}", FIRST, write(tmp_path / kind))
        load(f"some/{kind}", revision=FIRST)
        file = next(snapshot.glob("*.safetensors"))
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
        load_again = partial(load, f"some/{kind}", revision=FIRST)
        promise.count(refused(load_again, "the downloaded copy is damaged"), kind)


@pytest.mark.promise(20)
def test_a_missing_revision_or_repository_is_refused(promise: Promise, hub: Hub, tmp_path: Path) -> None:
    """Ask without a network for a revision and for a repository that the cache of the hub does not have."""
    for kind in promise.choose(list(LOADERS), short=3):
        load, write = LOADERS[kind]
        hub.publish(f"some/{kind}", FIRST, write(tmp_path / kind))
        missing = f"cannot load some/{kind} at {SECOND}"
        promise.count(refused(partial(load, f"some/{kind}", revision=SECOND), missing), f"{kind}: revision")
        promise.count(refused(partial(load, "some/nothing"), "cannot load some/nothing"), f"{kind}: repository")


@pytest.mark.promise(20)
def test_another_hash_than_the_pinned_one_is_refused(promise: Promise, hub: Hub, tmp_path: Path) -> None:
    """Give each setting that pins weights by a hash another one."""
    promise.count(refused(partial(text, str(tiny_text.write_text_encoder("minilm")), sha256="0" * 8), "(0000"), "text")
    autoencoder = str(tiny_autoencoders.write_autoencoder("taef1"))
    promise.count(refused(partial(tokenizer, autoencoder, sha256="'00000000'"), "(00000000 there"), "tokenizer")
    small = SmallVaeSettings(folder=str(write_tiny_vae(tmp_path / "vae")), sha256="0" * 64)
    promise.count(refused(partial(small.build, CPU), "give the right folder"), "small-vae")
    content = tmp_path / "net.bin"
    content.write_bytes(b"weights")
    for digits, found in (("0" * 64, True), (hashlib.sha256(b"weights").hexdigest(), False)):
        known = Known("net", (Url(content.as_uri(), digits),), {".bin": lambda file: {"w": torch.ones(1)}}, "advice")
        promise.count(refused(partial(fetch, known), "not the expected") == found, f"a file with the hash {digits[:8]}")


def test_without_a_revision_a_known_commit_is_loaded_and_not_the_newest(hub: Hub, tmp_path: Path) -> None:
    repo, commit = next(iter(COMMITS.items()))
    folder = write_teacher(tmp_path / "dino")
    right: Any = teacher(str(folder))
    hub.publish(repo, commit, folder)
    other_weights(folder)
    hub.publish(repo, SECOND, folder)
    loaded: Any = teacher(repo)
    newest: Any = teacher(repo, revision="main")
    assert loaded.identity == right.identity != newest.identity
    assert Checkpoint(repo).words == repo, "a plan, and the name of a score, stay what they were"


def test_known_commits_are_whole(hub: Hub) -> None:
    commits = COMMITS.values()
    assert all(len(commit) == 40 and set(commit) <= set("0123456789abcdef") for commit in commits)


def test_a_damaged_record_is_named(hub: Hub) -> None:
    record = first_use.record_file("some/dino", "main")
    record.parent.mkdir(parents=True)
    record.write_text("{")
    with pytest.raises(UserError, match=r"some--dino@main.json is damaged: .*remove this file"):
        first_use.hold("some/dino", "main", "config.json", "0" * 64, None)
