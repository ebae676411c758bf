"""What people arrive with is read whole, or ends with status 1 and says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.recipe.migration.commands_made_up import MADE
from tests.unit.recipe.migration.commands_of_others import VERBATIM, Case
from trtspec.backends.table import backend_named, load
from trtspec.base.errors import TrtspecError
from trtspec.cli.app import app
from trtspec.methods.table import METHODS

SPECULATOR = {
    "speculators_model_type": "eagle3",
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"]},
    },
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a draft of Speculators in it, which stands for the one of the Hub."""
    monkeypatch.chdir(tmp_path)
    folder = Path("RedHatAI/Qwen3-8B-speculator.eagle3")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SPECULATOR))
    return tmp_path


def is_expressible(case: Case) -> bool:
    method = METHODS.get(case.method)
    if method is None or (case.draft and not method.has_model):
        return False
    cell = backend_named(case.backend).refusal(case.method, None)
    return cell is None and (case.option is None or case.option[0] in method.model_fields)


@pytest.mark.parametrize("case", [*VERBATIM, *MADE], ids=lambda case: case.kind)
def test_no_speculation_is_lost_without_a_word(case: Case) -> None:
    result = CliRunner().invoke(app, ["init", "--from", "-"], case.command)
    if not is_expressible(case):
        assert isinstance(result.exception, TrtspecError)
        assert "would not be in the recipe" in result.exception.problem
        assert not Path("recipe.yaml").exists()
        rest = CliRunner().invoke(app, ["init", "--from", "-", "--allow-loss"], case.command)
        assert rest.exit_code == 0, rest.exception
        assert load(Path("recipe.yaml")).recipe.target.model == case.target
        return
    assert result.exit_code == 0, result.exception
    recipe = load(Path("recipe.yaml")).recipe
    assert (recipe.backend, recipe.target.model) == (case.backend, case.target)
    assert recipe.speculation.method.kind == case.method
    assert (recipe.draft.model if recipe.draft else None) == case.draft
    assert recipe.speculation.max_draft_len == case.longest
    words = recipe.engine.extra_args
    assert tuple(words[len(words) - len(case.passed) :]) == case.passed
    if case.option:
        name, value = case.option
        assert getattr(recipe.speculation.method, name) == value


def test_the_table_has_what_it_should() -> None:
    assert len({case.source for case in VERBATIM}) >= 15
    assert len({case.kind for case in (*VERBATIM, *MADE)}) == len(VERBATIM) + len(MADE) >= 25


def test_words_in_an_array_that_no_line_fills_are_asked_for() -> None:
    command = 'vllm serve org/big "${ARGS[@]}"'
    result = CliRunner().invoke(app, ["init", "--from", "-"], command)
    assert "is an array of a shell" in str(result.exception)


@pytest.mark.usefixtures("without_network")
def test_a_draft_of_speculators_that_cannot_be_read_is_asked_for() -> None:
    result = CliRunner().invoke(app, ["init", "--from", "vllm serve RedHatAI/Other-speculator.eagle3"])
    assert isinstance(result.exception, TrtspecError)
    target = "vllm serve TARGET --spec-model RedHatAI/Other-speculator.eagle3"
    assert result.exception.repair == f"name its target: {target}"


def test_another_backend_loses_no_head_without_a_word() -> None:
    command = "vllm serve org/big --spec-method eagle3 --spec-model org/head --spec-tokens 3"
    result = CliRunner().invoke(app, ["init", "--from", command, "--backend", "tensorrt_llm"])
    assert "would not be in the recipe" in str(result.exception)
