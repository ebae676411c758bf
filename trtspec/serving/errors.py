"""The errors of serving, as data. `trtspec.serving.triton` turns them into errors for clients."""

from __future__ import annotations


class ServingError(Exception):
    """The base class of all errors of this package."""


class RequestError(ServingError):
    """A request was refused before it started.

    `field` is the name in `CompletionRequest` or `SamplingConfig`. `found` is the value that the client sent,
    or its size where it may be long. `allowed` describes the accepted values in words.
    """

    def __init__(self, field: str, found: object, allowed: str) -> None:
        super().__init__(f"{field} is {found}; allowed: {allowed}")
        self.field, self.found, self.allowed = field, found, allowed


class Busy(ServingError):
    """The server has no room for a request now. Another server, or this one later, may have some."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; try again later")
        self.why = why


class TimedOut(ServingError):
    """A completion passed its deadline; `where` says how far it got."""

    def __init__(self, where: str) -> None:
        super().__init__(f"the time limit of the request passed {where}")
        self.where = where


class Cancelled(ServingError):
    """The engine ended a request by itself."""

    def __init__(self) -> None:
        super().__init__("the engine cancelled the request")


class EngineFailure(ServingError):
    """An engine answered with an error."""


class NotFinite(EngineFailure):
    """An engine computed logits that are not finite, so it has no token."""


class EngineTimedOut(EngineFailure):
    """An engine did not answer in time."""

    def __init__(self) -> None:
        super().__init__("the engine did not answer in time")


class GuideError(ServingError):
    """A guide cannot be followed; `str()` says why, in one line."""


class TooAmbiguous(GuideError):
    """A guide takes too long to follow."""


class RolloutError(ServingError):
    """The file of a roll-out is malformed; `str()` says why, in one line."""


class TokenizerError(ServingError):
    """A tokenizer cannot be served; `path` is the file or folder with the problem."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class EngineLoadError(ServingError):
    """An engine cannot be loaded; `subject` is the file, key or tensor with the problem."""

    def __init__(self, subject: object, problem: str) -> None:
        super().__init__(f"{subject}: {problem}")
        self.subject, self.problem = str(subject), problem
