"""Fetches models of the Hugging Face Hub, whole or as far as a plan needs them.

A plan needs configs, tokenizer, and the headers and digests of the weights. The weights, up to hundreds of
gigabytes, are downloaded only for steps that read them: a build that has nothing to do, or one whose engines
are in a store, needs none. The errors of `huggingface_hub` become errors of one clear line.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import MappingProxyType
from typing import Any

from trtspec.base.cache import cache_folder
from trtspec.base.errors import DatasetError, ModelError, TensorError, TrtspecError, UnavailableError
from trtspec.base.files import locked, publish
from trtspec.base.progress import Advance, Progress, no_progress
from trtspec.base.roles import Role
from trtspec.base.threads import in_threads
from trtspec.base.units import lacking
from trtspec.models.source import (
    INDEX,
    SINGLE,
    Source,
    Tensor,
    data_start,
    has_file,
    read_index,
    refuse_foreign,
    weight_files,
)
from trtspec.recipe.loader import LoadedRecipe

COMMIT = re.compile("[0-9a-f]{40}")
_TRANSPORTS = ("requests", "urllib3", "httpx", "httpcore")
_NETWORK = "check the network, its proxy and HF_ENDPOINT"
_LOG_IN = "hf auth login, or set HF_TOKEN"


@dataclass(frozen=True, slots=True)
class HubKind:
    """A kind of thing on the Hub."""

    name: str
    local: str
    """Its name on this machine: a folder or a file."""
    path: str
    """Its prefix in the Hub's URLs."""
    error: type[TrtspecError]
    """The error if it cannot be fetched."""


MODEL = HubKind("model", "folder", "", ModelError)
DATASET = HubKind("dataset", "file", "datasets/", DatasetError)


def find_commit(repo_id: str, revision: str | None, timeout: float) -> str:
    """The commit that a revision names now.

    Raises ModelError, or UnavailableError if the Hub does not answer within `timeout` seconds.
    """
    from huggingface_hub import HfApi

    if revision and COMMIT.fullmatch(revision):
        return revision
    with explained(repo_id, revision, timeout=timeout):
        return str(HfApi().model_info(repo_id, revision=revision, timeout=timeout).sha)


def check_access(repo_id: str, revision: str | None, timeout: float) -> None:
    """Raises ModelError for a model that this machine may not download; what is no model passes.

    Raises UnavailableError if the Hub does not answer within `timeout` seconds. It is asked only once:
    `get_hf_file_metadata` would try for 23 s.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    with explained(repo_id, revision, timeout=timeout), suppress(EntryNotFoundError):
        url = hf_hub_url(repo_id, "config.json", revision=revision)
        hf_raise_for_status(get_session().head(url, headers=build_hf_headers(), timeout=timeout))


def check_connection(timeout: float) -> None:
    """Raises UnavailableError if the Hub does not answer within `timeout` seconds."""
    from huggingface_hub import get_session
    from huggingface_hub.constants import ENDPOINT

    try:
        with explained(ENDPOINT, None, timeout=timeout):
            get_session().head(ENDPOINT, timeout=timeout)
    except ModelError as error:
        raise UnavailableError(ENDPOINT, "cannot be reached", _NETWORK) from error


@contextmanager
def explained(
    repo_id: str, revision: str | None, kind: HubKind = MODEL, *, timeout: float | None = None
) -> Iterator[None]:
    """Turns the library's errors within this context into the kind's error.

    An answer that takes longer than `timeout` seconds is an UnavailableError; with None it may take any time.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except HFValidationError as error:
        problem = f"is neither a {kind.local} nor the name of a {kind.name} on the Hugging Face Hub"
        repair = f"write owner/name, or a {kind.local} relative to the recipe"
        raise kind.error(repo_id, problem, repair) from error
    except GatedRepoError as error:
        repair = f"accept its terms at https://huggingface.co/{kind.path}{repo_id}, then: {_LOG_IN}"
        problem = f"is a gated {kind.name}, and this machine has no access to it"
        raise kind.error(repo_id, problem, repair) from error
    except RepositoryNotFoundError as error:
        raise _not_found(repo_id, kind) from error
    except RevisionNotFoundError as error:
        problem = f"has no revision {revision}"
        raise kind.error(repo_id, problem, "name a commit, tag or branch of it") from error
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise _not_reached(repo_id, kind, error.__cause__ or error) from error
    except OfflineModeIsEnabled as error:
        raise _not_reached(repo_id, kind, error) from error
    except Exception as error:
        # Of either HTTP library that huggingface_hub may use.
        if timeout and "Timeout" in type(error.__cause__ or error).__name__:
            raise UnavailableError("the Hub", f"does not answer within {timeout:g} s", _NETWORK) from error
        is_transfer = type(error) is OSError and error.errno is None  # raised for a file of the wrong size
        if not is_transfer and type(error).__module__.partition(".")[0] not in _TRANSPORTS:
            raise
        if "Connect" in type(error).__name__:
            raise _not_reached(repo_id, kind, error) from error
        problem = f"the download was interrupted ({type(error).__name__})"
        raise kind.error(repo_id, problem, "run the command again; it continues where it stopped") from error


