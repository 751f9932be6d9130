"""Upload a folder with a card to the hub, after showing it and asking for consent.

All files are uploaded in one commit, so a repository has either the whole folder or its previous content. Files that
were uploaded before an interruption are already on the hub, and are not uploaded again.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from huggingface_hub import CommitOperationAdd, HfApi, errors, get_token
from huggingface_hub.hf_api import RepoFile

from tintype.errors import UserError
from tintype.export.contract import holds
from tintype.export.model_card import CARD
from tintype.export.public import HUB_NAME
from tintype.train.record import EVALUATION, RunRecord, is_run
from tintype.wording import again, option

_LOG_IN = f"log in with `hf auth login` (or set HF_TOKEN) with a token that may write, then {again()} again"
_AGAIN = f"{again()} again: what is on the hub already is not sent twice"
_PICKLES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".joblib", ".npy", ".npz"})
"""File suffixes of pickles. Files of numpy arrays may contain pickles."""
_HTTP_ERROR: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
_PICKLE_STARTS = frozenset(bytes([0x80, protocol]) for protocol in range(2, 6))


@dataclass(frozen=True)
class Upload:
    folder: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    """Files that are not uploaded, such as hidden files and folders, and files from scoring an exported model."""

    @property
    def sizes(self) -> dict[str, int]:
        return {name: (self.folder / name).stat().st_size for name in self.files}


@dataclass(frozen=True)
class Destination:
    url: str
    account: str
    exists: bool
    private: bool


@dataclass(frozen=True)
class Pushed:
    url: str
    commit: str
    changed: bool
    """Whether the upload changed the repository. False if the repository already had these files."""


Consent = Callable[[Upload, Destination], bool]


def collect(folder: Path, repo: str = "OWNER/NAME") -> Upload:
    """Return the files of a folder to upload. Raise if the folder contains something that must not be published."""
    if not folder.is_dir():
        raise UserError(f"the folder {folder} does not exist", "`tintype export` writes such a folder")
    record = RunRecord(folder)
    if record.metrics_file.exists() and record.checkpoints.is_dir():
        held = is_run(folder) and holds(record.plan)
        form = "diffusers" if held else "tintype"
        raise UserError(
            f"{folder} is the folder of a run, and not meant for publishing: its plan and logs contain paths of "
            f"this machine, its checkpoints contain optimizer state",
            f"`tintype export {quote(str(folder))} --to {quote(form)} --out DIR --push {quote(repo)}` "
            "writes a folder that can be published, and uploads it",
        )
    if not (folder / CARD).is_file():
        raise UserError(
            f"{folder} has no model card", f"`tintype card RUN --out {quote(str(folder / CARD))}` writes one"
        )
    hidden, files, own = [], [], bool(record.about)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in Path(name).parts) or (own and name.partition("/")[0] == EVALUATION):
            hidden.append(name)
        elif path.is_symlink():
            raise UserError(
                f"{path} is a link",
                "replace the link by the file itself, since the target of a link is easily overlooked",
            )
        elif path.is_file():
            if path.suffix.lower() in _PICKLES or _is_pickle(path):
                raise UserError(
                    f"{path} is a pickle or may contain one, and loading a pickle can run code",
                    "publish weights as safetensors, and remove this file from the folder",
                )
            files.append(name)
    return Upload(folder, tuple(files), tuple(hidden))


def push(folder: Path, repo: str, consent: Consent, *, private: bool = False) -> Pushed | None:
    """Upload the folder to a repository, which is created if missing. Return None if the user does not consent.

    An existing repository keeps its visibility. With `private`, an existing public repository raises an error.
    """
    upload = collect(folder, repo)
    api, destination = log_in(repo, private=private)
    if not consent(upload, destination):
        return None
    with _explained(api, repo):
        before = api.model_info(repo).sha if destination.exists else None
        if not destination.exists:
            api.create_repo(repo, private=private, exist_ok=True)
        additions = [CommitOperationAdd(name, str(folder / name)) for name in upload.files]
        made = api.create_commit(repo, additions, commit_message="Upload with tintype")
        _check_arrived(api, upload, repo)
    return Pushed(destination.url, str(made.oid), changed=made.oid != before)


def log_in(repo: str, *, private: bool = False) -> tuple[HfApi, Destination]:
    """Log in with the token of huggingface_hub, and check the repository without changing it."""
    if not HUB_NAME.fullmatch(repo):
        raise UserError(f"{repo} is not a valid repository name", "write it as OWNER/NAME")
    token = get_token()
    if not token:
        raise UserError("no access token for the hub was found", _LOG_IN)
    api = HfApi(token=token, library_name="tintype")
    with _explained(api, repo):
        destination = _destination(api, repo, private)
    if private and not destination.private:
        raise UserError(
            f"{repo} exists already and is public, but {option('private')} was given",
            "make the repository private in its settings, or choose another name",
        )
    return api, destination


def _destination(api: HfApi, repo: str, private: bool) -> Destination:
    account, exists = str(api.whoami()["name"]), api.repo_exists(repo)
    private = bool(api.model_info(repo).private) if exists else private
    return Destination(f"{api.endpoint}/{repo}", account, exists, private)


def _check_arrived(api: HfApi, upload: Upload, repo: str) -> None:
    """Raise if a file was not uploaded. A .gitignore in the repository drops files without an error."""
    sizes = upload.sizes
    infos = api.get_paths_info(repo, list(upload.files))
    found = {info.path: info.size for info in infos if isinstance(info, RepoFile)}
    lost = [name for name in upload.files if found.get(name) != sizes[name]]
    if lost:
        raise UserError(
            f"{repo} does not have the uploaded content of {', '.join(lost[:5])}",
            "a .gitignore in the repository may exclude these files, or the folder may have changed during the "
            "upload. Fix this and rerun the command",
        )


def _is_pickle(path: Path) -> bool:
    """Return whether a file is a pickle, or a torch archive that contains a pickle."""
    with path.open("rb") as file:
        if file.read(2) in _PICKLE_STARTS:
            return True
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith((".pkl", ".pickle")) for name in archive.namelist())


@contextmanager
def _explained(api: HfApi, repo: str) -> Iterator[None]:
    """Turn errors of the hub and of the connection into a `UserError` whose message does not contain the token.

    `_HTTP_ERROR` is the base class of huggingface_hub's HTTP errors. A failed upload thread raises a RuntimeError. A
    malformed response or card raises a ValueError.
    """
    try:
        yield
    except (_HTTP_ERROR, OSError, RuntimeError, ValueError) as error:
        chain = list(_chain(error))
        answered = next((one for one in chain if isinstance(one, errors.HfHubHTTPError)), None)
        broken = next((one for one in chain if isinstance(one, (_HTTP_ERROR, OSError))), None)
        if answered is not None:
            what, fix = _advice(answered.response.status_code, repo)
        elif broken is not None:
            what = f"{api.endpoint} cannot be reached or broke off"
            fix = (
                f"check the connection, then {_AGAIN}. Without a network, copy the folder to a machine with a "
                f"network and push it from there"
            )
        else:
            what, fix = "huggingface_hub gave up", f"fix what it names, then {_AGAIN}"
        reason = _reason(answered or broken or chain[-1]).replace(str(api.token), "…")
        raise UserError(f"pushing to {api.endpoint}/{repo}: {what} ({reason})", fix) from None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    said = getattr(error, "server_message", None) or str(error)
    first = next(iter(str(said).strip().splitlines()), type(error).__name__)
    return re.sub(r"\s+", " ", first)[:300]


def _advice(status: int, repo: str) -> tuple[str, str]:
    """Return the meaning of an HTTP status of the hub, and advice for the user."""
    owner = repo.partition("/")[0]
    changed = "somebody else changed the repository just now", _AGAIN
    own = f"the hub has a problem of its own ({status})", f"wait, then {_AGAIN}"
    known = {
        401: ("the hub does not accept the token", _LOG_IN),
        403: ("the token may not write there", f"is '{owner}' yours, and may the token write? Else {_LOG_IN}"),
        404: ("the hub has no such repository, or none that this token may see", "check the name"),
        409: changed,
        412: changed,
        429: ("the hub asks for fewer requests", f"wait some minutes, then {_AGAIN}"),
    }
    return known.get(status, own if status >= 500 else (f"the hub answered {status}", ""))
