"""The errors of serving, as data; `trtspec.serving.triton` turns them into a client's error."""

from __future__ import annotations


class ServingError(Exception):
    """The base class of all errors that this package raises on purpose."""


class RequestError(ServingError):
    """A request was refused before it started.

    `field` is the name in `CompletionRequest` or `SamplingConfig`, `found` what the client sent (its size,
    where it may be long), `allowed` what would have been accepted, in words.
    """

    def __init__(self, field: str, found: object, allowed: str) -> None:
        super().__init__(f"{field} is {found}; allowed: {allowed}")
        self.field, self.found, self.allowed = field, found, allowed


class Busy(ServingError):
    """The server has no place for a request now; another server, or this one later, may have one."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; try again later")
        self.why = why


class TimedOut(ServingError):
    """A completion was not complete at the end of its time limit; `where` says how far it got."""

    def __init__(self, where: str) -> None:
        super().__init__(f"the time limit of the request passed {where}")
        self.where = where


class Cancelled(ServingError):
    """The engine ended a request that nobody here had cancelled."""

    def __init__(self) -> None:
        super().__init__("the engine cancelled the request")


class EngineFailure(ServingError):
    """An engine answered with an error."""


class Overdue(EngineFailure):
    """An engine did not answer in time."""

    def __init__(self) -> None:
        super().__init__("the engine did not answer in time")


class GuideError(ServingError):
    """A guide cannot be followed; `str()` says why, in one line."""


class TooAmbiguous(GuideError):
    """A guide takes too long to follow, whatever the text."""


class RolloutError(ServingError):
    """A file of the roll-out says nothing that can be followed; `str()` says why, in one line."""


class TokenizerError(ServingError):
    """A tokenizer folder cannot be served; `path` names the file or folder."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class EngineLoadError(ServingError):
    """An engine directory cannot be loaded; `subject` names the file, the key or the tensor."""

    def __init__(self, subject: object, problem: str) -> None:
        super().__init__(f"{subject}: {problem}")
        self.subject, self.problem = str(subject), problem
