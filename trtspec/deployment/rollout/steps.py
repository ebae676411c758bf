"""The steps of a roll-out, from no drafts to drafts for all, and the file that says which one holds."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.base.files import write_atomically
from trtspec.deployment.rollout.bounds import FEWEST_WITHOUT_ERRORS, LEAST_REQUESTS, bounds_of
from trtspec.forecast.rules import Judgement, RuleAdvice
from trtspec.serving.errors import RolloutError
from trtspec.serving.rollout.state import VERSION, RolloutState, parse


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """A step of a roll-out, with its name for people."""

    name: str
    state: RolloutState


STEPS = (
    RolloutStep("off", RolloutState("speculate", 0.0)),
    # Half of the requests, so that the other half shows what drafts cost the plain requests.
    RolloutStep("shadow", RolloutState("shadow", 0.5)),
    RolloutStep("5 %", RolloutState("speculate", 0.05)),
    RolloutStep("25 %", RolloutState("speculate", 0.25)),
    RolloutStep("50 %", RolloutState("speculate", 0.5)),
    RolloutStep("all", RolloutState("speculate", 1.0)),
)
OFF, ALL = STEPS[0], STEPS[-1]


def name_of(state: RolloutState) -> str:
    """Returns the name of a state, which need not be one of the steps: a recipe may have any share."""
    known = {step.state: step.name for step in STEPS}
    kind = "shadow " if state.mode == "shadow" else ""
    return known.get(state) or f"{kind}{state.share * 100:.4g} %"


def after(state: RolloutState) -> RolloutStep | None:
    """Returns the next step; None behind the last."""
    return next((step for step in STEPS if _height(step.state) > _height(state)), None)


def before(state: RolloutState) -> RolloutStep | None:
    """Returns the step before; None before the first."""
    return next((step for step in reversed(STEPS) if _height(step.state) < _height(state)), None)


def _height(state: RolloutState) -> tuple[int, float]:
    """Orders states: off, shadow of any share, then by the share that has drafts."""
    if not state.share:
        return 0, 0.0
    return (1, 0.0) if state.mode == "shadow" else (2, state.share)


@dataclass(frozen=True, slots=True)
class RolloutStage:
    """One step of a roll-out."""

    step: str
    """The name of the step."""
    drafts: str
    """The share of requests that has drafts, in words."""
    requests: int
    """About so many requests are needed for a verdict."""
    bounds: dict[str, str]
    """The bounds that stop the roll-out, by name."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """A roll-out before it begins."""

    stages: tuple[RolloutStage, ...]
    """The stages in their order."""
    against: tuple[Judgement, ...]
    """The rules that the pair breaks, the worst first."""
    unmeasured: tuple[Judgement, ...]
    """The rules that nobody has measured yet."""
    words: str
    """The sum of the advice in a sentence."""


def plan_of(advice: RuleAdvice) -> RolloutPlan:
    """Returns the plan for a pair with these results of the rules and the checklist."""
    judged = (*advice.rules, *advice.checklist)
    return RolloutPlan(
        tuple(_stage(step.name, step.state) for step in STEPS[1:]),
        tuple(each for each in judged if each.verdict == "no"),
        tuple(each for each in judged if each.verdict == "unmeasured" and "rollout" not in each.rule),
        advice.words,
    )


def _stage(name: str, state: RolloutState) -> RolloutStage:
    drafts = f"{state.share:.0%}" + (", scored" if state.mode == "shadow" else "")
    # Each of the two arms needs this many requests, and the one with drafts more.
    smaller = min(state.share, 1 - state.share) or 1.0
    needed = max(LEAST_REQUESTS / smaller, FEWEST_WITHOUT_ERRORS / state.share)
    return RolloutStage(name, drafts, math.ceil(needed), bounds_of(state))


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A state, and what the server had counted when it began."""

    state: RolloutState
    since: str | None = None
    """The time from which it stands so, in ISO 8601."""
    counted: Mapping[str, float] | None = field(default_factory=dict)
    """The server's counters at that time, by the names of `evidence.py`; None where the server could not be
    asked.
    """
    marked: Mapping[str, float] = field(default_factory=dict)
    """The counters at a later look; the requests since then are the latest ones. Empty before that look."""


def present() -> str:
    """Returns the present time in ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def read_record(path: Path) -> RolloutRecord | None:
    """Returns the file's record; None without a file. Raises `UnavailableError` for a broken file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise UnavailableError(path, problem, "make it a file that you may read, or remove it") from error
    try:
        state = parse(text)
    except RolloutError as error:
        raise UnavailableError(path, str(error), "trtspec rollout off writes it again") from error
    said = json.loads(text)
    since, counted = said.get("since"), said.get("counted", {})
    since = since if isinstance(since, str) else None
    known, marked = _numbers(counted), _numbers(said.get("marked"))
    return RolloutRecord(state, since, None if counted is None else known, marked)


def _numbers(found: object) -> dict[str, float]:
    numbers = found.items() if isinstance(found, dict) else ()
    return {str(name): float(value) for name, value in numbers if isinstance(value, (int, float))}


def left_rollout(path: Path, recipe: Path) -> str | None:
    """Returns a warning of a roll-out that an earlier deployment has left unfinished; None without one."""
    try:
        found = read_record(path)
    except UnavailableError as error:
        return f"the roll-out's file cannot be used: {error}"
    if found is None or found.state == ALL.state:
        return None
    move = f"to move it: trtspec rollout next {recipe}"
    return f"the roll-out of this build is at step {name_of(found.state)}; {move}"


def write_record(path: Path, record: RolloutRecord) -> None:
    """Replaces the file atomically, even if this process is killed."""
    said = {
        "version": VERSION,
        "mode": record.state.mode,
        "share": record.state.share,
        "since": record.since,
        "counted": None if record.counted is None else dict(record.counted),
        "marked": dict(record.marked),
    }
    write_atomically(path, json.dumps(said, indent=2) + "\n")


@contextmanager
def locked(build: Path) -> Iterator[None]:
    """Lets one process at a time move the roll-out of a build; the kernel frees the lock when that process
    ends."""
    descriptor = os.open(build, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
