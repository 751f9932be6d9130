"""Load models from the Hugging Face hub or a local folder: only safetensors, no code, unchanged since first use."""

from __future__ import annotations

import importlib
import json
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub
import torch
from huggingface_hub import constants, errors
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
from pydantic import ValidationError

from tintype.config.strict import first_problem
from tintype.errors import UserError, as_user_error
from tintype.pretrained import first_use
from tintype.pretrained.frozen import Compute
from tintype.pretrained.packages import Untyped, diffusers_package, quiet, transformers_package
from tintype.pretrained.preprocess import ImageProcessor
from tintype.pretrained.weights import digest
from tintype.runtime.files import read_object, sha256_of

_TOKENIZERS = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("tokenizer.model",),
)
"""Sets of files. A tokenizer needs all files of at least one set."""
_TOKENIZER_FILES = (*(name for names in _TOKENIZERS for name in names), "tokenizer_config.json")
_WEIGHTS = ("model", "diffusion_pytorch_model")
"""Names of weight files in transformers and in diffusers."""
_PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
_COMMIT = re.compile(r"/snapshots/([0-9a-f]{40})/")
"""Matches the commit in the path of a file in huggingface_hub's cache."""
_NO_CODE = {"trust_remote_code": False}
"""Without this setting, transformers would ask on the terminal whether to run a checkpoint's code."""
_TOKENIZER_ADVICE = (
    "put the files of the model's own tokenizer beside its weights "
    "(`AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)` writes them), and name that folder as the source"
)


