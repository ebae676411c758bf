"""The real podman of this machine, of root or of a user, with a storage of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from tests.e2e import podman_image
from tests.e2e.conftest import TRTSPEC
from trtspec.recipe.releases import release_of

IMAGE = release_of(None).image
USER = "trtspec-podman"
"""Who has rootless containers where root runs the tests; `make test-podman` adds this user."""
Whose = Literal["root", "user"]

# As on a machine without systemd.
_CONTAINERS = """
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{0}/graph"
runroot = "{0}/runroot"
"""
# Podman of root raises these limits, which a root without all capabilities may not, as in a container.
_LIMITED = """#!/bin/sh
if [ "$1" = run ]; then
    shift
    set -- run --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 "$@"
fi
exec {podman} "$@"
"""


class RealPodman:
    """Runs commands as whoever it is of; `folder` is theirs, and `environment` all that they know."""

    def __init__(self, whose: Whose) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trtspec-podman-"))
        self.whose = whose
        is_other = whose == "user" and os.getuid() == 0
        who = pwd.getpwnam(USER) if is_other else pwd.getpwuid(os.getuid())
        self.uid, self.gid = who.pw_uid, who.pw_gid
        # Root's Python may be where nobody else may look.
        sees = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups", *sees]
        self._become = become if is_other else []
        (self.folder / "home").mkdir()
        (self.folder / "run").mkdir(mode=0o700)
        (self.folder / "containers.conf").write_text(_CONTAINERS)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "HOME": str(self.folder / "home"),
            "USER": who.pw_name,
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "TRTSPEC_CONTAINERS": "podman",
        }
        if whose == "root":
            (self.folder / "storage.conf").write_text(_STORAGE.format(self.folder))
            self.environment["CONTAINERS_STORAGE_CONF"] = str(self.folder / "storage.conf")
            (self.folder / "bin").mkdir()
            limited = self.folder / "bin/podman"
            limited.write_text(_LIMITED.format(podman=shutil.which("podman")))
            limited.chmod(0o755)
            self.environment["PATH"] = f"{limited.parent}:{self.environment['PATH']}"
        self.give(self.folder)

    def give(self, folder: Path) -> None:
        """Makes a folder, with all that is in it, theirs."""
        folder.chmod(0o755)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def run(self, *words: str | Path, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [*self._become, *words], env=self.environment, cwd=self.folder, capture_output=True, text=True
        )
        assert status is None or result.returncode == status, (result.stdout, result.stderr)
        return result

    def trtspec(self, *words: str | Path, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.run(TRTSPEC, *words, status=status)

    def python(self, script: str) -> str:
        """What a script of theirs prints."""
        return self.run(sys.executable, "-c", script).stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._become, *words], env=self.environment, cwd=self.folder)

    def load_image(self) -> None:
        command = [*self._become, "podman", "import", "-", IMAGE]
        with subprocess.Popen(command, env=self.environment, cwd=self.folder, stdin=subprocess.PIPE) as made:
            assert made.stdin
            podman_image.write(made.stdin)
        assert made.returncode == 0

    def names(self) -> list[str]:
        """Of the containers that are there."""
        return self.run("podman", "ps", "--all", "--format", "{{.Names}}").stdout.split()

    def remove(self) -> None:
        self.run("podman", "rm", "--all", "--force", "--time", "0", status=None)
        self.run("podman", "system", "reset", "--force", status=None)
        shutil.rmtree(self.folder, ignore_errors=True)