def _not_found(repo_id: str, kind: HubKind) -> TrtspecError:
    from huggingface_hub import get_token

    problem = f"is neither a {kind.local} nor a {kind.name} of the Hugging Face Hub that this machine may see"
    private = (
        f"for a private {kind.name}, use a token that may read it"
        if get_token()
        else f"for a private {kind.name}: {_LOG_IN}"
    )
    return kind.error(repo_id, problem, f"check the spelling; write a {kind.local} as ./{repo_id}; {private}")


def _not_reached(repo_id: str, kind: HubKind, error: BaseException) -> TrtspecError:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        problem = "is not complete on this machine, and HF_HUB_OFFLINE is set"
        return kind.error(repo_id, problem, "unset HF_HUB_OFFLINE once, to download it")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return kind.error(repo_id, "the Hub does not accept the token of this machine", _LOG_IN)
    if status == 403:
        return kind.error(
            repo_id, f"the token of this machine may not read this {kind.name}", "use a token that may"
        )
    if status is not None:
        repair = "try again later" if status >= 500 or status == 429 else _NETWORK
        return kind.error(repo_id, f"the Hub answered with status {status}", repair)
    repair = f"check the network and HF_ENDPOINT; write a {kind.local} of this machine as ./{kind.local}"
    return kind.error(repo_id, "is not complete on this machine, and the Hub cannot be reached", repair)


_DIGESTS = ".sha256.json"
_SHA256 = re.compile("[0-9a-f]{64}")
_THREADS = 8  # more than processors: a request mostly waits for the network


def fetch_headers(repo_id: str, snapshot: Path, weights: Sequence[Any], watch: Progress) -> Path:
    """Returns a folder that has a snapshot's files, and in place of its weights their headers.

    Each header is followed by a hole as long as the data. `weights` are huggingface_hub's `RepoFile`s; of
    each the Hub has the SHA-256. Raises TensorError.
    """
    made = headers_of(snapshot)
    made.parent.mkdir(parents=True, exist_ok=True)
    with (
        locked(made.with_name(f".{made.name}.lock"), lambda: None),
        TemporaryDirectory(dir=made.parent, prefix=".", ignore_cleanup_errors=True) as temporary,
    ):
        if made.is_dir():  # Another process has created it meanwhile.
            return made
        new = Path(temporary, snapshot.name)
        new.mkdir()
        for file in snapshot.iterdir():
            if file.is_file():
                (new / file.name).write_bytes(file.read_bytes())
        templates = snapshot / "additional_chat_templates"
        if templates.is_dir():
            shutil.copytree(templates, new / templates.name)
        (new / _DIGESTS).write_text(json.dumps({file.path: file.lfs.sha256 for file in weights}))
        with watch(f"read the headers of {repo_id}", None) as advance:
            in_threads(partial(_outline, repo_id, new), [file.path for file in weights], advance, _THREADS)
        publish(new, made)
    return made


