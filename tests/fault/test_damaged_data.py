"""Damage to any file of a store, of an import or recaption that was stopped, and of every cache.

Each file is found by listing the tree. After the damage the same work gives the same result (what is gone is computed
again), or is refused with the file and what to do. Another result, or a traceback, is a failure.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from tests.fault.promises import Promise
from tests.tiny import tiny_plan
from tests.tiny_store import image_file, parquet_of
from tests.tiny_text import MAX_TOKENS, write_text_encoder
from tests.tiny_vae import write_tiny_vae
from tintype.data.recaption import journal
from tintype.data.recaption.asking import Asking, Pull, Reply
from tintype.data.recaption.work import Task, recaption
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.data.sources import open_source
from tintype.data.store import layout, writer
from tintype.data.store.attributes import read_attributes
from tintype.data.store.changes import add_column
from tintype.data.store.fingerprints import look_at
from tintype.data.store.importing import ImportOptions, import_images
from tintype.data.store.layout import open_store
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.errors import StoppedError, UserError
from tintype.evaluation.reference import About, cached_features
from tintype.pretrained import weights
from tintype.runtime import rows, segments
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Encoder
from tintype.text.cache import CachedText
from tintype.text.frozen import FrozenTextEncoder
from tintype.text.published import MiniLmSettings
from tintype.tokenizers.latent_cache import open_latent_cache
from tintype.vision.part import Teacher
from tintype.vision.scene_encoder import SceneTeacherSettings, scene_features
from tintype.vision.teacher_cache import open_teacher_cache

CPU = torch.device("cpu")
WHAT_TO_DO = ("delete", "remove", "again", "anew", "`tintype ")


class Subject(Protocol):
    """Something on the disk that work reads."""

    name: str

    def make(self, folder: Path) -> None: ...

    def use(self, folder: Path) -> object:
        """Do the work and return what came of it. May write."""
        ...


def digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def of_tensor(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def scenes() -> SceneSource:
    return SceneSource(ScenesSettings(size_px=16, count=6, max_objects=2), "train", CPU)


def options() -> ImportOptions:
    attributes = read_attributes({"score": "score", "style": "style"})
    return ImportOptions(eval_share=0.3, attributes=attributes, most_bad=1.0)


def import_some(folder: Path, stop_after: int | None = None) -> Any:
    """Import eight images and two broken ones; with `stop_after` a signal comes."""
    source = folder / "a.parquet"
    if not source.exists():
        images = [b"broken" if n in (2, 5) else image_file(n, (18 + n, 18)) for n in range(10)]
        texts = {"caption_long": [f"caption {n}" for n in range(10)], "caption_short": [f"{n}" for n in range(10)]}
        known: dict[str, Any] = {"score": [n / 8 for n in range(10)], "style": ["a", "b"] * 5}
        parquet_of(source, images, **texts, **known)
    interrupt = Interrupt()

    def stop(progress: Any) -> None:
        if progress.done == stop_after:
            interrupt.signal = 2

    return import_images(source, folder / "store", options(), interrupt, stop)


class StoreOfImages:
    name = "store"

    def make(self, folder: Path) -> None:
        import_some(folder)
        add_column(folder / "store", "vlm", [f"added {n}" for n in range(8)], {"by": "a test"}, b'{"a": 1}\n')
        (folder / "a.parquet").unlink()

    def use(self, folder: Path) -> object:
        """All that training reads, and what the other commands show."""
        settings = StoreSettings(path=str(folder / "store"), size_px=16, buckets=((16, 16), (12, 20)))
        source = StoreSource(settings, "train", CPU, keep=False, threads=1)
        assert source.bucket_N is not None
        images = [of_tensor(source.images([id_])) for id_ in range(len(source))]
        store = open_store(folder / "store")
        about = [[store.about_row(row), store.attributes_of(row)] for row in range(len(store))]
        captions = [record.captions for record in source.records(range(len(source)))]
        held_out = [one.content for one in store.all_encoded("eval")]
        counts = [store.about.counts, store.about.made_from, store.quarantine(), source.identity]
        return digest(images, captions, about, source.bucket_N.tolist(), held_out, counts)


class StoppedImport:
    name = "import that was stopped"

    def make(self, folder: Path) -> None:
        with pytest.raises(StoppedError):
            import_some(folder, stop_after=7)

    def use(self, folder: Path) -> object:
        import_some(folder)
        store = open_store(folder / "store")
        store.check()
        return [store.identity, store.about.counts, store.quarantine()]


class Answering:
    """Answers without a model."""

    where = "here"

    def identity(self) -> dict[str, Any]:
        return {"backend": "test", "model": "m"}

    def check(self) -> None: ...

    def alive(self) -> bool:
        return True

    def replies(self, pull: Pull, interrupt: Interrupt) -> Iterator[Reply]:
        while (question := pull()) is not None:
            yield Reply(question, f"An image {question.key[:8]}.", input_tokens=100, output_tokens=10)


TASK = Task("vlm", Asking("Describe it.", 50))


class StoppedRecaption:
    """Journal of a stopped recaption. Its store is a subject of its own."""

    name = "recaption that was stopped"

    def make(self, folder: Path) -> None:
        import_some(folder)
        interrupt = Interrupt()

        def stop(progress: Any) -> None:
            if progress.new == 5:
                interrupt.signal = 2

        captioner = Answering()
        real = captioner.replies

        def until(pull: Pull, interrupt: Interrupt) -> Iterator[Reply]:
            for reply in real(pull, interrupt):
                yield reply
                if interrupt.signal:
                    return

        captioner.replies = until  # type: ignore[method-assign]
        assert recaption(folder / "store", TASK, captioner, interrupt, stop).about is None
        for file in (folder / "store").glob("*.*"):
            file.replace(folder / f"whole-{file.name}") if file.name.startswith("shard") else None

    def use(self, folder: Path) -> object:
        for file in folder.glob("whole-*"):
            shutil.copy2(file, folder / "store" / file.name.removeprefix("whole-"))
        done = recaption(folder / "store", TASK, Answering(), Interrupt())
        assert done.about is not None
        counts = done.about.added[0].made_by["counts"]
        return [open_store(folder / "store").texts("caption:vlm"), counts]


class Latents:
    name = "latents"

    def make(self, folder: Path) -> None:
        write_tiny_vae(folder / "vae")
        self.use(folder)

    def use(self, folder: Path) -> object:
        tokenizer = f"tokenizer:to.kind=small-vae,to.folder={folder / 'vae'}"
        plan = tiny_plan("run.latents=disk", "data.count=6", techniques=[tokenizer])
        source = open_source(plan.data, "train", CPU)
        kept = open_latent_cache(plan.tokenizer.kind, plan.tokenizer.build(CPU), plan.data, source, CPU, batch=4)
        kept.fill(range(6))
        return of_tensor(kept.rows.read(torch.arange(6)))


class TeacherTokens:
    name = "teacher's tokens"

    def make(self, folder: Path) -> None:
        self.use(folder)

    @cached_property
    def teacher(self) -> Teacher:
        return SceneTeacherSettings().build((4, 4), CPU)

    def use(self, folder: Path) -> object:
        source = scenes()
        kept = open_teacher_cache("disk", self.teacher, source, "data", CPU)
        kept.fill(range(6), source.images)
        return of_tensor(kept(source.images(range(6)), range(6)))


class TextStates:
    name = "text embeddings"

    def make(self, folder: Path) -> None:
        self.use(folder)

    @cached_property
    def encoder(self) -> FrozenTextEncoder:
        settings = {"weights": str(write_text_encoder("minilm")), "max_tokens": MAX_TOKENS, "compute": "fp32"}
        return MiniLmSettings.model_validate(settings).build(CPU)

    def use(self, folder: Path) -> object:
        kept = CachedText(self.encoder)
        return of_tensor(kept.encode(["a red ball", "", "two cubes on the grass", "a ball"]).tokens_BLC)


class ReferenceFeatures:
    name = "reference features"

    def make(self, folder: Path) -> None:
        self.use(folder)

    @cached_property
    def encoder(self) -> Encoder:
        return scene_features(CPU)

    def use(self, folder: Path) -> object:
        encoder = self.encoder
        source = scenes()
        results = []
        for number in range(2):
            about = About(encoder.name, encoder.identity, encoder.definition, "a test", f"{number}" * 64, 3)
            found = cached_features(about, encoder, source.images(range(3 * number, 3 * number + 3)))
            results.append([of_tensor(found.feature_MF), found.digests, found.about])
        return results


class Looks:
    name = "looks of a store"

    def make(self, folder: Path) -> None:
        import_some(folder)
        self.use(folder)

    def use(self, folder: Path) -> object:
        looks = look_at(open_store(folder / "store"), np.arange(8))
        assert looks is not None
        return [part.tolist() for part in (looks.hash, looks.colours, looks.mode, looks.format)]


class OutsideWeights:
    name = "weights from outside"

    def make(self, folder: Path) -> None:
        (folder / "net.bin").write_bytes(save({"a": torch.arange(6.0), "b": torch.ones(6), "c": torch.zeros(6)}))
        self.use(folder)

    def use(self, folder: Path) -> object:
        source = weights.Url(
            (folder / "net.bin").as_uri(), hashlib.sha256((folder / "net.bin").read_bytes()).hexdigest()
        )
        found = weights.fetch(weights.Known("toy", (source,), {".bin": load_file}, ""))
        return {name: tensor.tolist() for name, tensor in found.tensors.items()}


SUBJECTS: list[tuple[Subject, str]] = [
    (StoreOfImages(), "store"),
    (StoppedImport(), ".store.importing"),
    (StoppedRecaption(), "store/.recaption-vlm"),
    (Latents(), "cache/latents"),
    (TeacherTokens(), "cache/teacher"),
    (TextStates(), "cache/text"),
    (ReferenceFeatures(), "cache/features"),
    (Looks(), "cache/looks"),
    (OutsideWeights(), "cache/weights"),
]
"""Name of what is damaged, and the folder of its files."""


@dataclass(frozen=True)
class Damage:
    file: str
    """From the folder of the subject."""
    name: str
    change: Callable[[bytes], bytes | None]
    """None: the file is deleted."""

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def flip(place: int, bit: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        return bytes(changed)

    return change


def swap(one: int, other: int, size: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[one : one + size], changed[other : other + size] = (
            content[other : other + size],
            content[one : one + size],
        )
        return bytes(changed)

    return change


def cut(end: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:end]


def put(other: bytes) -> Callable[[bytes], bytes]:
    return lambda _: other


def places(count: int, most: int) -> list[int]:
    return [at * count // most for at in range(most)] if count > most else list(range(count))


def damages(folder: Path, fields: int = 24) -> Iterator[Damage]:
    """Bits in all parts of every file and in its digits, cuts, deletion, swapped lines, pieces and files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    for file, content in contents.items():
        size = len(content)
        yield Damage(file, "deleted", lambda content: None)
        for end in sorted({0, size // 2, size - 1}):
            yield Damage(file, f"cut to {end} bytes", cut(end))
        for at in places(size, fields):
            yield Damage(file, f"bit {at % 8} of byte {at}", flip(at, at % 8))
        digits = [at for at, byte in enumerate(content) if chr(byte).isdigit()] if is_text(content) else []
        for at in places(len(digits), fields):
            yield Damage(file, f"a digit, byte {digits[at]}", flip(digits[at], 0))
        lines = content.splitlines(keepends=True) if is_text(content) else []
        for at in places(max(0, len(lines) - 1), 6):
            swapped = b"".join([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]])
            yield Damage(file, f"lines {at} and {at + 1} swapped", put(swapped))
        for piece in (4, 8, 32, 64, 192, 272):
            for at in places(max(0, size // piece - 1), 6):
                yield Damage(
                    file, f"pieces {at} and {at + 1} of {piece} bytes", swap(at * piece, at * piece + piece, piece)
                )
        yield from swapped_with_others(file, contents)


def is_text(content: bytes) -> bool:
    return b"\0" not in content


def swapped_with_others(file: str, contents: Mapping[str, bytes]) -> Iterator[Damage]:
    for other, content in contents.items():
        if other != file and Path(other).suffix == Path(file).suffix:
            yield Damage(file, f"put in place of it: {other}", put(content))


def outcome(subject: Subject, root: Path, made: Path, place: str, damage: Damage, expected: object) -> str:
    """`same`, `refused`, or what went wrong."""
    shutil.rmtree(root)
    shutil.copytree(made, root)
    path = root / place / damage.file
    content = damage.change(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    try:
        return "same" if subject.use(root) == expected else "silent"
    except UserError as error:
        named = str(root) in str(error) and any(words in str(error) for words in WHAT_TO_DO)
        return "refused" if named else f"refused without the place or what to do: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SHARD_ROWS", 3)


def tried(subject: Subject, place: str, tmp_path: Path, promise: Promise, short: int, monkeypatch: Any) -> None:
    root, made = tmp_path / "root", tmp_path / "made"
    monkeypatch.setenv("TINTYPE_CACHE", str(root / "cache"))
    root.mkdir()
    subject.make(root)
    shutil.copytree(root, made)
    expected = subject.use(root)
    found = list(damages(made / place))
    assert len({one.file for one in found}) == sum(
        1 for path in (made / place).rglob("*") if path.is_file() and path.name != ".lock"
    )
    for damage in promise.choose(found, short):
        said = outcome(subject, root, made, place, damage, expected)
        promise.count(said in ("same", "refused"), f"{subject.name}, {damage}: {said}")


@pytest.mark.promise(4)
@pytest.mark.parametrize(("subject", "place"), SUBJECTS, ids=[one.name for one, _ in SUBJECTS])
def test_damage_to_any_file_of_data_and_caches_is_noticed(
    subject: Subject, place: str, tmp_path: Path, promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flip bits and digits, cut, delete, swap in every file of a store, a stopped import or recaption, each cache."""
    tried(subject, place, tmp_path, promise, 24, monkeypatch)


def no_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every checksum for the right one."""

    class EqualToAll(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    monkeypatch.setattr(layout, "sum_of", lambda *_: EqualToAll("0"))
    for module in (layout, writer, journal):
        monkeypatch.setattr(module, "checksum_of", lambda content: EqualToAll("0" * 64))
    monkeypatch.setattr(journal, "_DIGITS", None)
    monkeypatch.setattr(rows.DiskRows, "_sums", lambda self, id_M: torch.ones(len(id_M), dtype=torch.int64))
    monkeypatch.setattr(segments.Segments, "_sum", lambda *_: EqualToAll("0"))


@pytest.mark.promise(4, control="checksums of stores, journals and caches off")
def test_control_without_checksums_damage_is_silent(
    tmp_path: Path, promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (subject, place) in enumerate(SUBJECTS[:4]):
        with monkeypatch.context() as patched:
            no_checksums(patched)
            (tmp_path / str(number)).mkdir()
            tried(subject, place, tmp_path / str(number), promise, 24, patched)
    assert any(one.endswith("silent") for one in promise.broken)
