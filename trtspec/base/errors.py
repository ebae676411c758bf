"""Every failure that trtspec knows, as data.

An exception names the thing that is wrong, what is wrong with it and, where trtspec knows one, the repair.
`explanation.py` is the only place that turns one into text for a person. `trtspec.serving` is copied into
generated model repositories and has exceptions of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trtspec.base.findings import Finding


class TrtspecError(Exception):
    """A failure that the user can act on; anything else that is raised is a defect of trtspec."""

    subject: str
    problem: str
    repair: str | None
    step: str | None = None
    """The name of the step of a plan that failed; None if no step was running."""
    lines: tuple[str, ...] = ()
    """The last lines of the output or the log that tells more."""

    def __init__(self, subject: str | Path, problem: str, repair: str | None = None) -> None:
        super().__init__(f"{subject}: {problem}")
        self.subject, self.problem, self.repair = str(subject), problem, repair
        # What a trace shows below the error, from Python 3.11 on: those who call functions see it, who give
        # commands do not.
        self.__notes__ = [in_python(repair)] if repair else []

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every problem that this error reports."""
        return (Finding(self.subject, self.problem, self.repair),)


class RecipeError(TrtspecError):
    """A recipe that cannot be used; `findings` has every problem, in the order of the file's lines.

    The subject of each finding is a dotted key, or empty if the whole file is wrong.
    """

    def __init__(self, path: str | Path, findings: Sequence[Finding]) -> None:
        first, *_ = self._findings = tuple(sorted(findings, key=lambda finding: finding.line or 0))
        place = f"{path}:{first.line}" if first.line else path
        problem = f"{first.subject}: {first.problem}" if first.subject else first.problem
        super().__init__(place, problem, first.repair)
        self.path = str(path)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._findings


_COMMAND = re.compile(
    r"trtspec (build|deploy|plan)(?: ([^\s-][^\s,;:]*))?((?: --(?:container|plain|[a-z-]+ \S+))*)"
)
_OPTION = re.compile(r"--([a-z-]+)(?:[ =]([^\s,;]+))?")


def in_python(repair: str) -> str:
    """Returns a repair with functions and parameters of the API in place of commands and options."""

    def parameter(found: re.Match[str]) -> str:
        value = "True" if found[1] in ("container", "plain") else repr(found[2])
        return f", {found[1].replace('-', '_')}={value}"

    def call(found: re.Match[str]) -> str:
        options = "".join(map(parameter, _OPTION.finditer(found[3])))
        return f"trtspec.{found[1]}({found[2] or 'RECIPE'!r}{options})"

    return re.sub(r"--([a-z-]+)", lambda one: one[1].replace("-", "_"), _COMMAND.sub(call, repair))


class OptionError(TrtspecError):
    """An option that does not go with the recipe; `option` is its name, as Python's keyword has it."""

    def __init__(self, option: str, problem: str, repair: str | None = None) -> None:
        super().__init__(option, problem, repair)
        self.option = option


class PairError(TrtspecError):
    """A target, or a target and a draft, that would give wrong output; `findings` has every reason."""

    def __init__(self, subject: str | Path, findings: Sequence[Finding]) -> None:
        first, *others = self._findings = tuple(findings)
        more = f" (and {len(others)} more)" if others else ""
        super().__init__(subject, f"the models do not fit: {first.words}{more}", first.repair)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._findings


class ModelError(TrtspecError):
    """A Hugging Face model folder (or Hub id) that cannot be used."""


class TensorError(ModelError):
    """One tensor, or the file that should hold it, is not what the model's configuration demands."""


class DatasetError(TrtspecError):
    """Calibration texts that cannot be read; the subject names the file and, if there is one, the line."""


class EngineError(TrtspecError):
    """An engine directory that cannot be built or would fail to load."""


class StepError(TrtspecError):
    """A step of a plan that failed; `log` is the file that holds its output, `lines` are its last ones."""

    def __init__(
        self,
        subject: str | Path,
        problem: str,
        repair: str | None = None,
        log: Path | None = None,
        lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(subject, problem, repair)
        self.log, self.lines = log, lines


class ServerError(TrtspecError):
    """A Triton server that did not start, did not become ready, or answered with an error."""


class StuckError(ServerError):
    """A Triton server whose start hung, or broke off, in Triton itself; a second attempt may succeed."""


class MeasureError(TrtspecError):
    """A measurement that cannot be made, or whose result cannot be read; also a workload."""


class TrainingError(TrtspecError):
    """A training that cannot go on."""


class StoreError(TrtspecError):
    """A store of engines that cannot be read or written."""


class CorruptedError(StoreError):
    """A file of a store that is missing, or whose content does not match its name."""


class JobError(TrtspecError):
    """A job that the scheduler of a cluster does not take, or that did not succeed."""


class RefusedError(TrtspecError):
    """A step of a roll-out that its bounds do not allow."""


class ClusterError(TrtspecError):
    """A Kubernetes cluster that cannot be asked, refuses, or whose pods do not come up."""


class ChangedError(TrtspecError):
    """A file that is not the one any more that was read before."""


class UnavailableError(TrtspecError):
    """Something that must be installed, present or reachable is not: a package, a GPU, a port, disk space."""
