"""An S3 server in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@contextmanager
def serve() -> Iterator[str]:
    """Yields the URL of a server, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        host, port = process.stdout.readline().split()
        yield f"http://{host}:{port}"
    finally:
        process.kill()
        process.wait()


def credentials(server: str) -> dict[str, str]:
    """The variables by which s3fs finds the server."""
    return {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def new_bucket(server: str) -> str:
    """Makes a bucket, and returns the URL of a store in it."""
    import s3fs

    bucket = f"engines-{uuid.uuid4().hex}"
    login = {"key": "test", "secret": "test", "endpoint_url": server}
    s3fs.S3FileSystem(skip_instance_cache=True, **login).mkdir(bucket)
    return f"s3://{bucket}/store"
