from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner, Result

from trtspec.backends.table import backend_named
from trtspec.base.roles import Role
from trtspec.base.units import GIB
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.cli.app import app
from trtspec.models.source import Source, read_source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import ModelFacts
from trtspec.pipeline.plan.memory import Budget, EngineMemory, engine_memory, fits_a_tensor
from trtspec.pipeline.plan.resolved import EnginePlan
from trtspec.serving.executors.torch import host


@pytest.fixture
def source(llama_folder: Callable[..., Path]) -> Source:
    """264 tokens, 2 layers of 32 numbers with 4 heads of 8, 2 of keys and values, an MLP of 80."""
    return read_source(llama_folder())


def engine(source: Source, checkpoint: ConvertOptions, drafts: int = 0) -> EnginePlan:
    options = BuildOptions(
        max_batch_size=16, max_input_len=99, max_seq_len=100, max_num_tokens=200, max_draft_len=drafts
    )
    return EnginePlan(
        ModelFacts("model", None, source), None, checkpoint, options, backend_named("tensorrt_llm")
    )


def test_keys_and_values_of_a_token(source: Source) -> None:
    def of(**options: object) -> int:
        return engine_memory(engine(source, ConvertOptions("bfloat16", **options))).kv_per_token  # type: ignore[arg-type]

    assert of() == 2 * 2 * 2 * 8 * 2
    assert of(fp8=True, fp8_kv_cache=True) == of() // 2
    assert of(mapping=Mapping(2, 1)) == of() // 2
    assert of(mapping=Mapping(4, 1)) == of() // 2  # two ranks have the same head
    assert of(mapping=Mapping(1, 2)) == of() // 2
    deeper = engine(replace(source, num_hidden_layers=3), ConvertOptions("bfloat16", mapping=Mapping(1, 2)))
    assert engine_memory(deeper).kv_per_token == of()  # the first of the two has two layers


def test_weights_are_those_of_the_largest_rank(source: Source) -> None:
    whole = engine_memory(engine(source, ConvertOptions("bfloat16"))).weights
    assert whole == 2 * source.parameters
    assert engine_memory(engine(source, ConvertOptions("float32"))).weights == 2 * whole
    linear = 2 * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 80)
    assert engine_memory(engine(source, ConvertOptions("bfloat16", fp8=True))).weights == whole - linear
    halves = engine_memory(engine(source, ConvertOptions("bfloat16", mapping=Mapping(2, 1)))).weights
    norms = 5 * 32 * 2
    assert halves == (whole - norms) // 2 + norms


def test_an_engine_works_with_more_memory_the_more_it_does_at_once(source: Source) -> None:
    plain = engine(source, ConvertOptions("bfloat16"))
    verifying = engine_memory(engine(source, ConvertOptions("bfloat16"), drafts=8)).workspace
    assert verifying - engine_memory(plain).workspace == 3 * 16 * 8 * 264 * 4
    wider = replace(plain, options=replace(plain.options, max_num_tokens=300))
    assert engine_memory(wider).workspace - engine_memory(plain).workspace == 100 * 3 * (32 + 80) * 2


def test_the_widest_tensor_has_as_many_numbers_as_tensorrt_counts(source: Source) -> None:
    whole, halves = (
        engine(source, ConvertOptions("bfloat16", mapping=Mapping(ranks, 1))) for ranks in (1, 2)
    )
    most = 2**31 // (2 * 80)
    assert fits_a_tensor(whole, most)
    assert not fits_a_tensor(whole, most + 1)
    assert fits_a_tensor(halves, 2 * most)


def budget(total: int, weights: int, per_token: int, length: int = 1000) -> Budget:
    one = EngineMemory(weights=weights, workspace=GIB, kv_per_token=per_token)
    return Budget(
        "NVIDIA H100", total, dict.fromkeys(Role, one), tokens_per_request=length, max_batch_size=16
    )


