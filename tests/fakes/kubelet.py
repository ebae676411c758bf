"""A kubelet for one pod of a rendered manifest: its containers as processes, its volumes as folders.

Each container has a root file system that can only be read, a user and a PID namespace of its own, and its
command as the first process, by bubblewrap; the network is this machine's, and the pod's address one of its
loopback's. What the kubelet does is in Kubernetes' documentation: "Pod Lifecycle", "Configure Liveness,
Readiness and Startup Probes", "Termination of Pods".
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
_SYSTEM = ("/bin", "/lib", "/lib64", "/opt", "/sbin", "/usr")
_ETC = ("alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "passwd", "ssl")
_BACK_OFF_S = 1.0  # the kubelet begins with ten


def needs_sandbox() -> str:
    """The path of bubblewrap; the test is skipped where it cannot be used."""
    found = shutil.which("bwrap")
    if found is None:
        pytest.skip("bwrap is not on PATH; Debian's package bubblewrap has it")
    said = subprocess.run([*_box(found), "true"], capture_output=True, text=True)
    if said.returncode:
        pytest.skip(f"no containers can be made here: {said.stderr.strip()}")
    return found


class Container:
    """A container that runs, or has ended."""

    def __init__(self, box: Sequence[str], line: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        info, told = os.pipe()
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [*box, "--info-fd", str(told), *line],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                pass_fds=(told,),
            )
        os.close(told)
        with os.fdopen(info) as stream_of_info:
            said = stream_of_info.read()
        self.pid = int(json.loads(said)["child-pid"])

    def signal(self, number: signal.Signals) -> None:
        """Sends it to the first process, as a runtime does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


class Probe:
    """One probe of the manifest, and how it stands."""

    def __init__(self, spec: Mapping[str, Any], ports: Mapping[str, int], address: str, now: float) -> None:
        get = spec["httpGet"]
        self._address, self._path = address, get["path"]
        self._port = ports.get(get["port"], get["port"])
        self._timeout, self._period = spec.get("timeoutSeconds", 1), spec.get("periodSeconds", 10)
        self._most, self._failures = spec.get("failureThreshold", 3), 0
        self._due = now + spec.get("initialDelaySeconds", 0)
        self.passes: bool | None = None

    def look(self, now: float) -> None:
        """Asks, if it is time; `passes` is then true after a success, and false after failures enough."""
        if now < self._due:
            return
        self._due = now + self._period
        if 200 <= self.status() < 400:
            self._failures, self.passes = 0, True
        else:
            self._failures += 1
            if self._failures >= self._most:
                self.passes = False

    def status(self) -> int:
        """What an HTTP get of it says now; 0 for no answer."""
        with closing(http.client.HTTPConnection(self._address, self._port, timeout=self._timeout)) as line:
            try:
                line.request("GET", self._path)
                return line.getresponse().status
            except (OSError, http.client.HTTPException):
                return 0