def headers_of(snapshot: Path) -> Path:
    """Returns the folder that has a snapshot with the headers of its weights, if this machine has them."""
    return cache_folder() / "outlines" / snapshot.parent.parent.name / snapshot.name


def located(
    files: Iterable[Path], trusted: Collection[Path] = ()
) -> tuple[dict[Path, Path], dict[Path, str]]:
    """Returns where each file is now, and the SHA-256 that is known of some of these places.

    The Hub tells that of weights that were not downloaded. Its cache tells that of a large file, unchecked;
    this counts in `trusted` folders.
    """
    places = {file: _downloaded(file) for file in files}
    known = dict[Path, str]()
    for folder in {place.parent for place in places.values()}:
        told = folder / _DIGESTS
        found = json.loads(told.read_text()) if told.is_file() else {}
        if folder in trusted:
            blobs = ((file.name, file.readlink().name) for file in folder.iterdir() if file.is_symlink())
            found |= {name: blob for name, blob in blobs if _SHA256.fullmatch(blob)}
        known |= {folder / name: sha for name, sha in found.items()}
    return places, known


def _downloaded(file: Path) -> Path:
    """Returns a weight file of a snapshot, if it was downloaded since `file` got its header; else `file`."""
    folder = file.parent
    if not (folder / _DIGESTS).is_file():
        return file
    from huggingface_hub.constants import HF_HUB_CACHE

    whole = Path(HF_HUB_CACHE, folder.parent.name, "snapshots", folder.name, file.name)
    return whole if whole.is_file() else file


def is_headers_only(folder: Path) -> bool:
    """Returns True if the folder has only the headers of a model's weights."""
    return (folder / _DIGESTS).is_file()


def with_weights(source: Source) -> Source:
    """Returns the model, whose weights are about to be read, where they are now.

    Raises ModelError if they are not on this machine.
    """
    if not is_headers_only(source.folder):
        return source
    tensors = dict[str, Tensor]()
    for name, tensor in source.tensors.items():
        if (file := _downloaded(tensor.file)) == tensor.file:
            problem = "has only the headers of a model, and its build has changed meanwhile"
            raise ModelError(source.folder, problem, "run the command again")
        # The header that the Hub tells is written in another way.
        by = data_start(file) - data_start(tensor.file)
        tensors[name] = replace(tensor, file=file, start=tensor.start + by, end=tensor.end + by)
    folder = next(iter(tensors.values())).file.parent
    return replace(source, folder=folder, tensors=MappingProxyType(tensors))


