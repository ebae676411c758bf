"""What a test says to the stand-ins for docker and podman, and asks them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

FAKES = Path(__file__).parent
_CLIENT = f'PYTHONPATH={FAKES.parents[1]} exec {sys.executable} -m tests.fakes.{{}} "$@"'
CLIENT, PODMAN = _CLIENT.format("docker"), _CLIENT.format("podman")
TRTLLM_BUILD = FAKES / "trtllm_build.py"
INFO = '{"ServerVersion": "29.0.1", "Runtimes": {"nvidia": {}, "runc": {}}}'


class DockerDaemon:
    """`folder` is the daemon, or what podman has on disk, `client` the command, `gpus` nvidia-smi's table."""

    def __init__(self, folder: Path, client: Path, gpus: Path) -> None:
        self.folder, self.client = folder, client
        (folder / "containers").mkdir(parents=True)
        (folder / "image_bin").mkdir()
        (folder / "gpus.csv").symlink_to(gpus)
        (folder / "images").touch()
        (folder / "calls").touch()
        (folder / "cdi").touch()
        (folder / "image_environment.json").write_text("{}")
        self.info(INFO)
        self.in_image(FAKE_RELEASE="1.2.1")
        self.program("trtllm-build", f"#!{sys.executable}\n{TRTLLM_BUILD.read_text()}")

    def info(self, text: str, trouble: str = "") -> None:
        (self.folder / "info.json").write_text(text)
        (self.folder / "trouble").write_text(trouble)

    def images(self, *names: str) -> None:
        """Those that need not be pulled."""
        (self.folder / "images").write_text("".join(f"{name}\n" for name in names))

    def in_image(self, **variables: str) -> None:
        """What containers find in their environment beside what they are given."""
        file = self.folder / "image_environment.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | variables))

    def program(self, name: str, text: str) -> None:
        """A program of every image."""
        file = self.folder / "image_bin" / name
        file.write_text(text)
        file.chmod(0o755)

    def calls(self, command: str) -> list[list[str]]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [words for line in lines if (words := json.loads(line))[0] == command]

    def running(self) -> list[str]:
        """The names of containers that have not ended."""
        found = (self.folder / "containers").iterdir()
        return [folder.name for folder in found if not (folder / "status").exists()]
