"""Builds a recipe again and again, each time killed at another moment, and checks how the next run ends.

Run as `killed_everywhere.py RECIPE FOLDER EVERY`. The moments are every `EVERY`th of: opening, making,
renaming, linking or removing a file below the folder, and each piece of data converted. Prints how many runs
were killed. Steps that this machine cannot run are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.base.progress import Advance
from trtspec.checkpoint import convert
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.run.runner import run

MOMENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "shutil.rmtree")


def build(recipe: Path, folder: Path, kill_at: int | None) -> None:
    left = kill_at

    def moment() -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in MOMENTS and str(arguments[0]).startswith(str(folder)):
            moment()

    @contextmanager
    def watch(label: str, size: int | None) -> Iterator[Advance]:
        yield lambda *_: moment()

    sys.addaudithook(hook)
    made = make_plan(recipe, output=folder, to_run=True, progress=watch)
    run([step for step in made.steps if not step.obstacle], made.output, made.digests, watch)


def in_child(recipe: Path, folder: Path, kill_at: int | None = None) -> int:
    child = os.fork()
    if child == 0:
        try:
            build(recipe, folder, kill_at)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the ones of the runner, and the manifest without its times."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    found = {name: path.read_bytes() for name, path in files.items() if not name.startswith(".trtspec")}
    found["manifest.json"] = json.dumps(json.loads(found["manifest.json"]) | {"times": {}}).encode()
    return found


def main(recipe: Path, folder: Path, every: int) -> None:
    convert.CHUNK = 1 << 16
    os.fsync = lambda fd: None  # what a killed process wrote is not lost; only a power cut loses it
    build(recipe, folder, None)  # here, so that children find imported what it takes
    expected, kills = content(folder), 0
    while True:
        shutil.rmtree(folder)
        status = in_child(recipe, folder, kills * every)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        assert in_child(recipe, folder) == 0
        assert content(folder) == expected, kills * every
        kills += 1
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
