"""Shows the steps of a plan, and those that a build has run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.checkpoint.calibrate import calibrate
from trtspec.checkpoint.calibration import read_calibration
from trtspec.checkpoint.layers import chosen as layers
from trtspec.cli.terminal.output import out
from trtspec.pipeline.plan.depending import weight_share

if TYPE_CHECKING:
    from trtspec.base.roles import Role
    from trtspec.pipeline.build.build import BuildResult
    from trtspec.pipeline.build.plan import BuildPlan
    from trtspec.pipeline.run.step import Step


@dataclass(frozen=True, slots=True)
class PlannedSteps:
    """The steps of a plan."""

    made: BuildPlan

    def tell(self) -> None:
        """Prints each step: whether it is done, what it makes, and its command line."""
        pending = self.made.pending()
        for step in self.made.steps:
            place = f" -> {self.made.output / step.output}" if step.output else ""
            state = "run " if step.name in pending else "done"
            out.table([(state, f"{step.name}{place}: {step.summary}")])
            for command in (*step.fetches, *([step.command] if step.command else [])):
                out.result(f"      $ {shlex.join(command)}")
            if step.obstacle and step.name in pending:
                out.result(f"      not on this machine: {step.obstacle.subject} {step.obstacle.problem}")

    def as_json(self) -> dict[str, Any]:
        pending = self.made.pending()
        steps = [
            {
                "name": step.name,
                "summary": step.summary,
                "inputs": list(step.inputs),
                "output": step.output,
                "fetches": [list(command) for command in step.fetches],
                "command": list(step.command),
                "digest": self.made.digest(step),
                "done": step.name not in pending,
                "obstacle": str(step.obstacle) if step.obstacle and step.name in pending else None,
            }
            for step in self.made.steps
        ]
        return {"output": str(self.made.output), "backend": self.made.resolved.backend, "steps": steps}


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The steps that a build has run."""

    done: BuildResult

    def tell(self) -> None:
        """Prints the time of the steps, and the build directory."""
        done = self.done
        said = f"{len(done.ran)} of {len(done.steps)} steps run in {done.seconds:.1f} s"
        out.status(f"{done.plan.resolved.loaded.recipe.name}: {said if done.ran else 'nothing to do'}")
        out.result(str(done.output))

    def as_json(self) -> dict[str, Any]:
        done = self.done
        return {"output": str(done.output), "ran": list(done.ran), "seconds": round(done.seconds, 3)}


def tell_costs(made: BuildPlan, steps: Sequence[Step]) -> None:
    """Prints the cost of FP8 for each calibrated model, and the acceptance of the chosen layers.

    It does so for steps of this run and of earlier ones.
    """
    for step in steps:
        if step.output is None or step.role is None or (say := _TOLD.get(step.kind)) is None:
            continue
        sentence, worries = say(made, step.role, made.output / step.output)
        if sentence:
            out.status(f"{step.role}: {sentence}")
        for worry in worries:
            out.warning(f"{step.role}: {worry}")


def _calibrated(made: BuildPlan, role: Role, file: Path) -> tuple[str | None, Iterable[str]]:
    calibration = read_calibration(file)
    return calibrate.cost(calibration), calibrate.worries(calibration)


def _chosen(made: BuildPlan, role: Role, file: Path) -> tuple[str | None, Iterable[str]]:
    chosen, share = layers.read_layers(file), weight_share(made.resolved.engines[role], made.resolved.target)
    return layers.found(chosen, share), layers.worries(chosen, share)


_TOLD: Mapping[str, Callable[[BuildPlan, Role, Path], tuple[str | None, Iterable[str]]]] = {
    "calibrate": _calibrated,
    "choose layers": _chosen,
}
"""What is said of the output of a step, by its kind: a sentence, and what to worry about."""
