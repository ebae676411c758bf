"""The lists of trtllm-serve's flags, which count where it is not installed, and how they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.write_switches import of_source, path_of, rewritten
from trtspec.backends.importing import recipe_of
from trtspec.backends.table import loads
from trtspec.backends.tensorrt_llm_pytorch.flags import FLAGS, LATER, SWITCHES
from trtspec.recipe.schema import Recipe

HERE = Path("recipe.yaml")
SOURCE = """
import click

@click.command("other")
@click.option("--of_another", is_flag=True)
def other(**_): ...

@click.command("serve")
@click.argument("model", type=str)
@click.option("--tensor_parallel_size", "--tp_size", type=int, default=1, help=tagged("Ranks.", "beta"))
@click.option("--old_switch",
              is_flag=True,
              default=False)
def serve(**_): ...
"""
LIST = """
commands:
  serve:
    options:
      tensor_parallel_size: {is_flag: false, flags: ["--tensor_parallel_size", "--tp_size"]}
      old_switch: {is_flag: true, flags: ["--old_switch"]}
      telemetry: {is_flag: true, flags: ["--no-telemetry", "--telemetry"]}
      new_value: {is_flag: false, flags: ["--new-value"]}
  other:
    options:
      of_another: {is_flag: true, flags: ["--of_another"]}
"""
"""The form of `tests/unittest/api_stability/references/trtllm_serve_cli.yaml`, with fewer keys."""


def read(command: str) -> Recipe:
    return loads(recipe_of(command, HERE).text.encode(), HERE).recipe


@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_a_switch_before_the_model_leaves_it(switch: str) -> None:
    found = recipe_of(f"trtllm-serve {switch} org/big --max_batch_size 4", HERE)
    recipe = loads(found.text.encode(), HERE).recipe
    assert (recipe.target.model, recipe.engine.max_batch_size) == ("org/big", 4)
    if switch in LATER:
        assert not recipe.engine.extra_args
        assert "has no such flag" in {note.subject: note.fate for note in found.notes}[switch]


def test_flags_of_later_releases_that_a_recipe_has_keys_for() -> None:
    found = read("trtllm-serve org/big --kv_cache_dtype fp8 --hf_revision abc --no-telemetry")
    assert (found.target.quantization.kv_cache, found.target.revision) == ("fp8", "abc")


def test_the_lists_are_written_from_sources(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SOURCE)
    (tmp_path / "list.yaml").write_text(LIST)
    own, later = of_source(tmp_path / "serve.py"), of_source(tmp_path / "list.yaml")
    assert own == {
        "--tensor_parallel_size": ("--tensor_parallel_size", None),
        "--tp_size": ("--tensor_parallel_size", None),
        "--old_switch": ("--old_switch", 0),
    }
    assert later["--no-telemetry"] == ("--telemetry", 0)
    text = path_of("tensorrt_llm_pytorch").read_text()
    written = rewritten(text, own, FLAGS, later)
    assert written.count("names_in(") == text.count("names_in(") == 3
    for flag in (*SWITCHES, "--old_switch"):
        assert flag in written
    assert "--of_another" not in written
    assert '    --new_value --no_telemetry --telemetry\n""")' in written
