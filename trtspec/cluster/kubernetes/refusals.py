"""Turns the API server's refusals into errors that name the thing and the repair; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from trtspec.base.errors import ClusterError

_WEBHOOK = re.compile(r'admission webhook "([^"]+)" denied the request:?\s*(.*)', re.DOTALL)
_BROKEN_WEBHOOK = re.compile(r'failed calling webhook "([^"]+)":?\s*(.*)', re.DOTALL)
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,\s]+), requested: (?P<asked>.*?),"
    r" used: (?P<used>.*?), limited: (?P<most>.*)"
)
_NAMESPACE = re.compile(r'namespaces "([^"]+)" not found')
_RIGHT = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)"'
    r'(?: in API group "(?P<group>[^"]*)")?'
)
_POLICY = re.compile(r'violates PodSecurity "([^"]+)":\s*(.*)', re.DOTALL)
_PASSING = (429, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class ApiRefusal:
    """An answer of the API server that reports a failure."""

    status: int
    """The HTTP status."""
    reason: str
    """Kubernetes' reason, one word."""
    message: str
    """The message for people."""

    @property
    def is_absent(self) -> bool:
        return self.status == 404

    @property
    def is_forbidden(self) -> bool:
        """True if the caller lacks the right; quotas and webhooks refuse with the same status."""
        return self.status == 403 and _RIGHT.search(self.message) is not None

    @property
    def lacks_kind(self) -> bool:
        """True if the server does not know this kind of object."""
        words = "404 page not found", "the server could not find the requested resource"
        return self.status == 404 and any(each in self.message for each in words)

    @property
    def is_passing(self) -> bool:
        """True if the same request may succeed later."""
        return self.status in _PASSING


class RefusedByCluster(ClusterError):
    """An answer of the API server that reports a failure."""

    def __init__(self, subject: str, problem: str, repair: str | None, answer: ApiRefusal) -> None:
        super().__init__(subject, problem, repair)
        self.answer = answer


def answer_of(status: int, text: str) -> ApiRefusal:
    """Returns the answer in a body: a Status of Kubernetes, or plain text."""
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return ApiRefusal(status, "", " ".join(text.split())[:500])
    return ApiRefusal(status, str(said.get("reason") or ""), str(said.get("message") or ""))


def refusal(answer: ApiRefusal, subject: str, namespace: str, owner: str | None = None) -> RefusedByCluster:
    """Returns the error for an answer to a request about `subject`.

    `owner` is the project that defines the kind of object, if Kubernetes does not.
    """
    for words in _WORDS:
        if found := words(answer, namespace, owner):
            return RefusedByCluster(subject, *found, answer)
    return RefusedByCluster(
        subject, f"the cluster answers {answer.status}: {one_line(answer.message)}", None, answer
    )


# The text that Helm writes before the API server's message, and patterns that tell the message's HTTP status.
_HELMS = re.compile(r"^.*?Error: (?:[A-Z]+ FAILED: )?")
_OBJECT = re.compile(r".*?server-side apply failed for object (?:\S+/)?(\S+) \S+, Kind=(\w+): (.*)")
_NOT_OURS = re.compile(r'(\w+) "([^"]+)" in namespace "[^"]*" exists and cannot be imported')
_STATUSES = (
    (401, r"must be logged in|Unauthorized|provide credentials"),
    (403, r"forbidden|denied the request|failed calling webhook"),
    (404, r'namespaces "[^"]+" not found'),
    (409, r"[Cc]onflict"),
    (422, r"is invalid|immutable"),
    (503, r"etcdserver|currently unable to handle|too many requests"),
)


def helms_words(said: str, name: str, namespace: str) -> ClusterError:
    """Returns the error for what Helm has written about the release `name` before it failed."""
    message, subject = _HELMS.sub("", one_line(said)), f"release/{name}"
    if found := _NOT_OURS.search(message):
        problem = f"is already in namespace {namespace}, and does not belong to the release {name}"
        repair = (
            "give the deployment another kubernetes.name in the recipe, or take the object over with --force"
        )
        return ClusterError(f"{found[1].lower()}/{found[2]}", problem, repair)
    if found := _OBJECT.match(message):
        subject, message = f"{found[2].lower()}/{found[1]}", found[3]
    status = next((status for status, words in _STATUSES if re.search(words, message)), None)
    if status is None:
        return ClusterError(subject, message, None)
    return refusal(ApiRefusal(status, "", message), subject, namespace)


