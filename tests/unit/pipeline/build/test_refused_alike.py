"""Each way to a build refuses the same recipes, for the same reasons, and passes the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import trtspec
from tests.fakes.broken_recipes import ALONE, BROKEN, GPU, VLLM, VLLM_ALONE
from tests.fakes.gpu_machine import H100, GpuMachine
from trtspec.base.errors import TrtspecError
from trtspec.cli.app import app

Refusal = tuple[int, list[tuple[str, str, str | None]]]


def of_command(*words: str) -> Callable[[Path], Refusal]:
    def ask(recipe: Path) -> Refusal:
        result = CliRunner().invoke(app, [words[0], str(recipe), *words[1:]])
        return result.exit_code, told(result.exception)

    return ask


def of_api(call: Callable[[Path], object]) -> Callable[[Path], Refusal]:
    def ask(recipe: Path) -> Refusal:
        try:
            call(recipe)
        except TrtspecError as error:
            return 1, told(error)
        return 0, []

    return ask


def told(error: BaseException | None) -> list[tuple[str, str, str | None]]:
    if not isinstance(error, TrtspecError):
        assert error is None or isinstance(error, SystemExit), error
        return []
    return [(found.subject, found.problem, found.repair) for found in error.findings]


WAYS: Mapping[str, Callable[[Path], Refusal]] = {
    "check": of_command("check"),
    "check --json": of_command("check", "--json"),
    "plan": of_command("plan", "--commands"),
    "build --dry-run": of_command("build", "--dry-run"),
    "build": of_command("build"),
    "trtspec.plan": of_api(trtspec.plan),
    "trtspec.build": of_api(trtspec.build),
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_network: None) -> GpuMachine:
    """A machine that lacks nothing of what a build needs, but the network."""
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H100, H100, H100)
    machine.tensorrt_llm()
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRTSPEC_OUTPUT", str(tmp_path / "build"))
    return machine


# Each has a sibling that is refused for the same thing, by the same code.
SELDOM = {
    *("tokenizer_is_text", "tokenizer_is_a_pointer_alone", "weights_are_a_pointer", "config_is_text"),
    *("words_past_the_embedding_alone", "words_past_the_embedding_on_vllm", "another_tokenizer_on_vllm"),
    *("longer_than_the_default", "longer_than_the_server_says", "tensor_of_another_shape", "no_size"),
}


def seldom(names: Iterable[str]) -> list[Any]:
    """All recipes, of which `make test-sweep` alone has those of these names."""
    return [pytest.param(name, marks=pytest.mark.sweep if name in names else ()) for name in BROKEN]


@pytest.mark.parametrize("name", seldom(SELDOM))
def test_a_broken_recipe_is_refused_alike(name: str, pair_recipe: Path, machine: GpuMachine) -> None:
    BROKEN[name].write(pair_recipe)
    refusals = {way: ask(pair_recipe) for way, ask in WAYS.items()}
    status, findings = refusals["check"]
    assert (status, bool(findings)) == (1, True), refusals
    assert any(BROKEN[name].says in " ".join(map(str, found)) for found in findings), findings
    assert refusals == dict.fromkeys(WAYS, (status, findings))


@pytest.mark.parametrize(
    "name", seldom(BROKEN.keys() - {"unknown_key", "no_folder", "tensor_is_missing", "another_tokenizer"})
)
def test_doctor_passes_no_broken_recipe(name: str, pair_recipe: Path, machine: GpuMachine) -> None:
    """It says in its own words that a model is not there, and also what the machine lacks."""
    BROKEN[name].write(pair_recipe)
    assert CliRunner().invoke(app, ["doctor", str(pair_recipe)]).exit_code == 1


@pytest.mark.parametrize("lines", [{}, VLLM, GPU, ALONE, VLLM_ALONE])
def test_a_recipe_that_can_be_built_passes_everywhere(
    lines: Mapping[str, str], pair_recipe: Path, machine: GpuMachine
) -> None:
    text = pair_recipe.read_text()
    for old, new in lines.items():
        text = text.replace(old, new)
    pair_recipe.write_text(text)
    ways = {way: ask for way, ask in WAYS.items() if "build" not in way or "dry" in way}
    assert {way: ask(pair_recipe) for way, ask in ways.items()} == dict.fromkeys(ways, (0, []))


def test_a_model_that_is_not_here_is_not_said_to_be_on_the_hub(
    write_recipe: Callable[[str], Path], without_network: None
) -> None:
    recipe = write_recipe(
        "name: x\ntarget: {model: nope/nope}\nspeculation: {method: ngram}\nhardware: {gpu: none}\n"
    )
    result = CliRunner().invoke(app, ["check", str(recipe)])
    assert result.exit_code == 1
    assert "the target nope/nope is not on this machine, and the Hub was not asked" in str(result.exception)
    assert "on the Hub" not in f"{result.output}{result.exception}"


def test_a_published_model_that_is_not_here_is_judged_by_its_sizes(
    tmp_path: Path, write_recipe: Callable[[str], Path], machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    recipe = write_recipe(
        "name: x\ntarget: {model: Qwen/Qwen3-32B}\nspeculation: {method: ngram, num_draft_tokens: 99}\n"
        "hardware: {gpu: h100}\n"
    )
    asked = {way: WAYS[way](recipe) for way in ("check", "plan", "build --dry-run", "trtspec.plan")}
    status, findings = asked["check"]
    assert (status, [subject for subject, *_ in findings]) == (1, ["speculation.num_draft_tokens"])
    assert asked == dict.fromkeys(asked, (status, findings))


def test_a_lacking_tool_does_not_hide_what_is_wrong_with_the_recipe(
    pair_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BROKEN["another_tokenizer_on_tensorrt"].write(pair_recipe)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TRTSPEC_OUTPUT", str(tmp_path / "build"))
    assert WAYS["build"](pair_recipe) == WAYS["check"](pair_recipe)
