"""A pickle in the place of any file that tintype reads, and in archives that it imports, is never run."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fault.promises import Promise
from tests.security.test_pickles import Hostile, archive
from tests.tiny import TINY, tiny_plan
from tests.tiny_store import image_file, tiny_store
from tests.tiny_vae import write_tiny_vae
from tintype import cli
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.study.folder import claim_folder
from tintype.study.study import load_study
from tintype.tokenizer_lab.fill_cache import fill_cache
from tintype.train.loop import train


def contents(trap: Path) -> dict[str, bytes]:
    """Files that make a folder when a reader that trusts them opens them."""
    saved, numbers = io.BytesIO(), io.BytesIO()
    torch.save({"a": Hostile(trap)}, saved)
    np.save(numbers, np.array([Hostile(trap)], object), allow_pickle=True)
    attack = pickle.dumps(Hostile(trap))
    return {"pickle": attack, "torch": saved.getvalue(), "numpy": numbers.getvalue(), "zip": archive(attack)}


def run(*words: object) -> None:
    """Run a command, whatever comes of it."""
    before, sys.argv = sys.argv, ["tintype", *map(str, words)]
    with suppress(SystemExit, Exception):
        cli.main()
    sys.argv = before


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a store, an autoencoder, a cache of latents and a study, each as tintype wrote it."""
    folder = tmp_path_factory.mktemp("things")
    (folder / "plan.yaml").write_text(TINY)
    train(tiny_plan("train.steps=2", techniques=["power-ema"]), folder / "run", Interrupt())
    tiny_store(folder, 12)
    write_tiny_vae(folder / "vae")
    study = folder / "study.yaml"
    study.write_text(f"question: q\nrecipe: {folder / 'plan.yaml'}\nseeds: [0]\narms: [{{techniques: [ema]}}]\n")
    (folder / "study").mkdir()
    claim_folder(load_study(str(study)), folder / "study")
    (folder / "latents").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TINTYPE_CACHE", str(folder / "latents"))
        fill_cache(latents_plan(folder), Interrupt())
    return folder


def latents_plan(folder: Path) -> Plan:
    return tiny_plan(techniques=[f"tokenizer:to.kind=small-vae,to.folder={folder / 'vae'}"])


READERS: dict[str, Callable[[Path], list[list[object]]]] = {
    "run": lambda at: [["sample", at / "run", "a ball", "--steps", 1, "--out", at / "samples"], ["card", at / "run"]],
    "store": lambda at: [["data", "show", at / "store", "--check"], ["data", "inspect", at / "store", "--json"]],
    "vae": lambda at: [
        ["plan", "show", at / "plan.yaml", "--technique", f"tokenizer:to={{kind: small-vae, folder: {at / 'vae'}}}"]
    ],
    "study": lambda at: [["report", at / "study"], ["plan", "show", at / "study", "--arm", "ema"]],
    "latents": lambda at: [
        ["tokenizer", "cache", at / "plan.yaml", "--technique", f"tokenizer:to.kind=small-vae,to.folder={at / 'vae'}"]
    ],
}
"""The commands that read what is in a folder."""