def words_of_denial(message: str, namespace: str) -> tuple[str, str | None] | None:
    """Returns problem and repair for a message that denies a pod; None for an unknown message."""
    answer = ApiRefusal(403, "", message)
    for words in (_quota, _policy, _webhook, _broken_webhook, _right):
        if found := words(answer, namespace, None):
            return found
    return None


def one_line(text: str) -> str:
    """Returns a text with one blank for each run of white space."""
    return " ".join(text.split())


_Words = tuple[str, str | None]


def _credentials(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    if answer.status != 401:
        return None
    return (
        "the cluster does not accept your credentials",
        "log in to it again, and check with kubectl get pods",
    )


def _namespace(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    found = answer.status == 404 and _NAMESPACE.search(answer.message)
    if not found:
        return None
    repair = f"kubectl create namespace {found[1]}, or name another with --namespace"
    return f"there is no namespace {found[1]}", repair


def _kind(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    if not answer.lacks_kind:
        return None
    if owner:
        return f"this cluster does not have {owner}", "install it, or leave it out of the recipe's kubernetes"
    return "this cluster is too old for this kind of object", "Kubernetes 1.30 or newer is needed"


def _absent(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    return (f"is not in namespace {namespace}", None) if answer.status == 404 else None


def _quota(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    found = _QUOTA.search(one_line(answer.message))
    if not found:
        return None
    problem = f"quota {found['name']} refuses {found['asked']}: {found['used']} of {found['most']} is in use"
    look = f"kubectl describe quota {found['name']} -n {namespace}"
    return problem, f"set fewer replicas, or ask for a larger quota: {look}"


def _policy(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    found = _POLICY.search(one_line(answer.message))
    if not found:
        return None
    problem = f"the namespace's pod security ({found[1]}) does not allow it: {found[2]}"
    return problem, "put the cache on a volume claim instead of hostPath, or use a namespace that allows it"


def _webhook(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    found = _WEBHOOK.search(answer.message)
    if not found:
        return None
    problem = f"admission webhook {found[1]} denies it: {one_line(found[2])}"
    return problem, "change what it names in the recipe"


def _broken_webhook(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    found = _BROKEN_WEBHOOK.search(answer.message)
    if not found:
        return None
    problem = f"admission webhook {found[1]} does not answer: {one_line(found[2])}"
    return problem, "start it first: kubectl get validatingwebhookconfigurations shows its service"


def _right(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    found = _RIGHT.search(answer.message)
    if not found:
        return None
    kind = f"{found['resource']}.{found['group']}" if found["group"] else found["resource"]
    problem = f"{found['user']} may not {found['verb']} {kind} in namespace {namespace}"
    return problem, f"ask for that right: kubectl auth can-i {found['verb']} {kind} -n {namespace}"


def _meanwhile(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    if answer.status != 409 or "has been modified" not in answer.message:
        return None
    return "somebody else has changed it meanwhile", "check it, and run the command again"


def _conflict(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    if answer.status != 409 or "conflict" not in answer.message.lower():
        return None
    return one_line(answer.message), "--force takes these fields over"


def _immutable(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    if answer.status != 422:
        return None
    repair = "trtspec deploy stop makes room for it" if "immutable" in answer.message else None
    return one_line(answer.message), repair


def _passing(answer: ApiRefusal, namespace: str, owner: str | None) -> _Words | None:
    if not answer.is_passing:
        return None
    return f"the cluster is busy (HTTP {answer.status}): {one_line(answer.message)}", "try again in a while"


# Patterns that tell more than the status come first.
_WORDS: tuple[Callable[[ApiRefusal, str, str | None], _Words | None], ...] = (
    _credentials,
    _namespace,
    _kind,
    _absent,
    _quota,
    _policy,
    _webhook,
    _broken_webhook,
    _right,
    _meanwhile,
    _conflict,
    _immutable,
    _passing,
)
