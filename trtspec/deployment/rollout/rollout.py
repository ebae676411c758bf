"""Shows and moves the roll-out of a running deployment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.base.errors import RefusedError, UnavailableError
from trtspec.client import scrape
from trtspec.client.scrape import Scrape
from trtspec.deployment.deployment import rollout_file
from trtspec.deployment.figures import choose
from trtspec.deployment.rollout import steps
from trtspec.deployment.rollout.bounds import (
    BoundState,
    Check,
    RolloutEvidence,
    between,
    check,
    counted,
    is_enough,
    overall,
)
from trtspec.deployment.rollout.steps import (
    RolloutRecord,
    RolloutStep,
    locked,
    present,
    read_record,
    write_record,
)
from trtspec.serving.rollout.state import LOOK_S, RolloutState

_FOLLOWS_S, _PAUSE_S = 3 * LOOK_S, 0.1


@dataclass(frozen=True, slots=True)
class ServerShares:
    """A server's own report of its roll-out."""

    speculation_share: float
    """The share of requests that has drafts, 0 to 1."""
    shadow_share: float
    """The share of requests whose drafts are scored only, 0 to 1."""
    is_malformed: bool
    """True if the server cannot read its file."""

    def goes_by(self, state: RolloutState) -> bool:
        """Says whether the server follows a state, within the precision of its metrics."""
        shares = self.speculation_share, self.shadow_share
        wanted = state.share_of("speculate"), state.share_of("shadow")
        return all(abs(found - share) < 1e-5 for found, share in zip(shares, wanted, strict=True))


@dataclass(frozen=True, slots=True)
class RolloutView:
    """The state of a roll-out, and of its bounds."""

    model: str
    record: RolloutRecord
    """The step that the file of the roll-out has."""
    server: ServerShares
    """The shares that the server applies."""
    evidence: RolloutEvidence
    """The counts since the step began."""
    checks: list[Check]
    """The bounds, each with its state; none while there is no roll-out."""
    counted: Mapping[str, float]
    """The server's counters now."""
    ends_a_period: bool
    """True if enough requests had drafts since the last period, and no bound is broken."""

    @property
    def verdict(self) -> BoundState:
        return overall(self.checks)

    def as_json(self) -> dict[str, Any]:
        state = self.record.state
        after, before = steps.after(state), steps.before(state)
        return {
            "model": self.model,
            "step": steps.name_of(state),
            **asdict(state),
            "since": self.record.since,
            "server": asdict(self.server),
            "verdict": self.verdict.value,
            "checks": [{**asdict(check), "verdict": check.verdict.value} for check in self.checks],
            "evidence": asdict(self.evidence),
            "next": after and after.name,
            "back": before and before.name,
        }


@dataclass(frozen=True, slots=True)
class RolloutMove:
    """A move between two states."""

    before: RolloutState
    after: RolloutState
    is_followed: bool
    """True if the server was seen to go by the new state."""


