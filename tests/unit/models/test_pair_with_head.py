from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.heads import TARGET, write_head, written
from trtspec.base.findings import Finding, Severity
from trtspec.models.heads.reading import read_head
from trtspec.models.pair import check_head
from trtspec.models.source import Source, read_source


@pytest.fixture
def target(llama_folder: Callable[..., Path]) -> Callable[..., Source]:
    """Makes a target that heads of `tests/data/heads` fit; keywords change it."""
    return lambda **config: read_source(llama_folder("target", **TARGET | config))


def found(folder: Path, target: Source) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_head(read_head(folder), target)}


@pytest.mark.parametrize(
    "name", ["speculators", "speculators_qwen3", "specforge", "eagle3", "eagle", "medusa"]
)
def test_a_head_that_fits(tmp_path: Path, target: Callable[..., Source], name: str) -> None:
    assert found(write_head(tmp_path / "head", name), target()) == {}


@pytest.mark.parametrize("name", ["speculators", "eagle", "medusa"])
def test_a_target_of_other_sizes(tmp_path: Path, target: Callable[..., Source], name: str) -> None:
    findings = found(write_head(tmp_path / "head", name), target(hidden_size=32, vocab_size=40))
    assert (
        findings["hidden size"].problem == "the head reads states of width 16, but the target's have width 32"
    )
    assert (
        findings["vocabulary"].problem == "the head was made for a target with 24 tokens, but this one has 40"
    )
    for finding in findings.values():
        assert finding.severity is Severity.ERROR
        assert finding.effect
        assert finding.repair


def test_an_embedding_that_the_target_must_lend(tmp_path: Path, target: Callable[..., Source]) -> None:
    """SpecForge's exporter leaves the embedding out, and a head may be less wide than its target."""
    folder = write_head(tmp_path / "head", "specforge", target_hidden_size=32)
    file = folder / "model.safetensors"
    save_file({**load_file(file), "fc.weight": torch.zeros(16, 96)}, file)
    assert (
        "needs width 16, but the target's has width 32"
        in found(folder, target(hidden_size=32))["embedding"].problem
    )


def mapped(folder: Path, **tensors: torch.Tensor) -> Path:
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file)
    return folder


def test_a_mapping_beyond_the_vocabulary(tmp_path: Path, target: Callable[..., Source]) -> None:
    d2t = torch.zeros(12, dtype=torch.int64)
    d2t[5] = 19
    findings = found(mapped(write_head(tmp_path / "head", "speculators"), d2t=d2t), target())
    assert findings["d2t"].severity is Severity.ERROR
    assert findings["d2t"].problem == "token 5 of the head maps to 24, but the target has 24 tokens"


def test_mappings_that_contradict_each_other(tmp_path: Path, target: Callable[..., Source]) -> None:
    d2t = torch.zeros(12, dtype=torch.int64)
    d2t[5] = 1
    findings = found(mapped(write_head(tmp_path / "head", "speculators"), d2t=d2t), target())
    assert findings["d2t"].problem == "1 tokens of the target occur twice"
    assert findings["t2d"].severity is Severity.NOTE


@pytest.mark.parametrize("layers", [[1, 2, 9], [1, 1, 2]])
def test_states_that_the_target_lacks(
    tmp_path: Path, target: Callable[..., Source], layers: list[int]
) -> None:
    folder = write_head(tmp_path / "head", "speculators", eagle_aux_hidden_state_layer_ids=layers)
    finding = found(folder, target())["auxiliary layers"]
    assert finding.severity is Severity.ERROR
    assert f"after layers {', '.join(map(str, layers))}, but the target has 8 layers" in finding.problem


def test_default_layers_want_a_target_deep_enough(tmp_path: Path, target: Callable[..., Source]) -> None:
    folder = write_head(tmp_path / "head", "specforge", eagle_config=None)
    finding = found(folder, target(num_hidden_layers=4))["auxiliary layers"]
    assert "names none" in finding.problem
    assert finding.repair == "name eagle_aux_hidden_state_layer_ids in config.json"


def test_notes(tmp_path: Path, target: Callable[..., Source]) -> None:
    section = written("speculators")["config"]["speculators_config"]
    other = section | {"verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "architectures": []}}
    model = target(dtype=torch.bfloat16)
    findings = found(write_head(tmp_path / "head", "speculators", speculators_config=other), model)
    assert findings["verifier"].problem == (
        "the head was trained for meta-llama/Llama-3.1-8B-Instruct, the target's folder is target"
    )
    assert findings["dtype"].problem == "the head is stored in float32, the target in bfloat16"
    unnamed = section | {"verifier": {"name_or_path": None, "architectures": []}}
    folder = write_head(tmp_path / "unnamed", "speculators", speculators_config=unnamed)
    assert found(folder, model)["verifier"].problem == "the head names no target"
    assert {finding.severity for finding in findings.values()} == {Severity.NOTE}
