"""A child process ends with all that it has started, finds its command, and gets no secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import wait_until
from trtspec.base.child import ChildProcess
from trtspec.base.environment import without_secrets
from trtspec.serving.triton.watching import stat

# The kernel takes a while to free the memory of a child, which is no child of this process.
SERVER = """
import os, time
if not os.fork():
    held = bytearray(512 << 20)
    held[::4096] = b"x" * len(held[::4096])
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_whoever_kills_it_finds_its_memory_free(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        child = ChildProcess((sys.executable, "-c", SERVER), output)
    wait_until(lambda: log.read_text().endswith("\n"), "a process with memory")

    child.kill()

    worker = stat(int(log.read_text()))
    assert worker is None or worker.state == "Z"
    assert child.poll() == -9


def test_a_child_process_finds_its_command_on_path() -> None:
    """As it must find mpirun."""
    words = ["-m", "trtspec.base.child", str(os.getpid()), "15", "echo", "a b"]
    said = subprocess.check_output([sys.executable, *words], text=True)
    assert said == "a b\n"


def test_a_file_of_its_folder_is_not_taken_for_a_module_of_pythons(tmp_path: Path) -> None:
    """A build may come from elsewhere, and a server runs in its folder."""
    for name in ("resource", "ctypes", "sitecustomize"):
        tmp_path.joinpath(f"{name}.py").write_text("raise SystemExit('ran')\n")
    log = tmp_path / "log"
    with log.open("wb") as output:
        child = ChildProcess(("echo", "a b"), output, folder=tmp_path, orphaned=signal.SIGTERM)
    assert child.wait(240) == 0
    assert log.read_text() == "a b\n"


NEEDED = {
    "PATH": "/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "CUDA_CACHE_PATH": "/tmp/cuda",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "OMPI_MCA_btl": "^openib",
    "PMIX_MCA_gds": "hash",
    "UCX_TLS": "all",
    "TRTLLM_ORCHESTRATOR": "1",
    "TLLM_LOG_LEVEL": "INFO",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "4",
    "PWD": "/home/me",
    "http_proxy": "http://proxy:3128/",
}
SECRETS = {
    "HF_TOKEN": "x",
    "HUGGING_FACE_HUB_TOKEN": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_ACCESS_KEY_ID": "x",
    "NGC_API_KEY": "x",
    "NVIDIA_API_KEY": "x",
    "DB_PASSWORD": "x",
    "MYSQL_PWD": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "/x.json",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "https_proxy": "http://me:word@proxy:3128/",
    "HARMLESS": "hf_abcdefghijklmnop",
}


def test_variables_that_engines_need_reach_a_child_process() -> None:
    assert without_secrets(NEEDED) == NEEDED


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_do_not(name: str) -> None:
    assert without_secrets({name: SECRETS[name]}) == {}
