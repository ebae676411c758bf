"""The steps that write how a server of others is started: its files, and `launch.json` that names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from trtspec.backends.servers.launch import FILE, ServerLaunch
from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.pipeline.run.step import Step

KIND = "write launch"


def steps(launch: ServerLaunch) -> Iterator[Step]:
    for name, text in launch.files.items():
        yield Step(
            kind=f"write {name}",
            summary=f"what {launch.program[0]} reads",
            inputs=(),
            output=name,
            command=(),
            digest=digest_of(text),
            action=partial(_write, text),
        )
    yield Step(
        kind=KIND,
        summary=f"how {launch.backend} {launch.release} is started",
        inputs=launch.models,
        output=FILE,
        command=(),
        digest=digest_of(asdict(launch)),
        action=partial(_write, launch.to_json()),
    )


def _write(text: str, output: Path, _: Advance) -> None:
    output.write_text(text, encoding="utf-8")
