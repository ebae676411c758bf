"""Turns the API server's refusals into errors that name the thing and the repair; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from trtspec.base.errors import ClusterError

_RIGHT = r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)"'
_LACKS_KIND = "404 page not found|the server could not find the requested resource"
_PASSING = (429, 502, 503, 504)
_HELM_IS_BUSY = "another operation .* is in progress"


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
        return self.status == 403 and re.search(_RIGHT, self.message) is not None

    @property
    def lacks_kind(self) -> bool:
        """True if the server does not know this kind of object."""
        return self.status == 404 and re.search(_LACKS_KIND, self.message) is not None

    @property
    def is_passing(self) -> bool:
        """True if the same request may succeed later."""
        return self.status in _PASSING

    @property
    def is_of_other_helm(self) -> bool:
        """True if another Helm is changing the release, so that this one has changed nothing."""
        return re.search(_HELM_IS_BUSY, self.message) is not None


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
    if answer.lacks_kind and owner:
        repair = "install it, or leave it out of the recipe's kubernetes"
        return RefusedByCluster(subject, f"this cluster does not have {owner}", repair, answer)
    unknown = f"the cluster answers {answer.status}: {one_line(answer.message)}", None
    return RefusedByCluster(subject, *(_explained(_REFUSALS, answer, namespace) or unknown), answer)


# The text that Helm writes before the API server's message, and patterns that tell the message's HTTP status.
_HELMS = re.compile(r"^.*?Error: (?:[A-Z]+ FAILED: )?")
_OBJECT = re.compile(r".*?server-side apply failed for object (?:\S+/)?(\S+) \S+, Kind=(\w+): (.*)")
_NOT_OURS = re.compile(r'(\w+) "([^"]+)" in namespace "[^"]*" exists and cannot be imported')
_STATUSES = (
    (401, r"must be logged in|Unauthorized|provide credentials"),
    (403, r"forbidden|denied the request|failed calling webhook"),
    (404, r'namespaces "[^"]+" not found'),
    (409, rf"[Cc]onflict|{_HELM_IS_BUSY}"),
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
    return _explained(_DENIALS, ApiRefusal(403, "", message), namespace)


def one_line(text: str) -> str:
    """Returns a text with one blank for each run of white space."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class _Known:
    """A refusal that is known by a pattern of its message, which is on one line, and by its status.

    Problem and repair may name the pattern's groups, and `message`, `namespace` and `status`.
    """

    pattern: str
    problem: str
    repair: str | None = None
    statuses: tuple[int, ...] = ()
    """Empty for any status."""


_DENIALS = (
    _Known(
        r"exceeded quota: (?P<name>[^,\s]+), requested: (?P<asked>.*?),"
        r" used: (?P<used>.*?), limited: (?P<most>.*)",
        "quota {name} refuses {asked}: {used} of {most} is in use",
        "set fewer replicas, or ask for a larger quota: kubectl describe quota {name} -n {namespace}",
    ),
    _Known(
        r'violates PodSecurity "(?P<level>[^"]+)":\s*(?P<why>.*)',
        "the namespace's pod security ({level}) does not allow it: {why}",
        "put the cache on a volume claim instead of hostPath, or use a namespace that allows it",
    ),
    _Known(
        r'admission webhook "(?P<name>[^"]+)" denied the request:?\s*(?P<why>.*)',
        "admission webhook {name} denies it: {why}",
        "change what it names in the recipe",
    ),
    _Known(
        r'failed calling webhook "(?P<name>[^"]+)":?\s*(?P<why>.*)',
        "admission webhook {name} does not answer: {why}",
        "start it first: kubectl get validatingwebhookconfigurations shows its service",
    ),
    _Known(
        _RIGHT + r' in API group "(?P<group>[^"]+)"',
        "{user} may not {verb} {resource}.{group} in namespace {namespace}",
        "ask for that right: kubectl auth can-i {verb} {resource}.{group} -n {namespace}",
    ),
    _Known(
        _RIGHT,
        "{user} may not {verb} {resource} in namespace {namespace}",
        "ask for that right: kubectl auth can-i {verb} {resource} -n {namespace}",
    ),
)
"""The refusals that may deny a pod too."""
_REFUSALS = (
    _Known(
        "",
        "the cluster does not accept your credentials",
        "log in to it again, and check with kubectl get pods",
        statuses=(401,),
    ),
    _Known(
        r'namespaces "(?P<name>[^"]+)" not found',
        "there is no namespace {name}",
        "kubectl create namespace {name}, or name another with --namespace",
        statuses=(404,),
    ),
    _Known(
        _LACKS_KIND,
        "this cluster is too old for this kind of object",
        "Kubernetes 1.30 or newer is needed",
        statuses=(404,),
    ),
    _Known("", "is not in namespace {namespace}", statuses=(404,)),
    *_DENIALS,
    _Known(
        "has been modified",
        "somebody else has changed it meanwhile",
        "check it, and run the command again",
        statuses=(409,),
    ),
    _Known(
        _HELM_IS_BUSY,
        "{message}",
        "wait until it ends, and try again; helm rollback -n {namespace} ends one that was killed",
        statuses=(409,),
    ),
    _Known("(?i)conflict", "{message}", "--force takes these fields over", statuses=(409,)),
    _Known("immutable", "{message}", "trtspec kubernetes stop makes room for it", statuses=(422,)),
    _Known("", "{message}", statuses=(422,)),
    _Known("", "the cluster is busy (HTTP {status}): {message}", "try again in a while", statuses=_PASSING),
)
"""Patterns that tell more than the status come first."""


def _explained(known: Iterable[_Known], answer: ApiRefusal, namespace: str) -> tuple[str, str | None] | None:
    """Returns problem and repair of the first refusal that an answer is; None for an unknown one."""
    message = one_line(answer.message)
    for each in known:
        found = re.search(each.pattern, message)
        if found and answer.status in (each.statuses or (answer.status,)):
            words = {"message": message, "namespace": namespace, "status": answer.status, **found.groupdict()}
            return each.problem.format(**words), each.repair and each.repair.format(**words)
    return None
