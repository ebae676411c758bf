"""The errors of the API, in the form in which OpenAI's clients read them."""

from __future__ import annotations

import json

from trtspec.gateway.client_bounds import RETRY_S


class ApiError(Exception):
    """An answer that is an error.

    `status` is HTTP's, `param` the field of the request that is wrong, if one is, and `code` OpenAI's word
    for the case, where it has one.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def headers(self) -> dict[str, str]:
        """The headers that tell a client when to try again."""
        return {"Retry-After": str(RETRY_S)} if self.status in (429, 503) else {}

    def body(self) -> bytes:
        """Returns the error object of OpenAI's API, in JSON."""
        said = {"message": self.message, "type": _type(self.status), "param": self.param, "code": self.code}
        return json.dumps({"error": said}).encode()


class ShutError(ApiError):
    """A refusal by a server that takes no requests; `state` says why.

    It ends the connection: a client that connects again may find another server behind the same name.
    """

    def __init__(self, state: str) -> None:
        super().__init__(503, f"the server is {state}")

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "Connection": "close"}


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
