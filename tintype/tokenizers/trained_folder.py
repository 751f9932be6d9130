"""The folder of a tokenizer that `tintype tokenizer train` wrote, with weights, and with a record of their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from tintype.config.strict import first_problem
from tintype.errors import UserError
from tintype.runtime.files import write_bytes, write_json
from tintype.runtime.forms import forms_of, misfits
from tintype.runtime.identity import check_pin, check_same
from tintype.settings import LocalFiles, PathText, Plain, Settings, plain
from tintype.tokenizers.latent import CHANNEL_LEAST_STD, CHANNEL_MEAN, CHANNEL_MOST_STD, LatentTokenizer
from tintype.tokenizers.part import NONE_KNOWN, Compression, Known, TokenizerPart

R = TypeVar("R", bound=Settings)


@dataclass(frozen=True)
class TrainedFiles:
    """The kind of tokenizer, the names of its two files, their format, and the command that trains it."""

    kind: str
    weights: str
    record: str
    format: int
    command: str

    def is_trained(self, folder: Path) -> bool:
        return (folder / self.record).exists()

    def write(self, folder: Path, tensors: Mapping[str, Tensor], record: Callable[[str], R]) -> R:
        """Write the weights, then a record with their SHA-256; a record thus shows that the weights are complete."""
        content = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
        made = record(hashlib.sha256(content).hexdigest())
        write_bytes(folder / self.weights, content)
        write_json(folder / self.record, plain(made))
        return made

    def read_record(self, folder: Path, form: type[R]) -> R:
        path = folder / self.record
        if not path.is_file():
            state = "its training has not ended" if (folder / "checkpoints").is_dir() else "it is none"
            raise UserError(
                f"{folder.absolute()} has no trained {self.kind} ({self.record} is missing: {state})",
                f"train one with `{self.command}`",
            )
        try:
            return form.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise UserError(
                f"{path} is damaged, or is not the record of a {self.kind} in the format that this version of "
                f"tintype reads ({self.format}): {first_problem(error)}",
                "restore an undamaged copy, or train again",
            ) from None

    def fill(self, folder: Path, network: nn.Module, recorded: str, pinned: str | None) -> None:
        """Load the weights into a network; refuse weights that do not match the record."""
        path = folder / self.weights
        if not path.is_file():
            raise UserError(f"{path} is missing, but {self.record} names it", "restore the file, or train again")
        content = path.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        check_same(folder / self.record, f"SHA-256 of {path}", recorded, found, "put the file back, or train anew")
        check_pin("tokenizer.sha256", pinned, f"{path}, where others were trained", found, "give the right folder")
        tensors: dict[str, Any] = {}
        try:
            tensors = load(content)
            wrong = misfits(forms_of(tensors), forms_of(network.state_dict()))
        except SafetensorError as error:
            wrong = str(error)
        if wrong:
            raise UserError(f"{path} does not contain the network that {self.record} describes: {wrong}")
        network.load_state_dict(tensors)


class FolderPart(TokenizerPart):
    """Settings of a tokenizer in a trained folder. The number of channels and the stride come from the record."""

    files: ClassVar[TrainedFiles]
    why_not_exported: ClassVar[str | None] = "it is tintype's own network, which diffusers has no class for"

    folder: PathText = Field(min_length=1, description="Folder that `tintype tokenizer train --out` wrote")
    sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the tokenizer's weights; weights with another hash are refused",
    )
    channels: int | None = Field(
        None, ge=1, description="Channels of the latents; by default as in the folder's record"
    )
    stride_px: int | None = Field(None, ge=1, description="Pixels per latent; by default as in the folder's record")

    def recorded(self, folder: Path) -> tuple[Compression, Plain]:
        """Return the size of latents and how the tokenizer was trained, from the record of a folder."""
        raise NotImplementedError

    @property
    def place(self) -> Path:
        return Path(self.folder).expanduser()

    @property
    def compression(self) -> Compression:
        if self.channels is None or self.stride_px is None:
            raise ValueError(
                f"tokenizer: give channels and stride_px of the {self.kind}, or call resolved() to read them"
            )
        return Compression(self.channels, self.stride_px)

    def resolved(self, known: Known = NONE_KNOWN) -> Self:
        if self.channels is not None and self.stride_px is not None:
            return self
        if self.files.is_trained(self.place) or self.folder not in known:
            known = {self.folder: self.recorded(self.place)[0]}
        return self.model_copy(update=asdict(known[self.folder]))

    def left_out_of_hash(self) -> Collection[str]:
        return "channels", "stride_px"

    def training_record(self) -> Plain:
        return self.recorded(self.place)[1]

    def local_files(self) -> LocalFiles:
        files = {name: self.place / name for name in (self.files.weights, self.files.record)}
        return LocalFiles("folder", files, records=frozenset({self.files.record}))

    def portable(self) -> Plain:
        return {key: value for key, value in super().portable().items() if key not in ("folder", "sha256")}

    def check_shape(self, found: Compression) -> None:
        """Refuse a network whose channels or stride differ from the settings."""
        if (self.channels or found.channels, self.stride_px or found.stride_px) != (found.channels, found.stride_px):
            raise UserError(
                f"tokenizer.channels and tokenizer.stride_px are {self.channels} and {self.stride_px}, but the "
                f"{self.kind} in {self.folder} has {found.channels} and {found.stride_px}",
                "leave both settings out, or name the right folder",
            )


class MeasuredTokenizer(LatentTokenizer):
    """A tokenizer whose network stores the mean and deviation of each latent channel, measured after training."""

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        odd_C = (mean_C.abs() > CHANNEL_MEAN) | (std_C < CHANNEL_LEAST_STD) | (std_C > CHANNEL_MOST_STD)
        if not odd_C.any():
            return None
        worst = int(odd_C.nonzero()[0])
        return (
            f"channel {worst} of the latents has mean {float(mean_C[worst]):.3g} and deviation "
            f"{float(std_C[worst]):.3g}, far from the 0 and 1 that were measured where it was trained: this data is "
            "another; train a tokenizer on it (`tintype tokenizer train`)"
        )

    def _normalised(self, latent_BCHW: Tensor) -> Tensor:
        z_BCHW: Tensor = (latent_BCHW - self.network.latent_mean) / self.network.latent_std
        return z_BCHW

    def _raw(self, z_BCHW: Tensor) -> Tensor:
        latent_BCHW: Tensor = z_BCHW * self.network.latent_std + self.network.latent_mean
        return latent_BCHW
