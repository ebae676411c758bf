"""The step that writes the model repository of Triton's vLLM backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from trtspec.backends.servers import triton_vllm
from trtspec.backends.servers.launch import ServerLaunch
from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import write_repository


def step(launch: ServerLaunch) -> Step:
    files = triton_vllm.files(launch)
    return Step(
        kind=write_repository.KIND,
        summary=f"the Triton model {launch.served_model_name} of the vLLM backend",
        inputs=launch.models,
        output=write_repository.OUTPUT,
        command=(),
        digest=digest_of(files),
        action=partial(_write, files),
    )


def _write(files: Mapping[str, str], output: Path, _: Advance) -> None:
    for name, text in files.items():
        file = output / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