@dataclass(frozen=True)
class Checkpoint:
    """A local folder, or a hub repository at a revision, together with settings of the network's arithmetic."""

    source: str
    revision: str | None = None
    arithmetic: Compute = "fp32"
    subfolder: str = ""
    """Folder in the repository. The folder is needed if the repository holds several models."""
    commit: str | None = None
    """A commit that has safetensors files. The commit is loaded if no revision is given."""
    compile_network: bool = False

    @property
    def folder(self) -> Path | None:
        """Return the local folder; None for a hub repository, whose name has the form `owner/name`."""
        path = Path(self.source).expanduser()
        written_as_path = self.source.startswith(("/", ".", "~")) or self.source.count("/") != 1
        return path if written_as_path or path.is_dir() else None

    @property
    def words(self) -> str:
        place = f"{self.source}/{self.subfolder}" if self.subfolder else self.source
        return place if self.revision is None else f"{place} at {self.revision}"

    @property
    def arguments(self) -> dict[str, Untyped]:
        """Return the arguments for `from_pretrained`."""
        place = self.source if self.folder is None else str(self.folder)
        inside = {"subfolder": self.subfolder} if self.subfolder else {}
        cached = {"local_files_only": True} if self.folder is None and why_unreachable() else {}
        return {"pretrained_model_name_or_path": place, "revision": self.pinned or "main", **inside, **cached}

    @property
    def pinned(self) -> str | None:
        """Return the revision to load; None for the newest revision."""
        return self.revision or (self.commit if self.folder is None else None)

    def config(self) -> Untyped:
        """Return the checkpoint's config, not by `AutoConfig`, which would offer to run code of the checkpoint."""
        transformers = transformers_package()  # import it before any download
        model_type = str(self.stated_config("a model of transformers").get("model_type"))
        with explained(self):
            if model_type not in transformers.CONFIG_MAPPING:
                raise ValueError(f"transformers {transformers.__version__} has no model of the type '{model_type}'")
            return transformers.CONFIG_MAPPING[model_type].from_pretrained(**self.arguments)

    def stated_config(self, what: str) -> dict[str, Untyped]:
        """Return the checkpoint's config.json. `what` is the expected kind of checkpoint, for error messages."""
        file = self.file("config.json")
        if file is None:
            raise UserError(f"{self.words} has no config.json, so it is not {what}")
        return json_object(file)

    def model(
        self,
        classes: Mapping[str, str] | None = None,
        unused: Collection[str] = (),
        dtype: torch.dtype = torch.float32,
        **options: Untyped,
    ) -> Untyped:
        """Load a network of transformers, in fp32 unless `dtype` is given.

        `classes` maps accepted model types to classes; without it, any type is loaded, without a head. The weights of
        modules named in `unused` may be missing. A `config` in `options` replaces the checkpoint's config.
        """
        config = options.get("config") or self.config()
        self._check_weights()
        transformers = transformers_package()
        if classes is not None and config.model_type not in classes:
            raise UserError(
                f"{self.words} is a model of the type '{config.model_type}', but this encoder needs "
                f"{' or '.join(classes)}"
            )
        with explained(self):
            if classes is not None:
                network = attrgetter(classes[config.model_type])(transformers)
            else:
                network = transformers.MODEL_MAPPING[type(config)]
        with _quiet():
            return self._load(network, unused, dtype=dtype, **options)

    def image_text_model(self, dtype: torch.dtype) -> Untyped:
        """Load a network that generates text from an image and a text."""
        config = self.config()
        self._check_weights()
        classes = transformers_package().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        return self._load(self._writer(classes, config), dtype=dtype)

    def image_text_processor(self) -> Untyped:
        """Load the processor of a network that reads images and text; the config determines its class."""
        config = self.config()
        self._check_tokenizer_files()
        auto = importlib.import_module("transformers.models.auto.processing_auto")
        kind = self._writer(auto.PROCESSOR_MAPPING, config)
        with explained(self):
            processor = kind.from_pretrained(**self.arguments, **_NO_CODE)
        self._hold_files(*_TOKENIZER_FILES, *_PREPROCESSORS, "chat_template.jinja", "chat_template.json")
        return processor

    def _writer(self, classes: Mapping[type, Untyped], config: Untyped) -> Untyped:
        if type(config) not in classes:
            raise UserError(f"{self.words} is a model of the type '{config.model_type}', which cannot describe images")
        return classes[type(config)]

    def autoencoder(self, class_name: str) -> tuple[Untyped, dict[str, Untyped]]:
        """Load an autoencoder of this diffusers class in fp32; return it with the content of its config.json."""
        diffusers = diffusers_package()
        stated = self.stated_config("an autoencoder of diffusers")
        if (found := stated.get("_class_name")) != class_name:
            raise UserError(f"{self.words} is a '{found}', but this kind of tokenizer needs {class_name}")
        network = getattr(diffusers, class_name)
        return self._load(network, torch_dtype=torch.float32, low_cpu_mem_usage=False), stated

    def tokenizer(self, vocabulary: int) -> Untyped:
        """Load the tokenizer of a text network with `vocabulary` embeddings; raise if it has other tokens.

        Without its files, transformers would build a tokenizer of special tokens, which encodes all texts alike.
        """
        self._check_tokenizer_files()
        with explained(self):
            tokenizer = transformers_package().AutoTokenizer.from_pretrained(**self.arguments)
        ids = tokenizer.get_vocab().values()
        if 2 * len(ids) < vocabulary or max(ids) >= vocabulary:
            raise UserError(
                f"{self.words}: the tokenizer has {len(ids)} tokens with ids up to {max(ids, default=0)}, but "
                f"the text network has {vocabulary} embeddings, so the two do not belong together",
                _TOKENIZER_ADVICE,
            )
        self._hold_files(*_TOKENIZER_FILES)
        return tokenizer

    def image_processor(self) -> ImageProcessor:
        """Return the checkpoint's preprocessing config. Raise if there is none."""
        found = self.stated_image_processor()
        if found is None:
            raise UserError(f"{self.words} has no preprocessor_config.json, which defines how images are preprocessed")
        return found

    def stated_image_processor(self) -> ImageProcessor | None:
        """Return the checkpoint's preprocessing config; None if there is none."""
        for file in filter(None, map(self.file, _PREPROCESSORS)):
            read = json_object(file)
            try:
                return ImageProcessor.model_validate_json(json.dumps(read.get("image_processor", read)))
            except ValidationError as error:
                raise UserError(f"{file}: {first_problem(error, 'image_processor')}") from None
        return None

    def file(self, name: str) -> Path | None:
        """Return a file of the folder or repository; None if it has no file of that name."""
        if self.folder is not None:
            self.check_folder()
            place = self.folder / self.subfolder / name
            return place if place.is_file() else None
        inside = self.subfolder or None
        with explained(self):
            try:
                cached = bool(why_unreachable())
                fetched = Path(
                    huggingface_hub.hf_hub_download(
                        self.source, name, subfolder=inside, revision=self.pinned, local_files_only=cached
                    )
                )
            except errors.LocalEntryNotFoundError:  # the hub is unreachable, so the file may exist
                raise
            except errors.EntryNotFoundError:
                return None
        self.hold(name, sha256_of(fetched))
        return fetched

    def hold(self, item: str, sha256: str) -> None:
        """Raise if an item of a hub repository differs from its first use on this machine."""
        if self.folder is not None:
            return
        config = self._cached("config.json")
        commit = _COMMIT.search(config.as_posix()) if config else None
        place = f"{self.subfolder}/{item}" if self.subfolder else item
        first_use.hold(self.source, self.pinned or "main", place, sha256, commit[1] if commit else None)

    def check_folder(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise UserError(
                f"there is no folder {self.folder}", "give the folder of a model, or a repository on the hub"
            )

    def _load(self, network_class: Untyped, unused: Collection[str] = (), **options: Untyped) -> Untyped:
        """Load the weights into a network. Refuse a checkpoint that lacks weights, or has changed on the hub.

        Weights are identified by their files or, if transformers converted another format, by their tensors.
        """
        with explained(self):
            network, loading = network_class.from_pretrained(
                **self.arguments, use_safetensors=True, output_loading_info=True, **options
            )
        missing = loading["missing_keys"]
        if lacking := [name for name in sorted(missing) if not set(unused) & set(name.split("."))]:
            raise UserError(
                f"{self.words} lacks some weights of its network, which would stay random: {', '.join(lacking[:3])}",
                "check that the checkpoint is complete",
            )
        if files := self._weight_files():
            self._hold_files(*files)
        elif self.folder is None:
            used = [tensor for name, tensor in network.state_dict().items() if name not in missing]
            self.hold(f"{type(network).__name__} in {network.dtype}", digest(used))
        return network

    def _weight_files(self) -> list[str]:
        for stem in _WEIGHTS if self.folder is None else ():
            if self._cached(f"{stem}.safetensors"):
                return [f"{stem}.safetensors"]
            if index := self._cached(f"{stem}.safetensors.index.json"):
                return sorted(set(json_object(index)["weight_map"].values()))
        return []

    def _hold_files(self, *names: str) -> None:
        """Check that each of these cached files equals the file at its first use."""
        for name in names if self.folder is None else ():
            if (file := self._cached(name)) is not None:
                self.hold(name, sha256_of(file))

    def _cached(self, name: str) -> Path | None:
        """Return a file from the local cache of the hub; None if it is not cached."""
        path = f"{self.subfolder}/{name}" if self.subfolder else name
        found = huggingface_hub.try_to_load_from_cache(self.source, path, revision=self.pinned)
        return Path(found) if isinstance(found, str) else None

    def _check_weights(self) -> None:
        if self.folder is None:
            return
        folder = self.folder / self.subfolder
        if not any(folder.glob("*.safetensors")):
            raise UserError(
                f"{folder} has no .safetensors file; tintype reads no other format, since other formats can run code",
                "load the model with transformers and save it with save_pretrained",
            )
        _check_json(folder, "model.safetensors.index.json")

    def _check_tokenizer_files(self) -> None:
        if self.folder is None:
            return
        folder = self.folder / self.subfolder
        if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
            wanted = ", ".join(" with ".join(names) for names in _TOKENIZERS)
            raise UserError(f"{folder} has no text tokenizer (one of the files {wanted})", _TOKENIZER_ADVICE)
        _check_json(folder, "tokenizer.json", "tokenizer_config.json", "vocab.json")


def _check_json(folder: Path, *names: str) -> None:
    for name in names:
        if (folder / name).is_file():
            json_object(folder / name)


def json_object(file: Path) -> dict[str, Untyped]:
    with as_user_error(ValueError, str(file)):
        return read_object(file)


@contextmanager
def explained(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn any error of transformers about a checkpoint into an error message with a fix.

    Even plain `Exception` is caught, since tokenizers raises it; a wrong config value raises `TypeError`.
    """
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if checkpoint.folder is not None:
            remedy = "is the folder whole?"
        elif _is_out_of_reach(error):
            reason = why_unreachable() or f"no answer from {constants.ENDPOINT}"
            first = f"there is no connection to the hub ({reason}), and the cache {constants.HF_HUB_CACHE} lacks it"
            at = f" --revision {quote(checkpoint.pinned)}" if checkpoint.pinned else ""
            at += f" --include {quote(checkpoint.subfolder + '/*')}" if checkpoint.subfolder else ""
            remedy = (
                f"with a network, `hf download {quote(checkpoint.source)}{at}` fills the cache of a machine, which can "
                "be copied here; or give the path of a local copy as its source: text.weights, tokenizer.weights, "
                "`source` of an encoder or a teacher (docs/how-to/offline.md). The recipes pocket and mini, on scenes, "
                "need no download"
            )
        else:
            remedy = (
                "check the name, the revision (one with safetensors) and the connection, log in if it is gated "
                "(`hf auth login`), or give the path of a local copy as its source"
            )
        raise UserError(f"cannot load {checkpoint.words}: {first}", f"\n{remedy}") from error


def why_unreachable() -> str:
    """Return why the hub cannot be reached; empty if it may be reachable, or behind a proxy.

    The check is fast, while the hub's own library would try for half a minute.
    """
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, None)
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return ""


def _is_out_of_reach(error: BaseException | None) -> bool:
    """Return whether the error, or its cause, means that the hub was not reached and the cache lacks a file."""
    while error is not None:
        if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' report on unused tensors, which this module checks, and its bar for tensors."""
    shown = not are_progress_bars_disabled()
    with quiet("transformers"):
        if shown:
            enable_progress_bars()
        yield
