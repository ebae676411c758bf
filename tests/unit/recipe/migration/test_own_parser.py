"""`init --from` reads a command as the server's own parser does, where the server is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtspec.backends.importing import recipe_of
from trtspec.backends.sglang.flags import TOOL as SGLANG
from trtspec.backends.table import load
from trtspec.backends.tensorrt_llm_pytorch.flags import TOOL as TRTLLM
from trtspec.backends.vllm.flags import FLAGS
from trtspec.backends.vllm.flags import TOOL as VLLM
from trtspec.cli.app import app
from trtspec.pipeline.machine.host import flags_of, python_of
from trtspec.recipe.migration.tool import OwnParser
from trtspec.recipe.schema import Recipe

VLLM_FLAGS = """
from argparse import BooleanOptionalAction

def make_arg_parser(parser):
    print("INFO: a log on stdout")
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--longest", "--max-model-len", "-ml")
    parser.add_argument("--enable-chunked-prefill", action=BooleanOptionalAction)
    parser.add_argument("--brand-new", action="store_true")
    parser.add_argument("--brand-list", nargs="+")
    parser.add_argument("--enforce-eager")
    return parser
"""
TRTLLM_SERVE = """
import click

print("[TensorRT-LLM] TensorRT-LLM version: 1.2.0")

@click.command("serve")
@click.argument("model", type=str)
@click.option("--tensor_parallel_size", "--tp_size", type=int, default=1)
@click.option("--config", "--extra_llm_api_options", "extra_llm_api_options", type=str, default=None)
@click.option("--custom_module_dirs", type=click.Path(), multiple=True)
@click.option("--brand_new", is_flag=True, default=False)
def serve(model, **_):
    raise SystemExit("it must not be run")
"""
"""The form of `tensorrt_llm/commands/serve.py` of releases 1.1 to 1.3."""
SGLANG_FLAGS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--weights", "--model-path")
        parser.add_argument("--brand-new", action="store_true")
"""


def install(site: Path, name: str, files: dict[str, str]) -> None:
    """Writes a package, and its program on PATH, which must not be run."""
    for file, text in files.items():
        place = site / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    program = site / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{sys.executable}\nraise SystemExit('it must not be run')\n")
    program.chmod(0o755)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages beside the folder of the user, in which others of the same names lie."""
    site, here = tmp_path / "site", tmp_path / "here"
    flexible = "from argparse import ArgumentParser as FlexibleArgumentParser\n"
    vllm = {"vllm/utils/argparse_utils.py": flexible, "vllm/entrypoints/launchers/cli_args.py": VLLM_FLAGS}
    install(site, "vllm", vllm)
    install(site, "sglang", {"sglang/srt/server_args.py": SGLANG_FLAGS})
    install(site, "trtllm-serve", {"tensorrt_llm/commands/serve.py": TRTLLM_SERVE})
    for name in ("vllm", "sglang", "tensorrt_llm", "json"):
        install(here, name, {f"{name}/__init__.py": f"open({str(tmp_path / 'imported')!r}, 'w')"})
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PATH", str(site / "bin"))
    monkeypatch.chdir(here)
    return site


def made(command: str) -> Recipe:
    result = CliRunner().invoke(app, ["init", "--from", command])
    assert result.exit_code == 0, result.output
    return load(Path("recipe.yaml")).recipe


def test_flags_are_those_of_the_vllm_that_is_installed(site: Path) -> None:
    found = made(
        "vllm serve --brand_new org/big -ml 2k --brand-list 1 2 --enforce-eager off "
        "--no-enable-chunked-prefill --max-num-batched-tokens 4096 --disable-log-requests"
    )
    assert (found.target.model, found.engine.max_seq_len) == ("org/big", 2000)
    assert found.engine.enable_chunked_context is False
    passed = ["--brand_new", "--brand-list", "1", "2", "--enforce-eager", "off"]
    assert found.engine.extra_args == passed
    assert not (site.parent / "imported").exists()


def test_flags_are_those_of_the_sglang_that_is_installed(site: Path) -> None:
    found = made("python -m sglang.launch_server --brand-new --weights org/big --tp 2")
    assert (found.target.model, found.target.parallel.tensor) == ("org/big", 2)
    assert found.engine.extra_args == ["--brand-new"]


def test_flags_are_those_of_the_trtllm_serve_that_is_installed(site: Path) -> None:
    Path("options.yaml").write_text("max_seq_len: 2000\n")
    found = made("trtllm-serve --brand_new org/big --tp_size 2 --config options.yaml")
    assert (found.target.model, found.target.parallel.tensor) == ("org/big", 2)
    assert found.engine.max_seq_len == 2000
    assert found.engine.extra_args == ["--brand_new"]


@pytest.mark.parametrize("text", ["raise RuntimeError", "import time; time.sleep(60)", "print('{}')", ""])
def test_a_parser_that_does_not_answer_leaves_the_list(site: Path, text: str) -> None:
    (site / "vllm/entrypoints/launchers/cli_args.py").write_text(f"{text}\n")
    assert VLLM.own_parser
    python = python_of(VLLM.own_parser, ())
    assert python == sys.executable
    assert flags_of(python, VLLM.own_parser, seconds=1) == {}
    assert FLAGS.of_parser({}) == FLAGS


def test_a_parser_that_does_not_answer_is_told(site: Path) -> None:
    (site / "vllm/entrypoints/launchers/cli_args.py").unlink()
    result = CliRunner().invoke(app, ["init", "--from", "vllm serve --enforce-eager org/big"])
    assert result.exit_code == 0, result.output
    assert "vLLM did not list its flags, so trtspec uses its own list" in result.stderr
    assert load(Path("recipe.yaml")).recipe.engine.extra_args == ["--enforce-eager"]


def test_nothing_is_asked_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for tool in (VLLM, SGLANG, TRTLLM):
        assert tool.own_parser
        assert python_of(tool.own_parser, ("no-such-package",)) is None
    assert python_of(OwnParser("none", ""), ("pytest",)) == sys.executable


def test_a_caller_may_have_asked() -> None:
    found = recipe_of(
        "vllm serve --brand-new org/big",
        Path("recipe.yaml"),
        ask=lambda _: {"--brand-new": ("--brand-new", 0)},
    )
    assert "org/big" in found.text