def _outline(repo_id: str, folder: Path, name: str) -> int:
    """Writes the header of a weight file and a hole as long as its data; returns 0 bytes of progress."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        found = HfApi().parse_safetensors_file_metadata(repo_id, name, revision=folder.name).tensors
    except (SafetensorsParsingError, struct.error, TypeError) as error:
        raise TensorError(f"{repo_id}/{name}", f"is not safetensors: {error}") from error
    tensors = {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
        for name, tensor in found.items()
    }
    header = json.dumps(tensors).encode()
    end = max((tensor.data_offsets[1] for tensor in found.values()), default=0)
    with (folder / name).open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + end)
    return 0


_CONFIGS = ("*.json", "*.jinja")
# Folders, besides additional_chat_templates/, hold other formats of the same model: original/, onnx/, gguf/.
_ELSEWHERE = ["[!a]*/*", "a[!d]*/*", "ad[!d]*/*"]
_INTERVAL_S = 0.5


def fetch(
    location: Path | str, revision: str | None = None, watch: Progress = no_progress, *, weights: bool = True
) -> Path:
    """Returns a model's folder; that of a model of the Hub is named after its commit.

    What this machine lacks of it is downloaded; without `weights` only their headers are, unless they are so
    small that the Hub has no SHA-256 of them. Raises ModelError, TensorError, or UnavailableError if the disk
    has no room for it.
    """
    if isinstance(location, Path):
        return location
    from huggingface_hub.constants import HF_HUB_OFFLINE

    # A commit never changes, so the Hub need not be asked. A branch or tag can change, and the cached one is
    # used only if the Hub may not be asked.
    is_settled = HF_HUB_OFFLINE or COMMIT.fullmatch(revision or "")
    cached = cached_folder(location, revision) if is_settled else None
    if cached and is_whole(cached):
        return cached
    with explained(location, revision):
        folder, names = _begin(location, revision)
        if all((folder / name).is_file() for name in names):
            return folder
        if not weights and (headers := headers_of(folder)).is_dir():
            return headers
        files = _find(location, folder, names)
        if weights or not all(file.lfs for file in files):
            _download(location, folder, files, watch)
            return folder
        return fetch_headers(location, folder, files, watch)


def _download(repo_id: str, folder: Path, files: Sequence[Any], watch: Progress) -> None:
    from huggingface_hub import snapshot_download

    # The cache's files are named by digests.
    cache, names = folder.parent.parent / "blobs", [file.path for file in files]
    blobs = {cache / (file.lfs.sha256 if file.lfs else file.blob_id): file.size for file in files}
    _check_space(repo_id, folder, blobs)
    with watch(f"download {repo_id}", sum(blobs.values())) as advance, _counted(blobs, advance):
        snapshot_download(repo_id, revision=folder.name, allow_patterns=names)


def cached_folder(location: Path | str, revision: str | None = None) -> Path | None:
    """Returns a model's folder; that of a model of the Hub is its snapshot in the cache, complete or not.

    None if the cache has none. The network is not used.
    """
    if isinstance(location, Path):
        return location
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(location, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def local_folder(location: Path | str, revision: str | None = None, *, is_head: bool = False) -> Path:
    """Returns a model's folder, in which the weights may be their headers alone, and asks the Hub nothing.

    Raises UnavailableError for a model of the Hub that this machine lacks, or has in part.
    """
    folder = cached_folder(location, revision)
    if folder is None:
        raise UnavailableError(str(location), "is not on this machine, and the Hub was not asked")
    if folder == location or is_head or not (problem := _lack(folder)):
        return folder
    if (headers := headers_of(folder)).is_dir():
        return headers
    raise UnavailableError(str(location), f"is incomplete in this machine's Hub cache: {problem}")


def is_whole(folder: Path) -> bool:
    """Says whether all weights and the tokenizer are there."""
    return _lack(folder) is None


def _lack(folder: Path) -> str | None:
    """Returns what an interrupted download has left out of a folder; None for a whole one."""
    try:
        weight_files(folder)
        return None if has_file(folder / "tokenizer.json") else "has no tokenizer.json"
    except ModelError as error:
        return error.problem


def _begin(repo_id: str, revision: str | None) -> tuple[Path, list[str]]:
    """Downloads configs and tokenizer; returns their folder and the names of the model's weight files."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    folder = Path(
        snapshot_download(
            repo_id, revision=revision, allow_patterns=list(_CONFIGS), ignore_patterns=_ELSEWHERE
        )
    )
    index = folder / INDEX
    return folder, sorted(set(read_index(index).values())) if index.is_file() else [SINGLE]


def _find(repo_id: str, folder: Path, names: Sequence[str]) -> Sequence[Any]:
    """The Hub's metadata of these files, huggingface_hub's `RepoFile`; raises ModelError if it lacks one.

    `folder` has the configs, and its name is the commit.
    """
    from huggingface_hub import HfApi

    commit = folder.name
    found = HfApi().get_paths_info(repo_id, list(names), revision=commit)
    if missing := set(names) - {file.path for file in found}:
        refuse_foreign(repo_id, HfApi().list_repo_files(repo_id, revision=commit), folder)
        problem = f"has no {min(missing)}"
        raise ModelError(repo_id, problem, "choose a model that is published as safetensors")
    return found


