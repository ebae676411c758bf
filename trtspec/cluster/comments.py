"""Posts Markdown to the pull request, or merge request, of the CI job that runs this."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.base.errors import UnavailableError

_MOST = 60_000
"""GitHub takes comments of 65,536 characters."""
_PAGE, _PAGES = 100, 20
_TIMEOUT_S = 30.0


class DeniedError(UnavailableError):
    """A token that may not write comments, as that of a pull request from a fork."""


@dataclass(frozen=True, slots=True)
class CommentThread:
    """The comments of one request: those of GitHub's issues, or GitLab's notes."""

    url: str
    headers: Mapping[str, str]
    edited: Callable[[int], tuple[str, str]]
    """Returns the HTTP method and the URL that replace a comment."""

    def post(self, text: str, name: str) -> bool:
        """Posts a text, in place of the one that was posted under this name; returns True if there was one.

        Raises `DeniedError`, or `UnavailableError` where the API does not answer.
        """
        mark = f"<!-- trtspec {name} -->"
        body = f"{mark}\n{text[:_MOST]}"
        known = self._find(mark)
        method, url = self.edited(known) if known is not None else ("POST", self.url)
        self._ask(method, url, {"body": body})
        return known is not None

    def _find(self, mark: str) -> int | None:
        for page in range(1, _PAGES + 1):
            found = self._ask("GET", f"{self.url}?per_page={_PAGE}&page={page}")
            for comment in found:
                if str(comment.get("body", "")).startswith(mark):
                    return int(comment["id"])
            if len(found) < _PAGE:
                break
        return None

    def _ask(self, method: str, url: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "trtspec", **self.headers}
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            kind = DeniedError if error.code in (401, 403, 404) else UnavailableError
            raise kind(url, f"{method} has status {error.code}: {error.reason}") from error
        except (OSError, ValueError) as error:
            raise UnavailableError(url, f"does not answer: {error}") from error


def thread_here(environment: Mapping[str, str] = os.environ) -> CommentThread:
    """Returns the comments of the request that this job is of; raises `UnavailableError` outside of one."""
    if environment.get("GITHUB_ACTIONS") == "true":
        return _github(environment)
    if environment.get("GITLAB_CI") == "true":
        return _gitlab(environment)
    raise UnavailableError("this process", "is no job of GitHub Actions or GitLab CI")


def _github(environment: Mapping[str, str]) -> CommentThread:
    try:
        event = json.loads(Path(environment.get("GITHUB_EVENT_PATH", "")).read_text(encoding="utf-8"))
        number = int(event["pull_request"]["number"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UnavailableError("this job", "is not of a pull request", "on: pull_request") from None
    token = _token(environment, "GITHUB_TOKEN")
    api = environment.get("GITHUB_API_URL", "https://api.github.com")
    issues = f"{api}/repos/{environment['GITHUB_REPOSITORY']}/issues"
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    return CommentThread(
        f"{issues}/{number}/comments", headers, lambda of: ("PATCH", f"{issues}/comments/{of}")
    )


def _gitlab(environment: Mapping[str, str]) -> CommentThread:
    number = environment.get("CI_MERGE_REQUEST_IID")
    if not number:
        raise UnavailableError("this job", "is not of a merge request", "rules: merge_request_event")
    token = _token(environment, "PROVE_TOKEN")
    project = f"{environment['CI_API_V4_URL']}/projects/{environment['CI_PROJECT_ID']}"
    notes = f"{project}/merge_requests/{number}/notes"
    return CommentThread(notes, {"PRIVATE-TOKEN": token}, lambda of: ("PUT", f"{notes}/{of}"))


def _token(environment: Mapping[str, str], name: str) -> str:
    if not (found := environment.get(name)):
        raise UnavailableError(name, "is not set in the environment, and comments need a token")
    return found
