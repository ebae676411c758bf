"""The cluster of a test: what is in it, what it refuses, and its time, which passes when the test says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from threading import RLock
from typing import Any

import kubernetes_validate
from jsonschema import ValidationError

from kubernetes.utils.quantity import parse_quantity
from tests.fakes.kubernetes.controllers import Controllers, Pod
from tests.fakes.kubernetes.objects import Conflict, Json, Stored
from tests.fakes.kubernetes.scripts import Script, ready
from tests.unit.cluster.kubernetes.schemas import check


def problem_of(manifest: Json) -> str | None:
    """Says what is wrong with it."""
    return _problem(json.dumps(manifest, sort_keys=True))


@cache
def _problem(text: str) -> str | None:
    try:
        check(json.loads(text))
    except (ValidationError, kubernetes_validate.ValidationError) as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return None


NAMESPACE = "serving"
_CORE = ("", "apps", "batch", "autoscaling", "policy", "networking.k8s.io")


class Refused(Exception):
    """An answer with a status of Kubernetes."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


@dataclass
class Emulator:
    """`groups` are the API groups that are installed; `script` says what becomes of the pods of a template.

    `at_apply` sees what is applied before it is, and may raise `Refused`; `at_pods` may say why a pod is
    denied, given how many there are; `forbidden` are verbs with a plural. `asked` are the requests,
    a method and a path each.
    """

    namespaces: set[str] = field(default_factory=lambda: {"default", NAMESPACE})
    groups: set[str] = field(default_factory=lambda: set(_CORE))
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    script: Callable[[Json], Script] = lambda template: ready()
    at_apply: Callable[[Json], None] = lambda manifest: None
    at_pods: Callable[[Json, int], str | None] = lambda template, number: None
    at_time: Callable[[float], None] = lambda now: None
    is_busy: bool = False
    now: float = 0.0
    applied: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    stored: dict[tuple[str, str, str], Stored] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        self.controllers = Controllers(
            lambda template: self.script(template), lambda template, number: self.at_pods(template, number)
        )

    def pass_time(self, seconds: float) -> None:
        """Lets time pass, a second at a time, as controllers work all along."""
        with self.lock:
            while seconds > 0:
                self.now += min(seconds, 1.0)
                seconds -= 1.0
                self.settle()
            self.at_time(self.now)

    def settle(self) -> None:
        """Lets the controllers do what is to be done now."""
        self.controllers.advance({key[1:]: of for key, of in self.stored.items()}, self.now)
        for key, of in list(self.stored.items()):
            if key[1] == "jobs" and self.controllers.jobs.is_gone(of, self.now):
                del self.stored[key]

    def pods(self) -> list[Pod]:
        return [pod for pod in self.controllers.pods if pod.ends is None]

    def manifest(self, plural: str, name: str, namespace: str = NAMESPACE) -> Json:
        return self.stored[namespace, plural, name].manifest()

    def names(self, plural: str, namespace: str = NAMESPACE) -> list[str]:
        return sorted(key[2] for key in self.stored if key[:2] == (namespace, plural))

    # What the server asks.

    def check_right(self, verb: str, group: str, plural: str, name: str, namespace: str) -> None:
        if (verb, plural) in self.forbidden:
            thing = f'{plural}.{group} "{name}"' if group else f'{plural} "{name}"'
            raise Refused(
                403,
                "Forbidden",
                f'{thing} is forbidden: User "jane" cannot {verb} resource "{plural}" in API group "{group}"'
                f' in the namespace "{namespace}"',
            )

    def check_namespace(self, namespace: str) -> None:
        if namespace not in self.namespaces:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')

    def apply(self, key: tuple[str, str, str], config: Json, options: dict[str, str]) -> Json:
        self.check_namespace(key[0])
        if not options.get("fieldManager"):
            raise Refused(422, "Invalid", "fieldManager is required for apply patch")
        self.at_apply(config)
        before = self.stored.get(key)
        made = _copy(before) if before else Stored()
        version = config["metadata"].get("resourceVersion")
        if version is not None and version != str(made.version):
            words = "the object has been modified; please apply your changes to the latest version"
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {key[1]} "{key[2]}": {words}')
        try:
            made.apply(config, options["fieldManager"], force=options.get("force") == "true")
        except Conflict as conflict:
            raise Refused(409, "Conflict", str(conflict)) from None
        self.applied += 1
        uid = before.metadata["uid"] if before else f"{key[1]}-{key[2]}-{self.applied}"
        made.metadata |= {"name": key[2], "namespace": key[0], "uid": uid}
        manifest = made.manifest()
        if problem := problem_of(manifest):
            raise Refused(422, "Invalid", f'{config["kind"]} "{key[2]}" is invalid: {problem}')
        if before and manifest.get("spec", {}).get("selector") != before.manifest().get("spec", {}).get(
            "selector"
        ):
            raise Refused(422, "Invalid", f'{config["kind"]} "{key[2]}" is invalid: field is immutable')
        if before and key[1] == "persistentvolumeclaims" and _size(manifest) < _size(before.manifest()):
            words = "spec.resources.requests.storage: Forbidden: field can not be less than previous value"
            raise Refused(422, "Invalid", f'PersistentVolumeClaim "{key[2]}" is invalid: {words}')
        if options.get("dryRun") != "All":
            self.stored[key] = made
            self.settle()
        return manifest

    def put(self, key: tuple[str, str, str], made: Json, *, is_new: bool) -> Json:
        """Keeps an object as it comes, as Helm does the Secrets of its releases."""
        self.check_namespace(key[0])
        key = (key[0], key[1], made["metadata"]["name"])
        if is_new and key in self.stored:
            raise Refused(409, "AlreadyExists", f'{key[1]} "{key[2]}" already exists')
        stored = self.stored.setdefault(key, Stored())
        stored.configs = {}
        stored.merge(made, "helm")
        return stored.manifest()

    def merge(self, key: tuple[str, str, str], change: Json, manager: str, subresource: str) -> Json:
        of = self.get(key)
        if subresource == "status":
            of.status = {**of.status, **change["status"]}
        else:
            of.merge(change, manager)
        self.settle()
        return of.manifest()

    def get(self, key: tuple[str, str, str]) -> Stored:
        self.check_namespace(key[0])
        if key not in self.stored:
            raise Refused(404, "NotFound", f'{key[1]} "{key[2]}" not found')
        return self.stored[key]

    def delete(self, key: tuple[str, str, str]) -> Json:
        self.get(key)
        del self.stored[key]
        self.settle()
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def _size(claim: Json) -> Decimal:
    size: Decimal = parse_quantity(claim["spec"]["resources"]["requests"]["storage"])
    return size


def _copy(of: Stored) -> Stored:
    configs: list[Any] = [[list(key), config] for key, config in of.configs.items()]
    copied = json.loads(json.dumps(configs))
    return Stored(
        {(name, operation): config for (name, operation), config in copied},
        dict(of.metadata),
        of.status,
        of.generation,
        of.version,
    )