def cache_of(repo_id: str) -> tuple[Path, int]:
    """Returns the Hub's cache, and the bytes that it already has of any revision of a model."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE)
    blobs = cache / repo_folder_name(repo_id=repo_id, repo_type="model") / "blobs"
    files = blobs.iterdir() if blobs.is_dir() else ()
    return cache, _present(files)


def _present(blobs: Iterable[Path]) -> int:
    """The bytes of these files on the disk, including unfinished downloads."""
    present = 0
    for blob in blobs:
        for file in (blob, blob.with_name(f"{blob.name}.incomplete")):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue
            # Chunks arrive in any order, so a file may be longer than its content.
            present += stat.st_size if file == blob else min(stat.st_size, stat.st_blocks * 512)
    return present


def _check_space(repo_id: str, folder: Path, blobs: Mapping[Path, int]) -> None:
    """Raises UnavailableError without room for what is missing; `blobs` has the size of each."""
    needed, free = sum(blobs.values()) - _present(blobs), shutil.disk_usage(folder).free
    if needed > free:
        problem = f"{repo_id} needs {lacking(needed, free)}"
        raise UnavailableError(folder, problem, "free some space, or set HF_HOME to a folder that has it")


@contextmanager
def _counted(blobs: Mapping[Path, int], advance: Advance) -> Iterator[None]:
    """Reports the bytes that arrive by looking at the files: the library reports only to its own bars."""
    over, counted = Event(), 0

    def count() -> None:
        nonlocal counted
        present = _present(blobs)
        advance(present - counted)
        counted = present

    def watch() -> None:
        while not over.wait(_INTERVAL_S):
            count()

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        count()


_HUB_TIMEOUT_S = 1.5


def find_models(
    loaded: LoadedRecipe, known: Collection[Role], watch: Progress, *, asks: bool
) -> dict[Role, Path | TrtspecError]:
    """Returns the folder of each model of a recipe, or the reason why one that is `known` cannot be had.

    Weights are not downloaded, but a head is: it is small, and which tokens it knows is among its tensors.
    Without `asks` the Hub is not asked. Raises what `fetch` and `refused` find of one that is not.
    """
    models, found = loaded.recipe.models, dict[Role, Path | TrtspecError]()
    heads = {Role.DRAFT} if loaded.recipe.speculation.method.is_head else set[Role]()
    if not asks:
        for role, location in loaded.locations.items():
            try:
                found[role] = local_folder(location, models[role].revision, is_head=role in heads)
            except UnavailableError as lacking:
                if role not in known:
                    raise
                found[role] = lacking
        return found
    not_given = refused(loaded, known)
    for role, location in loaded.locations.items():
        error = not_given.get(role)
        if error and role in known:
            found[role] = error
        elif error and not isinstance(error, UnavailableError):
            raise error
        else:
            found[role] = fetch(location, models[role].revision, watch, weights=role in heads)
    return found


def refused(loaded: LoadedRecipe, known: Collection[Role] = ()) -> dict[Role, TrtspecError]:
    """Returns why the Hub does not give those models that this machine lacks; it is asked for all at once.

    A model that is `known` is lacking too where only some of its files are here.
    """

    def refusal(role: Role, name: str) -> TrtspecError | None:
        revision = loaded.recipe.models[role].revision
        folder = cached_folder(name, revision)
        if folder and (role not in known or is_whole(folder) or headers_of(folder).is_dir()):
            return None
        try:
            check_access(name, revision, _HUB_TIMEOUT_S)
        except TrtspecError as error:
            return error
        return None

    with ThreadPoolExecutor(len(Role)) as pool:
        names = {role: name for role, name in loaded.locations.items() if isinstance(name, str)}
        found = {role: pool.submit(refusal, role, name) for role, name in names.items()}
        return {role: error for role, future in found.items() if (error := future.result())}
