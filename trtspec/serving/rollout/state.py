"""Defines the state of a roll-out: which requests have drafts; pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from trtspec.serving.errors import RolloutError

Mode = Literal["speculate", "shadow"]
VERSION = 1
PLAIN, SHADOW, SPECULATE = ARMS = ("plain", "shadow", "speculate")
"""The arms of requests.

Plain: the target decodes alone. Shadow: it decodes alone, and drafts are scored. Speculate: drafts are
verified.
"""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The arms of a roll-out and how requests are shared out among them."""

    mode: Mode = "speculate"
    """The arm of a share of the requests; the others are plain."""
    share: float = 1.0
    """The share of the requests that is of the arm `mode`, 0 to 1."""

    def arm(self, place: float) -> str:
        """Returns the arm of a request; who is in at one share is in at every larger one."""
        return self.mode if place < self.share else PLAIN

    def share_of(self, mode: Mode) -> float:
        return self.share if mode == self.mode else 0.0


def place_of(tenant: str, user: str, prompt: memoryview) -> float:
    """Returns the place of a request among all, 0 to 1, always the same for one user of a tenant.

    A request without a `user` has the place of its prompt, which are token ids of 32 bits.
    """
    digest = blake2b(tenant.encode(errors="replace"), digest_size=8)
    digest.update(b"\0user\0" + user.encode(errors="replace") if user else b"\0prompt\0")
    if not user:
        digest.update(prompt)
    return (int.from_bytes(digest.digest(), "big") >> 11) / 2**53


def parse(text: str) -> RolloutState:
    """Returns what a file of the roll-out says; raises `RolloutError`.

    The file may have other keys, which are for whoever writes it.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise RolloutError("is not JSON") from None
    if not isinstance(said, dict):
        raise RolloutError("is not a JSON object")
    if said.get("version") != VERSION:
        raise RolloutError(f"version is {said.get('version')!r}, but this server reads {VERSION}")
    mode, share = said.get("mode"), said.get("share")
    if mode not in (SPECULATE, SHADOW):
        raise RolloutError(f"mode is {mode!r}, and must be {SPECULATE} or {SHADOW}")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not _is_share(share):
        raise RolloutError(f"share is {share!r}, and must be a number from 0 to 1")
    return RolloutState(mode, float(share))


def _is_share(value: float) -> bool:
    return math.isfinite(value) and 0 <= value <= 1
