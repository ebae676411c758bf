"""An image for podman, made of this machine's Python and shell, since there is no registry to have one from.

Its tritonserver answers as Triton does when it is asked whether it is ready, and no more than that.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

SERVER = """#!/usr/bin/python3
import http.server, os, pathlib, signal, sys, threading

options = dict(word[2:].partition("=")[::2] for word in sys.argv[1:])
build = pathlib.Path(options["model-repository"]).parent
try:
    (build / "written").touch()
    print("the build can be written", flush=True)
except OSError as error:
    print(f"{os.getuid()}:{os.getgid()} in {os.environ['HOME']}: {error.strerror}", flush=True)
if (build / "broken").exists():
    sys.exit(3)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(7)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass


for kind in ("http", "grpc", "metrics"):
    server = http.server.ThreadingHTTPServer((options["http-address"], int(options[f"{kind}-port"])), Handler)
    threading.Thread(target=server.serve_forever).start()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print("ready", flush=True)
signal.pause()
"""
_LEFT_OUT = ("site-packages", "test", "tests", "idlelib", "ensurepip", "tkinter", "__pycache__", "lib2to3")


def write(stream: IO[bytes]) -> None:
    """Writes the root file system as a tar."""
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}").resolve()
    shell = Path(shutil.which("sh") or "/bin/sh").resolve()
    library = Path(sys.base_prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    modules = [file for file in library.rglob("*") if not set(file.parts) & set(_LEFT_OUT)]
    needed = {python, shell, *(file for file in modules if file.suffix == ".so")}
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for folder in ("tmp", "proc", "sys", "dev", "etc", "run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for file in sorted({python, shell, *_libraries(needed), *(f for f in modules if f.is_file())}):
            entry = tar.gettarinfo(file.resolve(), str(file).lstrip("/"))
            entry.uid = entry.gid = 0
            with file.open("rb") as content:
                tar.addfile(entry, content)
        for link, target in (("usr/bin/python3", python), ("bin/sh", shell)):
            if Path("/", link) != target:
                entry = tarfile.TarInfo(link)
                entry.type, entry.linkname = tarfile.SYMTYPE, str(target)
                tar.addfile(entry)
        entry = tarfile.TarInfo("opt/tritonserver/bin/tritonserver")
        entry.size, entry.mode = len(SERVER), 0o755
        tar.addfile(entry, io.BytesIO(SERVER.encode()))


def _libraries(files: set[Path]) -> Iterator[Path]:
    """What the dynamic linker loads for them, and the linker, where it looks for them."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    for line in said.splitlines():
        words = line.split()
        found = [word for word in words if word.startswith("/") and not word.endswith(":")]
        if found:
            yield Path(found[-1])