@pytest.mark.promise(17)
@pytest.mark.parametrize("name", READERS)
def test_no_file_that_tintype_wrote_runs_code_when_it_is_replaced(
    promise: Promise, name: str, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace each file of a run, store, autoencoder, study and cache by pickles, and read it with the commands."""
    trap = tmp_path / "made"
    whole = tmp_path / "whole"
    shutil.copytree(things, whole)
    monkeypatch.setenv("TINTYPE_CACHE", str(whole / "latents"))
    files = [file for file in sorted((whole / name).rglob("*")) if file.is_file() and file.name != "lock"]
    cases = [(file, kind) for file in files for kind in contents(trap)]
    for file, kind in promise.choose(cases, short=3):
        content = file.read_bytes()
        file.write_bytes(contents(trap)[kind])
        for words in READERS[name](whole):
            run(*words)
        promise.count(not trap.exists(), f"{file.relative_to(whole)} as {kind}")
        shutil.rmtree(whole)
        shutil.copytree(things, whole)
        assert file.read_bytes() == content


def tar_of(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as made:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            made.addfile(about, io.BytesIO(content))


def mds_of(folder: Path, content: bytes) -> None:
    """A shard of MDS with a column that its own library unpickles."""
    folder.mkdir()
    image = image_file(0)
    sample = np.array([len(image), len(content)], np.uint32).tobytes() + image + content
    head = np.array([1, 12, 12 + len(sample)], np.uint32).tobytes()
    (folder / "shard.00000.mds").write_bytes(head + sample)
    raw = {"basename": "shard.00000.mds", "bytes": len(head + sample), "hashes": {}}
    shard = {"column_names": ["image", "caption"], "column_encodings": ["png", "pkl"], "column_sizes": [None, None]}
    shard |= {"compression": None, "format": "mds", "hashes": [], "raw_data": raw, "samples": 1, "size_limit": 1 << 20}
    shard |= {"version": 2, "zip_data": None}
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))


def _folder_of(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


IMPORTS: dict[str, tuple[str, Callable[[Path, bytes], object]]] = {
    "parquet": ("set.parquet", Path.write_bytes),
    "tar": ("set.tar", Path.write_bytes),
    "members of a tar": (
        "set.tar",
        lambda path, bad: tar_of(
            path, {"0.png": image_file(0), "0.pkl": bad, "0.pyd": bad, "0.pth": bad, "0.npy": bad}
        ),
    ),
    "captions of a tar": (
        "set.tar",
        lambda path, bad: tar_of(path, {"0.png": image_file(0), "0.txt": bad, "0.json": bad}),
    ),
    "images of a folder": ("set", lambda path, bad: _folder_of(path, {"0.png": bad, "1.jpg": bad, "2.webp": bad})),
    "captions of a folder": ("set", lambda path, bad: _folder_of(path, {"0.png": image_file(0), "0.txt": bad})),
    "metadata.jsonl": ("set", lambda path, bad: _folder_of(path, {"0.png": image_file(0), "metadata.jsonl": bad})),
    "metadata.csv": ("set", lambda path, bad: _folder_of(path, {"0.png": image_file(0), "metadata.csv": bad})),
    "metadata.parquet": ("set", lambda path, bad: _folder_of(path, {"0.png": image_file(0), "metadata.parquet": bad})),
    "a saved data set": (
        "set",
        lambda path, bad: _folder_of(
            path,
            {
                "data.arrow": bad,
                "state.json": b'{"_data_files": [{"filename": "data.arrow"}]}',
                "dataset_info.json": bad,
            },
        ),
    ),
    "a column of MDS": ("set", mds_of),
    "an index of MDS": ("set", lambda path, bad: _folder_of(path, {"index.json": bad})),
}
READ: dict[str, tuple[str, Callable[[Path], list[object]]]] = {
    "a plan": ("plan.yaml", lambda path: ["plan", "show", path]),
    "a study": ("study.yaml", lambda path: ["ablate", path, "--out", path.parent / "out", "--dry-run"]),
    "a model to import": ("model.safetensors", lambda path: ["import", path, "--out", path.parent / "out"]),
    "prompts": (
        "prompts.txt",
        lambda path: ["sample", "RUN", "--prompt-file", path, "--steps", 1, "--out", path.parent],
    ),
    "a reference": ("ref.safetensors", lambda path: ["evaluate", "--images", "IMAGES", "--reference", path]),
    "images to score": ("set.parquet", lambda path: ["evaluate", "--images", path, "--reference", "IMAGES"]),
    "results of studies": ("results.json", lambda path: ["power", path]),
    "a table to judge": ("runs.csv", lambda path: ["judge", path, "--baseline", "a"]),
    "lines to judge": ("runs.jsonl", lambda path: ["judge", path, "--baseline", "a"]),
    "a skip list": ("skip.txt", lambda path: ["data", "show", "STORE", "--skip", path]),
}


@pytest.mark.promise(17)
def test_no_file_that_is_imported_or_given_runs_code(promise: Promise, things: Path, tmp_path: Path) -> None:
    """Give pickles to each importer, whole and within archives and tables, and to each option that takes a file."""
    trap = tmp_path / "made"
    places = {"RUN": things / "run", "STORE": things / "store", "IMAGES": things / "images"}
    (things / "images").mkdir(exist_ok=True)
    (things / "images" / "0.png").write_bytes(image_file(0))
    cases = [(name, kind) for name in (*IMPORTS, *READ) for kind in contents(trap)]
    for index, (name, kind) in enumerate(promise.choose(cases, short=len(cases) // 4)):
        folder = tmp_path / str(index)
        folder.mkdir()
        if name in IMPORTS:
            file, make = IMPORTS[name]
            make(folder / file, contents(trap)[kind])
            run("data", "import", folder / file, "--out", folder / "store", "--most-bad", "100%")
        else:
            file, words = READ[name]
            (folder / file).write_bytes(contents(trap)[kind])
            run(*(places.get(str(word), word) for word in words(folder / file)))
        promise.count(not trap.exists(), f"{name}: {kind}")


@pytest.mark.promise(17, control="readers that trust a file")
def test_control_trusting_readers_run_each_attack(promise: Promise, tmp_path: Path) -> None:
    """Open the same files with the readers of Python, torch and numpy that trust them."""
    readers: dict[str, Callable[[bytes], object]] = {
        "pickle": pickle.loads,
        "torch": lambda content: torch.load(io.BytesIO(content), weights_only=False),
        "numpy": lambda content: np.load(io.BytesIO(content), allow_pickle=True),
    }
    for kind, read in readers.items():
        trap = tmp_path / kind
        with suppress(Exception):
            read(contents(trap)[kind])
        promise.count(not trap.exists(), kind)
    assert promise.tries == len(promise.broken)