class DeployedRollout:
    """The roll-out of a running `build`, whose recipe gives drafts to a `usual` share of requests.

    `url` is that of its server's metrics, and `model` the served model.
    """

    def __init__(self, build: Path, model: str, usual: float, url: str) -> None:
        self._build, self._model, self._usual, self._url = build, model, usual, url
        self._file = rollout_file(build)

    def view(self) -> RolloutView:
        """Reads the file and the server; raises `UnavailableError` if one of them cannot be read.

        If the counters could not be read at the start of the step, the evidence begins now. After enough
        requests with drafts, the next look judges those that came since by themselves too.
        """
        found = read_record(self._file)
        if found is not None and found.counted is None:
            # A user who may only read still sees the state, with all bounds open.
            with suppress(OSError), locked(self._build):
                self._begin()
        view = self._look()
        if view.ends_a_period:
            with suppress(OSError), locked(self._build):
                if read_record(self._file) == view.record:
                    write_record(self._file, replace(view.record, marked=view.counted))
        return view

    def _begin(self) -> None:
        """Starts the evidence now if it has not started yet; the caller holds the lock."""
        found = read_record(self._file)
        if found is not None and found.counted is None:
            write_record(self._file, replace(found, counted=counted(self._scrape(), self._model)))

    def _look(self) -> RolloutView:
        found, said = read_record(self._file), self._scrape()
        now = found or RolloutRecord(RolloutState(share=self._usual))
        so_far = counted(said, self._model)
        began = so_far if now.counted is None else now.counted
        evidence, latest = between(began, so_far), between(now.marked or began, so_far)
        has_begun = found is not None or self._usual < 1
        lately = (between(began, now.marked), latest) if now.marked else None
        checks = check(now.state, evidence, lately) if has_begun else []
        is_over = bool(found and now.state.share and is_enough(now.state, latest))
        is_over = is_over and overall(checks) is not BoundState.BROKEN
        return RolloutView(self._model, now, self._server(said), evidence, checks, so_far, is_over)

    def go_on(self, *, force: bool) -> RolloutMove | None:
        """Goes to the next step; None if there is none.

        Raises `RefusedError` if a bound does not hold. With `force` it checks neither the bounds nor the
        server.
        """
        with locked(self._build):
            now = self._state()
            step = steps.after(now)
            if step is None:
                return None
            if not force:
                self._check(step)
            return self._move(now, step)

    def go_back(self) -> RolloutMove | None:
        """Goes to the step before; None if there is none."""
        with locked(self._build):
            now = self._state()
            step = steps.before(now)
            return self._move(now, step) if step else None

    def go_off(self) -> RolloutMove:
        """Turns drafts off for all requests, even if the file cannot be read."""
        with locked(self._build):
            try:
                now = self._state()
            except UnavailableError:
                now = RolloutState(share=self._usual)
            return self._move(now, steps.OFF)

    def _state(self) -> RolloutState:
        found = read_record(self._file)
        return found.state if found else RolloutState(share=self._usual)

    def _check(self, step: RolloutStep) -> None:
        self._begin()
        view = self._look()
        if not view.server.goes_by(view.record.state):
            why = "cannot read its file" if view.server.is_malformed else "does not follow its file"
            raise RefusedError(self._model, f"its server {why}: {self._file}", "its log says more")
        for verdict in (BoundState.BROKEN, BoundState.OPEN):
            for found in view.checks:
                if found.verdict is verdict:
                    raise _refused(step, found)

    def _move(self, now: RolloutState, step: RolloutStep) -> RolloutMove:
        """Writes the new state; its evidence starts from the server's present counters.

        If the server does not answer, they are unknown; if nothing is to be judged, they are left out.
        """
        so_far: Mapping[str, float] | None = {}
        if step is not steps.OFF:
            so_far = None
            with suppress(UnavailableError):
                so_far = counted(self._scrape(), self._model)
        write_record(self._file, RolloutRecord(step.state, present(), so_far))
        return RolloutMove(now, step.state, self._is_followed(step.state))

    def _is_followed(self, state: RolloutState) -> bool:
        """Waits until the server follows a state; False if it does not in time, or does not answer."""
        deadline = time.monotonic() + _FOLLOWS_S
        try:
            while not self._server(self._scrape()).goes_by(state):
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE_S)
        except UnavailableError:
            return False
        return True

    def _scrape(self) -> Scrape:
        found = scrape.parse(scrape.read(self._url), time.monotonic())
        choose(found, self._model, self._url)
        return found

    def _server(self, found: Scrape) -> ServerShares:
        def gauge(name: str) -> float:
            return found.total(f"trtspec:{name}", model=self._model)

        shares = gauge("speculation_share"), gauge("shadow_share")
        return ServerShares(*shares, is_malformed=bool(gauge("rollout_file_malformed")))


def _refused(step: RolloutStep, found: Check) -> RefusedError:
    if found.verdict is BoundState.BROKEN:
        problem = f"{found.name} is {found.found}, and must be {found.bound}"
        return RefusedError(f"no step to {step.name}", problem, "go back: trtspec rollout back RECIPE")
    problem = f"{found.name}: {found.found}; about {found.needed} more requests will decide"
    return RefusedError(f"no step to {step.name} yet", problem, "wait for them, or --force it")