def test_the_memory_that_the_engines_leave_is_for_keys_and_values() -> None:
    found = budget(80 * GIB, 34 * GIB, GIB // 2000)
    assert found.left == 9 * GIB
    assert (found.tokens, found.requests) == (9 * GIB // (2 * (GIB // 2000)), 9)
    assert found.problem is None


def test_the_memory_budget_reports_engines_or_requests_that_do_not_fit() -> None:
    problem = budget(80 * GIB, 41 * GIB, 1000).problem
    assert problem == "the engines need 84.0 GiB of a GPU, but NVIDIA H100 has 80.0 GiB"
    assert (budget(80 * GIB, 41 * GIB, 1000).tokens, budget(80 * GIB, 39 * GIB, 1000).requests) == (0, 0)
    problem = budget(80 * GIB, 38 * GIB, GIB // 1000, length=2000).problem
    assert problem == "the KV cache holds 900 tokens, less than one request of 2000"


class TestCommand:
    RECIPE: ClassVar = {"name": "x", "target": "{model: ./model}", "draft": "{model: ./model}"}

    def plan(self, folder: Path, *more: str, **keys: str) -> Result:
        lines = [f"{key}: {value}" for key, value in (self.RECIPE | keys).items()]
        (folder / "recipe.yaml").write_text("\n".join(lines))
        return CliRunner().invoke(app, ["plan", "-v", str(folder / "recipe.yaml"), *more])

    def test_a_recipe_that_does_not_fit_is_warned_of(self, source: Source, tmp_path: Path) -> None:
        many = "{max_batch_size: 4000000}"
        result = self.plan(tmp_path, engine=many, hardware="{gpu: l4}")
        assert result.exit_code == 0
        assert "warning: the engines need" in result.stderr
        assert "NVIDIA L4 has 22.5" in result.stderr
        memory = json.loads(self.plan(tmp_path, "--json", engine=many, hardware="{gpu: l4}").stdout)["memory"]
        assert memory["problem"] in result.stderr
        assert memory["tokens"] == 0

    def test_one_that_fits_is_not(self, source: Source, tmp_path: Path) -> None:
        result = self.plan(tmp_path, hardware="{gpu: l4}")
        assert "warning" not in result.stderr
        assert "memory     22.5 GiB" in result.stdout

    def test_a_draft_on_the_cpu_takes_none_of_it(
        self, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its memory and its threads are the host's, of which one drives the GPU."""
        monkeypatch.setattr(host, "look", lambda: host.ProcessShare(8, None, 4 * GIB))
        sizes = {"hardware": "{gpu: l4}", "engine": "{max_batch_size: 4, max_seq_len: 100}"}
        shared = json.loads(self.plan(tmp_path, "--json", **sizes).stdout)
        assert shared["host_memory"] is None
        sizes["draft"] = "{model: ./model, device: cpu}"
        plan = json.loads(self.plan(tmp_path, "--json", **sizes).stdout)
        memory, on_host = plan["memory"], plan["host_memory"]
        assert memory["target"] == shared["memory"]["target"]
        assert "draft" not in memory
        assert memory["tokens"] == memory["left"] // memory["target"]["kv_per_token"]
        assert (on_host["roles"], on_host["weights"]) == (["draft"], 2 * source.parameters)
        assert (on_host["tokens"], on_host["threads"]) == (2 * 4 * 100, 7)

        printed = " ".join(self.plan(tmp_path, **sizes).stdout.split())
        assert " 0.0 GiB" not in printed
        assert re.search(
            r"memory 4.0 GiB free on this machine, for its CPU weights [\d.]+ [MK]iB of the draft", printed
        )
        assert "minus 1 for the threads that drive the GPU" in printed
        monkeypatch.setattr(host, "look", lambda: host.ProcessShare(8, None, 1000))
        said = self.plan(tmp_path, **sizes).stderr
        assert "warning: the KV cache holds 0 tokens, less than one sequence of 100" in said
