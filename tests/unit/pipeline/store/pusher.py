"""A process of its own that pushes a folder: `pusher.py URL FOLDER CREATED [DIES]`.

`DIES` is the number of the write at which it dies, half of it done.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.unit.pipeline.store.conftest import entry_of
from trtspec.pipeline.store import transfer as room
from trtspec.pipeline.store.store import Store

DEAD = 9


def main(url: str, folder: str, created: str, dies: str = "") -> None:
    room.CHUNK, room._POLL_S = 1024, 0.05
    store = Store(url)
    if dies:
        left, pipe = int(dies), store.files._system.pipe_file
        opened = store.files._system.open

        def half(path: str, content: bytes, **options: object) -> None:
            nonlocal left
            if not left:
                os._exit(DEAD)
            left -= 1
            pipe(path, content, **options)

        def half_open(path: str, mode: str) -> object:
            nonlocal left
            stream = opened(path, mode)
            if not left:
                stream.write(b"half")
                stream.flush()
                os._exit(DEAD)
            left -= 1
            return stream

        store.files._system.pipe_file, store.files._system.open = half, half_open
    print("ready", flush=True)
    sys.stdin.readline()
    room.push(store, entry_of(Path(folder), created=created), Path(folder), lambda *_: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
