"""Several ranks in a container: Open MPI itself starts a server, which spawns a worker for each rank.

Server and worker stand in for Triton and for NVIDIA's `trtllmExecutorWorker`, which the C++ backend starts by
`MPI_Comm_spawn` of itself alone, without an `MPI_Info` (`Executor::Impl::initializeOrchestrator`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtspec.deployment.triton.launch import by_ranks

PYTHON = Path("/usr/bin/python3")
pytestmark = pytest.mark.skipif(
    not all((shutil.which("mpirun"), shutil.which("setpriv"), PYTHON.exists(), os.getuid() == 0)),
    reason="needs Open MPI, setpriv and root, who may become a user without a name",
)
UID = 54321
RANKS = 3
"""More than this machine may have cores for."""
SERVER = """#!/usr/bin/python3
import ctypes, json, os, sys

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")))


mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int()))
group = ctypes.c_void_p()
if sys.argv[1:]:
    worker, null, alone = os.path.abspath(__file__).encode(), handle("info_null"), handle("comm_self")
    mpi.MPI_Comm_spawn(worker, None, int(sys.argv[1]), null, 0, alone, ctypes.byref(group), None)
    for rank in range(int(sys.argv[1])):
        text = ctypes.create_string_buffer(4096)
        mpi.MPI_Recv(text, 4096, handle("char"), rank, 7, group, None)
        print(text.value.decode(), flush=True)
else:
    mpi.MPI_Comm_get_parent(ctypes.byref(group))
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = ("Uid", "CapEff", "NoNewPrivs")
    said = {name: status[name].split()[0] for name in names}
    said["orchestrator"] = os.environ["TRTLLM_ORCHESTRATOR"]
    text = json.dumps(said).encode()
    mpi.MPI_Send(text, len(text), handle("char"), 0, 7, group)
mpi.MPI_Finalize()
"""


@pytest.fixture
def server() -> Iterator[Path]:
    """A server where anybody may run it, as in an image."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    made = folder / "tritonserver"
    made.write_text(SERVER)
    made.chmod(0o755)
    yield made
    shutil.rmtree(folder)


def test_a_user_without_a_name_or_capabilities_gets_a_worker_for_each_rank(server: Path) -> None:
    started = by_ranks([str(server), str(RANKS)], RANKS, 0)
    bare = ("--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    done = subprocess.run(
        ["setpriv", f"--reuid={UID}", f"--regid={UID}", *bare, *started.argv],
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "USER": "trtspec", **started.environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    worker = {"Uid": str(UID), "CapEff": "0" * 16, "NoNewPrivs": "1", "orchestrator": "1"}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [worker] * RANKS
