"""What can go wrong while serving, as data; the Triton edge turns it into a client's error."""

from __future__ import annotations


class ServingError(Exception):
    """The base of all that this package raises on purpose."""


class RequestError(ServingError):
    """A request refused before it started.

    `field` is the name in `CompletionRequest` or `SamplingConfig`, `found` what the client sent (its size,
    where it may be long), `allowed` what would have been accepted, in words.
    """

    def __init__(self, field: str, found: object, allowed: str) -> None:
        super().__init__(f"{field} is {found}; allowed: {allowed}")
        self.field, self.found, self.allowed = field, found, allowed


class EngineFailure(ServingError):
    """The target answered with an error, so the completion cannot go on."""


class ProtocolError(EngineFailure):
    """The target's answer to a verification is not one that the draft allows."""

    def __init__(self, draft: list[int], new: list[int]) -> None:
        super().__init__(
            f"a verification of {len(draft)} draft tokens returned {len(new)} that do not follow from it"
        )
        self.draft, self.new = draft, new


class TokenizerError(ServingError):
    """A tokenizer folder that cannot be served; `path` names the file or folder."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class EngineLoadError(ServingError):
    """An engine directory that cannot be loaded; `subject` names the file, the key or the tensor."""

    def __init__(self, subject: object, problem: str) -> None:
        super().__init__(f"{subject}: {problem}")
        self.subject, self.problem = str(subject), problem