class Pod:
    """A pod of a Deployment or a Job in `documents`, the former from `start` to `end`.

    Nothing else of the manifests is obeyed.

    `secrets` are the contents of Secrets by name, `host` is the node's root folder for volumes of type
    hostPath, and `address` the pod's.
    """

    def __init__(
        self,
        documents: Sequence[Mapping[str, Any]],
        secrets: Mapping[str, Mapping[str, str]],
        host: Path,
        address: str,
        folder: Path,
    ) -> None:
        (found,) = [each for each in documents if each["kind"] in ("Deployment", "Job")]
        self._annotations = found["spec"]["template"]["metadata"]["annotations"]
        self.spec: Mapping[str, Any] = found["spec"]["template"]["spec"]
        self._maps = {each["metadata"]["name"]: each for each in documents if each["kind"] == "ConfigMap"}
        self._secrets, self._host, self.address, self.folder = secrets, host, address, folder
        (self.server_spec,) = self.spec["containers"]
        self.ports = {
            port["name"]: int(port["containerPort"]) for port in self.server_spec.get("ports") or ()
        }
        self._bwrap, self._memory = needs_sandbox(), list[Path]()
        self.volumes = {volume["name"]: self._volume(volume) for volume in self.spec["volumes"]}
        self.restarts, self.is_ready, self.server, self.statuses = 0, False, None, list[int]()
        self._is_over, self._is_managed, self._is_gone = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._live, name="kubelet", daemon=True)
        self.failed: str | None = None

    server: Container | None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        self._thread.start()

    def probe(self, name: str) -> Probe:
        """A probe of the server's, anew: `startup`, `readiness` or `liveness`."""
        return Probe(self.server_spec[f"{name}Probe"], self.ports, self.address, time.monotonic())

    def terminate(self) -> tuple[int, float]:
        """Ends the pod in order; returns the server's exit status, and how long it took after the preStop."""
        patience = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        self._is_over.set()
        self._is_managed.wait()
        assert self.server is not None
        handler = self.server_spec["lifecycle"]["preStop"]
        if "sleep" in handler:
            time.sleep(handler["sleep"]["seconds"])
        else:
            subprocess.run(handler["exec"]["command"], check=True)
        began = time.monotonic()
        self.server.signal(signal.SIGTERM)
        try:
            status = self.server.process.wait(max(0.0, patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.server.kill()
            status = -signal.SIGKILL
        return status, time.monotonic() - began

    def close(self) -> None:
        """Kills what still runs, and removes the volumes in memory."""
        self._is_over.set()
        self._is_gone.set()
        if self._thread.ident:
            self._thread.join()
        if self.server:
            self.server.kill()
        for volume in self._memory:
            shutil.rmtree(volume, ignore_errors=True)

    # The kubelet.

    def _live(self) -> None:
        try:
            self._manage()
        finally:
            self._is_managed.set()
        # The containers are to die with their parent, and to the kernel that is this thread.
        self._is_gone.wait()

    def _manage(self) -> None:
        for spec in self.spec.get("initContainers") or ():
            while self.run_to_its_end(spec) and not self._is_over.wait(_BACK_OFF_S):
                self.restarts += 1
                if self.restarts > 2:
                    self.failed = (self.folder / f"{spec['name']}.log").read_text()
                    return
        while not self._is_over.is_set():
            self.server = self._container(self.server_spec)
            self._watch(self.server)
            self.is_ready = False
            if self._is_over.is_set():
                return
            self.statuses.append(self.server.process.wait())
            self.restarts += 1
            self._is_over.wait(_BACK_OFF_S)

    def run_to_its_end(self, spec: Mapping[str, Any]) -> int:
        """Runs a container that ends of itself; returns its exit status."""
        return self._container(spec).process.wait()

    def _watch(self, server: Container) -> None:
        """Returns when the container has ended, of itself or since a probe says so, or the pod is to end."""
        startup, readiness, liveness = map(self.probe, ("startup", "readiness", "liveness"))
        while not self._is_over.wait(0.05) and server.process.poll() is None:
            now = time.monotonic()
            if not startup.passes:
                startup.look(now)
                if startup.passes is False:
                    self._end(server)
                continue
            readiness.look(now)
            self.is_ready = bool(readiness.passes)
            liveness.look(now)
            if liveness.passes is False:
                self._end(server)

    def _end(self, server: Container) -> None:
        server.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(self.spec["terminationGracePeriodSeconds"])
        server.kill()

    # The runtime.

    def _container(self, spec: Mapping[str, Any]) -> Container:
        context = {**self.spec["securityContext"], **spec["securityContext"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["runAsNonRoot"] is True
        user = ("--uid", str(context["runAsUser"]), "--gid", str(context["runAsGroup"]))
        # As a runtime does, so that one may be below another.
        ordered = sorted(spec["volumeMounts"], key=lambda mount: str(mount["mountPath"]))
        mounts = [word for mount in ordered for word in self._mount(mount)]
        # What stands for the image may be below a folder of the pod's.
        ours = [word for path in _image() for word in ("--ro-bind", path, path)]
        line: list[str] = [*spec.get("command", ()), *spec["args"]]
        line[0] = str(Path(sys.prefix, "bin", line[0]))
        # The pod has its own address in place of all addresses of this machine.
        line = [self.address if word == "0.0.0.0" else word for word in line]
        box = [*_box(self._bwrap), *user, *mounts, *ours, "--remount-ro", "/"]
        return Container(box, line, self._environment(spec), self.folder / f"{spec['name']}.log")

    def _mount(self, mount: Mapping[str, Any]) -> Iterator[str]:
        yield "--ro-bind" if mount.get("readOnly") else "--bind"
        yield str(self.volumes[mount["name"]])
        yield mount["mountPath"]

    def _environment(self, spec: Mapping[str, Any]) -> dict[str, str]:
        found = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
        found["OMP_NUM_THREADS"] = "1"
        for source in spec.get("envFrom") or ():
            found |= self._secrets[source["secretRef"]["name"]]
        for each in spec.get("env") or ():
            key = each.get("valueFrom", {}).get("secretKeyRef")
            found[each["name"]] = self._secrets[key["name"]][key["key"]] if key else each["value"]
        return found

    def _volume(self, volume: Mapping[str, Any]) -> Path:
        name = volume["name"]
        made: Path = self.folder / "volumes" / name
        made.mkdir(parents=True)
        if (empty := volume.get("emptyDir")) is not None:
            if empty.get("medium") == "Memory":
                made = Path(tempfile.mkdtemp(prefix="pod-", dir="/dev/shm"))
                self._memory.append(made)
        elif source := volume.get("configMap"):
            found = self._maps.get(source["name"])
            assert found or source.get("optional"), f"no ConfigMap {source['name']}"
            for key, text in (found or {"data": {}})["data"].items():
                (made / key).write_text(text)
        elif source := volume.get("downwardAPI"):
            for item in source["items"]:
                key = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
                (made / item["path"]).write_text(self._annotations[key])
        elif source := volume.get("hostPath"):
            made = Path(self._host, source["path"].lstrip("/"))
            assert made.is_dir(), f"the node has no {source['path']}"
        else:
            raise AssertionError(f"a volume of another kind: {volume}")
        made.chmod(0o777)
        return made


def _box(bwrap: str) -> list[str]:
    namespaces = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent"]
    read = [word for path in _SYSTEM if Path(path).exists() for word in ("--ro-bind", path, path)]
    etc = [f"/etc/{name}" for name in _ETC if Path("/etc", name).exists()]
    read += [word for path in etc for word in ("--ro-bind", path, path)]
    return [bwrap, *namespaces, *read, "--proc", "/proc", "--dev", "/dev"]


def _image() -> list[str]:
    """The folders of the code and of its Python, which an image would have."""
    found = [REPOSITORY]
    for path in (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()):
        if not str(path).startswith(_SYSTEM) and REPOSITORY not in path.parents:
            found.append(path)
    return [str(path) for path in found]
