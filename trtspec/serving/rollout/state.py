"""The state of a roll-out, which assigns requests to arms, and its file, which the writer replaces whole."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from trtspec.serving.errors import RolloutError

Mode = Literal["speculate", "shadow"]
VERSION = 1
PLAIN, SHADOW, SPECULATE = ARMS = ("plain", "shadow", "speculate")
"""The arms: the target decodes alone, or drafts are scored beside that (shadow), or they are verified."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The state of a roll-out: a share of the requests is in one arm, and the others are plain."""

    mode: Mode = "speculate"
    """The arm of the share."""
    share: float = 1.0
    """The share of the requests, 0 to 1."""

    def arm(self, position: float) -> str:
        """Returns the arm of the request at a position. A larger share has all requests of a smaller one."""
        return self.mode if position < self.share else PLAIN

    def share_of(self, mode: Mode) -> float:
        return self.share if mode == self.mode else 0.0


def position_of(tenant: str, user: str, prompt: memoryview) -> float:
    """Returns the position of a request among all, 0 to 1, always the same for one user of a tenant.

    Without a `user` it depends on the tenant and the `prompt`, token ids of 32 bits.
    """
    digest = blake2b(tenant.encode(errors="replace"), digest_size=8)
    digest.update(b"\0user\0" + user.encode(errors="replace") if user else b"\0prompt\0")
    if not user:
        digest.update(prompt)
    return (int.from_bytes(digest.digest(), "big") >> 11) / 2**53


def parse(text: str) -> RolloutState:
    """Returns the state in a roll-out's file, whose other keys are its writer's; raises `RolloutError`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise RolloutError("is not JSON") from None
    if not isinstance(found, dict):
        raise RolloutError("is not a JSON object")
    if found.get("version") != VERSION:
        raise RolloutError(f"version is {found.get('version')!r}, but this server reads {VERSION}")
    mode, share = found.get("mode"), found.get("share")
    if mode not in (SPECULATE, SHADOW):
        raise RolloutError(f"mode is {mode!r}, and must be {SPECULATE} or {SHADOW}")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise RolloutError(f"share is {share!r}, and must be a number from 0 to 1")
    return RolloutState(mode, float(share))


ROLLOUT = "TRTSPEC_ROLLOUT"
"""The environment variable with the path of the file, which need not exist."""
LOOK_S = 1.0
"""The seconds between two looks."""
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class RolloutReading:
    """The content of the file: a state, or the problem with it."""

    state: RolloutState | None = None
    """None if there is no file or a problem with it."""
    problem: str = ""
    """The problem with the file, in one line; empty if there is none."""


class RolloutFile:
    """Reads the file again when it has changed. A look at an unchanged file is one system call.

    Each look opens its path again: in Kubernetes the path of a ConfigMap's file is a link, which leads to
    another file after a change.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: object = None

    def look(self) -> RolloutReading | None:
        """Returns the content of the file if it may have changed since the last look, else None."""
        seen = self._status()
        if seen == self._seen:
            return None
        self._seen = seen
        return self._read()

    def _status(self) -> object:
        try:
            status = os.stat(self.path)
        except OSError as error:
            return error.errno
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> RolloutReading:
        try:
            with self.path.open("rb") as file:
                return RolloutReading(parse(file.read(_MOST_BYTES).decode(errors="replace")))
        except (FileNotFoundError, NotADirectoryError):
            return RolloutReading()
        except OSError as error:
            return RolloutReading(problem=f"cannot be read: {error.strerror}")
        except RolloutError as error:
            return RolloutReading(problem=str(error))
