"""Finds the tritonserver of this machine, of NVIDIA's image, of PATH, or of the `nvidia-pytriton` wheel.

It also removes what killed ones have left in shared memory. The wheel's own Python API is not used.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from trtspec.base.cache import cache_folder
from trtspec.base.environment import without_secrets
from trtspec.base.errors import UnavailableError
from trtspec.base.extras import how_to_install
from trtspec.base.files import copy_tree, try_lock, unlock

IN_IMAGE = "/opt/tritonserver/bin/tritonserver"
"""The path of tritonserver in NVIDIA's image."""

_INSTALL = f"{how_to_install('triton')} (Linux on x86-64, Python 3.10 to 3.12)"
_CACHE = "name a writable folder with 3 MB of space: TRTSPEC_CACHE=DIR"
_AGE = (
    "nvidia-pytriton has Triton 2.51 of October 2024, which clients can attack: NVIDIA has fixed "
    "CVE-2025-23310, -23311, -23319, -23320 and -23334 in 25.07; to serve a network, use NVIDIA's image: "
    "trtspec deploy --container"
)

PREFIX = "trtspec_"

_FOLDER = Path("/dev/shm")  # noqa: S108
_LOCK = "lock"
_LOCKS = re.compile(rf"({PREFIX}\d+_[0-9a-f]{{8}}_){_LOCK}")


@dataclass(frozen=True, slots=True)
class TritonInstall:
    """A tritonserver that is installed on this machine."""

    server: Path
    """The executable."""
    backends: Path | None = None
    """The directory of its backends; None for the default."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that it needs beside those of this process, or in their place."""
    problem: str | None = None
    """The reason why other machines should not reach it; None if they may."""

    def environment(self) -> dict[str, str]:
        """Returns the environment for its start: this process's without secrets, and `variables`.

        Python writes no compiled files, so that a build stays unchanged.
        """
        return {**without_secrets(os.environ), **self.variables, "PYTHONDONTWRITEBYTECODE": "1"}


def find_triton() -> TritonInstall:
    """Returns the Triton of NVIDIA's image if this is one, else one on PATH, else that of the wheel.

    Raises `UnavailableError` where there is none.
    """
    for server in (IN_IMAGE, shutil.which("tritonserver")):
        if server and os.access(server, os.X_OK):
            return TritonInstall(Path(server))
    return find_wheel()


def find_wheel() -> TritonInstall:
    """Returns the wheel's Triton, made ready for this Python.

    Raises `UnavailableError` when the wheel is missing, or does not work with this Python or this numpy, and
    when there is no place to keep its backends.
    """
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError("nvidia-pytriton", "not installed; it contains the Triton server", _INSTALL)
    package = Path(spec.submodule_search_locations[0])
    root = package / "tritonserver"
    server = root / "bin" / "tritonserver"
    if not server.is_file():
        raise UnavailableError(server, "no such file in the installed nvidia-pytriton", _INSTALL)
    _check_numpy()
    python = _python_version()
    stub = root / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(folder.name for folder in stub.parents[1].iterdir()))
        problem = f"has no Python backend for Python {python}, only for {known}"
        raise UnavailableError("nvidia-pytriton", problem, "use one of these")
    libraries = [str(package.parent / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")]
    variables = {"PATH": [os.path.join(sys.prefix, "bin")], "LD_LIBRARY_PATH": libraries}
    return TritonInstall(server, _backends(root / "backends", stub), _before(variables), _AGE)


def _check_numpy() -> None:
    """Raises `UnavailableError` for numpy 2.

    The stubs of the wheel are built for numpy 1, and crash at the first text with numpy 2.
    """
    if sys.version_info >= (3, 13):
        problem = f"its Python backend needs numpy 1, which does not exist for Python {_python_version()}"
        raise UnavailableError("nvidia-pytriton", problem, "use Python 3.10 to 3.12")
    found = version("numpy")
    if not found.startswith("1."):
        problem = f"its Python backend needs numpy 1, but numpy {found} is installed"
        raise UnavailableError("nvidia-pytriton", problem, "pip install 'numpy<2'")


def _before(variables: Mapping[str, list[str]]) -> dict[str, str]:
    """Returns these paths before those of this process, so that Triton finds this Python and its packages."""
    present = {name: filter(None, [os.environ.get(name)]) for name in variables}
    return {name: os.pathsep.join([*paths, *present[name]]) for name, paths in variables.items()}


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _backends(source: Path, stub: Path) -> Path:
    """Returns a copy of the wheel's backends with the stub in place, made once for each wheel and Python."""
    made = stub.stat()
    name = f"{stub.parent.name}-{made.st_size}-{made.st_mtime_ns}"
    destination = cache_folder() / "triton-backends" / name
    if destination.is_dir():
        return destination
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".new-") as folder:
            new = Path(folder, "backends")
            copy_tree(source, new, "__pycache__")
            shutil.copy2(stub, new / "python")
            new.rename(destination)
    except OSError as error:
        # Another deploy may have been faster.
        if not destination.is_dir():
            problem = f"cannot store Triton's backends: {error.strerror}"
            raise UnavailableError(destination.parent, problem, _CACHE) from error
    return destination


def check_path(path: Path) -> None:
    """Raises UnavailableError for a path with characters that are special in a shell.

    Triton's Python backend starts its processes with these paths, unquoted, in a line for the shell.
    """
    if shlex.quote(str(path)) != str(path):
        repair = "put the build and TRTSPEC_CACHE into folders with plain names"
        raise UnavailableError(path, "Triton cannot serve from a path with special characters", repair)


class Regions:
    """The regions of one server, whose names begin with `prefix`, from `__init__` to `close`.

    A lock marks them as in use, also for processes of other PID namespaces: a restarted container of a pod
    finds the regions of the one before.
    """

    def __init__(self) -> None:
        self.prefix = f"{PREFIX}{os.getpid()}_{uuid.uuid4().hex[:8]}_"
        self._file = _FOLDER / f"{self.prefix}{_LOCK}"
        descriptor = try_lock(self._file)
        assert descriptor is not None, "nobody else has this name"
        self._lock = descriptor

    def remove(self) -> None:
        """Removes what a server has left; the next one of this process may follow."""
        _remove(self.prefix)

    def close(self) -> None:
        self.remove()
        unlock(self._lock, self._file)


def is_any_abandoned() -> bool:
    """Says whether a process of this user was killed that had regions, whose server may be ending."""
    with closing(_abandoned()) as found:
        for descriptor, _, _ in found:
            os.close(descriptor)
            return True
    return False


def remove_abandoned() -> None:
    """Removes the regions of this user that no process uses any more."""
    for descriptor, file, prefix in _abandoned():
        _remove(prefix)
        unlock(descriptor, file)


def _abandoned() -> Generator[tuple[int, Path, str], None, None]:
    """Yields locks whose processes are gone: a descriptor that holds it now, its file, and its prefix."""
    for file in _FOLDER.glob(f"{PREFIX}*{_LOCK}"):
        found = _LOCKS.fullmatch(file.name)
        try:
            descriptor = try_lock(file) if found and file.stat().st_uid == os.getuid() else None
        except FileNotFoundError:
            continue
        if found and descriptor is not None:
            yield descriptor, file, found[1]


def _remove(prefix: str) -> None:
    for region in _FOLDER.glob(f"{prefix}*"):
        if not region.name.endswith(f"_{_LOCK}"):
            region.unlink(missing_ok=True)
