"""The emulator behind HTTP, with the paths, statuses and bodies of an API server."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes.kubernetes.controllers import Pod, stamp
from tests.fakes.kubernetes.discovery import told
from tests.fakes.kubernetes.emulator import Emulator, Refused
from tests.fakes.kubernetes.objects import Json

_PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_NAME, _LABELS = 1, 11  # of ObjectMeta


def _secret(body: bytes) -> Json:
    """The Secret in an envelope of Kubernetes, as Go's client writes it for Helm.

    The fields are those of k8s.io/api/core/v1/generated.proto and apimachinery's meta/v1 and runtime.
    """
    assert body.startswith(_MAGIC)
    raw = dict(_fields(body[len(_MAGIC) :]))[2]
    metadata: Json = {"labels": {}}
    data, kind = {}, ""
    for number, value in _fields(raw):
        if number == 1:
            for part, content in _fields(value):
                if part == _NAME:
                    metadata["name"] = content.decode()
                elif part == _LABELS:
                    key, label = _entry(content)
                    metadata["labels"][key] = label.decode()
        elif number == 2:
            key, content = _entry(value)
            data[key] = base64.b64encode(content).decode()
        elif number == 3:
            kind = value.decode()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}


def _entry(entry: bytes) -> tuple[str, bytes]:
    parts = dict(_fields(entry))
    return parts[1].decode(), parts.get(2, b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have a length, by their numbers; numbers are left out."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _varint(message, at)
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + size]
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


_PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<rest>.+))?)?$"
)
_VERBS = {"PATCH": "patch", "DELETE": "delete", "GET": "get", "POST": "create", "PUT": "update"}


@contextmanager
def served(emulator: Emulator) -> Iterator[str]:
    """Yields the URL of an API server of the emulator."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(size)
            is_protobuf = self.headers.get("Content-Type") == _PROTOBUF
            body = json.dumps(_secret(sent)) if is_protobuf and size else sent.decode()
            with emulator.lock:
                try:
                    status, text, kind = 200, *_answer(emulator, self.command, self.path, body, self.headers)
                except Refused as refused:
                    status, text, kind = refused.code, *_status(refused)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_DELETE = do_POST = do_PUT = _answer

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _answer(emulator: Emulator, method: str, target: str, body: str, headers: Any) -> tuple[str, str]:
    parts = urlsplit(target)
    options, path = dict(parse_qsl(parts.query)), unquote(parts.path)
    emulator.asked.append((method, path))
    # Go's client sends no credentials where there is no TLS.
    is_helm = headers.get("User-Agent", "").startswith("Helm/")
    if not is_helm and headers.get("Authorization") != "Bearer secret":
        raise Refused(401, "Unauthorized", "Unauthorized")
    if emulator.is_busy:
        raise Refused(503, "ServiceUnavailable", "etcdserver: leader changed")
    if method == "GET" and (said := told(path, emulator.groups)):
        return _json(said)
    found = _PATH.match(path)
    group = (found["group"] or "") if found else ""
    if not found or group not in emulator.groups:
        raise Refused(404, "", "404 page not found")
    namespace, plural, name, rest = found["namespace"], found["plural"], found["name"] or "", found["rest"]
    verb = "list" if method == "GET" and not name else _VERBS[method]
    subresource = f"/{rest.partition('/')[0]}" if rest else ""
    emulator.check_right(verb, group, plural + subresource, name, namespace)
    key = (namespace, plural, name)
    if plural == "pods" and name:
        return _of_pod(emulator, _pod(emulator, name), rest, options)
    if method == "PATCH":
        kind = headers.get("Content-Type")
        if kind == "application/apply-patch+yaml" and not rest:
            return _json(emulator.apply(key, json.loads(body), options))
        raise Refused(
            415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}"
        )
    if method in ("POST", "PUT"):
        return _json(emulator.put((namespace, plural, name), json.loads(body), is_new=method == "POST"))
    if method == "DELETE":
        return _json(emulator.delete(key))
    if name:
        return _json(emulator.get(key).manifest())
    items = _listed(emulator, namespace, plural, options)
    kind = {"kind": "SecretList", "apiVersion": "v1"} if plural == "secrets" else {"kind": "List"}
    return _json({**kind, "metadata": {}, "items": items})


def _of_pod(emulator: Emulator, pod: Pod, rest: str | None, options: dict[str, str]) -> tuple[str, str]:
    moment = pod.moment(emulator.now)
    if rest is None:
        return _json(pod.manifest(emulator.now))
    if rest == "log":
        name = options["container"]
        log = moment.logs.get(f"previous:{name}" if options.get("previous") == "true" else name)
        if log is None:
            words = f'container "{name}" in pod "{pod.name}" is waiting to start: PodInitializing'
            raise Refused(400, "BadRequest", words)
        return _lines(log, pod.born, options), "text/plain"
    raise Refused(404, "NotFound", "404 page not found")


def _lines(log: str, born: float, options: dict[str, str]) -> str:
    """The lines that are asked for; a container writes two a second. `sinceTime` counts whole seconds."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", log)
    if not re.fullmatch(r"(\d{4}-\d\d-\d\dT\S+Z)?", options.get("sinceTime", "")):
        raise Refused(400, "BadRequest", "sinceTime: parsing time as RFC3339")
    if options.get("timestamps") == "true":
        stamped = [(stamp(born + number / 2), line) for number, line in enumerate(lines)]
        since = options.get("sinceTime", "")[:19]
        lines = [f"{at} {line}" for at, line in stamped if at[:19] >= since]
    return "".join(lines[-int(options.get("tailLines", len(lines) or 1)) :])


def _listed(emulator: Emulator, namespace: str, plural: str, options: dict[str, str]) -> list[Json]:
    if plural == "events":
        chosen = dict(each.split("=") for each in options.get("fieldSelector", "").split(",") if each)
        if chosen.get("involvedObject.kind") == "Job":
            job = emulator.stored[namespace, "jobs", chosen["involvedObject.name"]]
            return emulator.controllers.jobs.events(str(job.metadata["uid"]))
        pods = [pod for pod in emulator.controllers.pods if pod.name == chosen.get("involvedObject.name")]
        return [event for pod in pods for event in pod.moment(emulator.now).events]
    if plural == "pods":
        found = [pod.manifest(emulator.now) for pod in emulator.controllers.pods]
    else:
        found = [of.manifest() for key, of in emulator.stored.items() if key[:2] == (namespace, plural)]
    wanted = [each.split("=") for each in options.get("labelSelector", "").split(",") if each]
    return [
        each
        for each in found
        if all(each["metadata"].get("labels", {}).get(label) == value for label, value in wanted)
    ]


def _pod(emulator: Emulator, name: str) -> Pod:
    for pod in emulator.controllers.pods:
        if pod.name == name:
            return pod
    raise Refused(404, "NotFound", f'pods "{name}" not found')


def _json(value: Json) -> tuple[str, str]:
    return json.dumps(value), "application/json"


def _status(refused: Refused) -> tuple[str, str]:
    if not refused.reason:
        return refused.message + "\n", "text/plain"
    said = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": refused.code,
        "reason": refused.reason,
        "message": refused.message,
    }
    return _json(said)
