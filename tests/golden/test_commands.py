"""The command lines of a production recipe, to the letter; UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtspec.cli.app import app
from trtspec.serving.executors.torch import host

RECIPE = """
name: llama-h200
target: {model: ./target, build: {multiple_profiles: true}}
draft: {model: ./draft, dtype: float16, build: {gemm_plugin: float16}}
speculation: {max_draft_len: 10}
engine: {release: 1.1.0, max_batch_size: 4, max_input_len: 3200, max_seq_len: 4800}
hardware: {gpu: h200}
"""


ON_CPU = RECIPE.replace("dtype: float16, build: {gemm_plugin: float16}", "device: cpu")


@pytest.mark.parametrize(
    ("recipe", "command"),
    [
        (RECIPE, "plan -v"),
        (RECIPE, "plan --commands"),
        (RECIPE, "build --dry-run"),
        (RECIPE, "build --dry-run --json"),
        (ON_CPU, "plan -v"),
    ],
)
def test_plan_and_build_print_the_golden_command_lines(
    llama_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    command: str,
) -> None:
    for role in ("target", "draft"):
        llama_folder(role, max_position_embeddings=8192)
    (tmp_path / "recipe.yaml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without a trtllm-build
    monkeypatch.setattr(host, "look", lambda: host.ProcessShare(16, None, 64 << 30))
    verb, *options = command.split()
    result = CliRunner().invoke(app, [verb, "recipe.yaml", *options])
    assert result.exit_code == 0, result.output

    output = re.sub(
        r'"digest": "[0-9a-f]{64}"', '"digest": "..."', result.stdout
    )  # of trtspec's own code too

    name = command.replace(" --", "_").replace(" -v", "") + ("_cpu-draft" if recipe is ON_CPU else "")
    golden = Path(__file__).with_name("commands") / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(output)
    assert output == golden.read_text()
