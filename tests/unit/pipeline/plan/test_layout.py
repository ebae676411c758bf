"""Which Triton models a build has, by recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.fakes.gpu_machine import H200, GpuMachine
from tests.support.command_line import trtspec
from trtspec.base.progress import no_progress
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.repository.spec import RepositorySpec
from trtspec.pipeline.run.runner import run
from trtspec.pipeline.steps.write_repository import repository_spec

ON_GPUS = {"engine: {backend: torch}": "engine: {}", "float32": "float16"}


def spec(recipe: Path, changes: dict[str, str]) -> RepositorySpec:
    text = recipe.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    recipe.write_text(text)
    return repository_spec(make_plan(recipe).resolved)


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, "in_process"),
        ({**ON_GPUS, "gpu: none": "gpu: h200"}, "in_process"),
        ({"./target": "./target, parallel: {tensor: 2}"}, "bls"),
        (
            {**ON_GPUS, "gpu: none": "gpu: h200, count: 2", "./target": "./target, parallel: {tensor: 2}"},
            "bls",
        ),
        ({"hardware": "serving: {layout: bls}\nhardware"}, "bls"),
    ],
)
def test_engines_of_several_ranks_are_models_of_their_own(
    pair_recipe: Path, changes: dict[str, str], layout: str
) -> None:
    names = [engine.name for engine in spec(pair_recipe, changes).engines]
    assert names == ([] if layout == "in_process" else ["tensorrt_llm", "tensorrt_llm_draft"])


def test_python_models_find_their_engines_from_their_own_folder(pair_recipe: Path) -> None:
    engines = spec(pair_recipe, {"hardware": "serving: {layout: bls}\nhardware"}).engines
    assert [engine.engine_dir for engine in engines] == ["../../target/engine", "../../draft/engine"]
    assert {engine.kv_tokens for engine in engines} == {None}


@pytest.mark.parametrize(("count", "shared"), [(2, True), (3, False)])
def test_kv_caches_on_one_gpu_have_a_number_of_tokens_each(
    pair_recipe: Path, count: int, shared: bool
) -> None:
    """Fractions of what is free alone would depend on which engine is loaded first."""
    changes = {"gpu: none": f"gpu: h200, count: {count}", "./target": "./target, parallel: {tensor: 2}"}
    target, draft = spec(pair_recipe, ON_GPUS | changes).engines
    assert (target.gpu_device_ids, draft.gpu_device_ids) == ((0, 1), (0,) if shared else (2,))
    assert (target.kv_tokens is None) is not shared
    assert target.kv_tokens == draft.kv_tokens
    assert [target.engine_dir, draft.engine_dir] == ["target/engine", "draft/engine"]


@pytest.mark.parametrize(("window", "told"), [(None, None), (64, 64), (263, 263), (264, None), (4096, None)])
def test_a_planned_engine_has_a_sliding_window_only_if_a_text_can_outgrow_it(
    pair_recipe: Path, window: int | None, told: int | None
) -> None:
    """As in process; a text and its longest draft have 264 tokens."""
    file = pair_recipe.parent / "target/config.json"
    kind = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    file.write_text(json.dumps(json.loads(file.read_text()) | kind))
    changes = {**ON_GPUS, "engine: {backend: torch}": "engine: {max_seq_len: 256}", "gpu: none": "gpu: h200"}
    target, draft = spec(pair_recipe, changes | {"hardware": "serving: {layout: bls}\nhardware"}).engines
    assert (target.max_attention_window, draft.max_attention_window) == (told, None)


def test_chunked_context_is_for_texts_that_outgrow_an_iteration(h200_recipe: Path) -> None:
    """In both layouts, and for the target alone: the draft has no drafts to lose."""
    sizes = {"release: 1.2.1": "max_seq_len: 200, max_batch_size: 1, max_num_tokens: 64"}
    in_process = spec(h200_recipe, sizes).tensorrt_llm
    assert in_process
    assert in_process.enable_chunked_context[Role.TARGET]
    in_process = spec(h200_recipe, {"max_num_tokens: 64": "max_num_tokens: 208"}).tensorrt_llm
    assert in_process
    assert in_process.enable_chunked_context == {Role.TARGET: False, Role.DRAFT: True}
    target, draft = spec(h200_recipe, {"hardware": "serving: {layout: bls}\nhardware"}).engines
    assert (target.enable_chunked_context, draft.enable_chunked_context) == (False, True)


@pytest.mark.parametrize("layout", ["in_process", "bls"])
def test_a_draft_on_the_cpu_is_run_by_torch(h200_recipe: Path, layout: str) -> None:
    changes = {"dtype: float16": "device: cpu", "hardware": f"serving: {{layout: {layout}}}\nhardware"}
    made = spec(h200_recipe, changes)
    if layout == "in_process":
        assert made.tensorrt_llm
        assert made.tensorrt_llm.enable_chunked_context.keys() == {Role.TARGET}
        assert (made.draft_device, made.engines) == ("cpu", ())
        return
    target, draft = made.engines
    assert (target.triton_backend, target.engine_dir, target.gpu_device_ids) == (
        "tensorrtllm",
        "target/engine",
        (0,),
    )
    assert (draft.triton_backend, draft.engine_dir, draft.device) == ("python", "../../draft/engine", "cpu")
    assert made.draft_device is None
    assert made.admission
    assert made.admission.kv_tokens is None


@pytest.mark.parametrize("layout", ["in_process", "bls"])
@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_torch_runs_a_draft_where_the_recipe_says(pair_recipe: Path, layout: str, device: str) -> None:
    text = f"serving: {{layout: {layout}}}\nhardware"
    changes = {"hardware": text, "gpu: none": "gpu: h200, count: 2", "./draft": f"./draft, device: {device}"}
    made = spec(pair_recipe, changes)
    devices = [engine.device for engine in made.engines]
    assert (made.draft_device, devices) == (
        (device, []) if layout == "in_process" else (None, [None, device])
    )


@pytest.mark.parametrize("layout", ["in_process", "bls"])
def test_a_draft_on_a_gpu_of_the_recipes_choice(h200_recipe: Path, layout: str) -> None:
    changes = {
        "dtype: float16": "device: cuda:3",
        "gpu: h200": "gpu: h200, count: 4",
        "hardware": f"serving: {{layout: {layout}}}\nhardware",
    }
    made = spec(h200_recipe, changes)
    assert made.draft_device is None
    if layout == "bls":
        assert [engine.gpu_device_ids for engine in made.engines] == [(0,), (3,)]
    else:
        assert made.tensorrt_llm
        assert made.tensorrt_llm.placement.of(Role.DRAFT) == (3,)


def test_a_parallel_pair_is_built_for_nvidias_backend(pair_recipe: Path, tmp_path: Path) -> None:
    spec(
        pair_recipe,
        {**ON_GPUS, "gpu: none": "gpu: h200, count: 2", "./target": "./target, parallel: {tensor: 2}"},
    )
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H200, H200)
    machine.tensorrt_llm()
    result = trtspec("build", pair_recipe, "--output", tmp_path / "out", environment=machine.environment)
    assert result.returncode == 0, result.stderr

    repository = tmp_path / "out/model_repository"
    assert {folder.name for folder in repository.iterdir()} == {
        "speculative_llm",
        "tensorrt_llm",
        "tensorrt_llm_draft",
    }
    for name, role in (("tensorrt_llm", "target"), ("tensorrt_llm_draft", "draft")):
        config = text_format.Parse((repository / name / "config.pbtxt").read_text(), pb.ModelConfig())
        assert config.backend == "tensorrtllm"
        vocabulary = config.parameters["xgrammar_tokenizer_info_path"].string_value
        assert bool(vocabulary) == (role == "target")
        there = {repository / name / "1/.keep", *([tmp_path / "out" / vocabulary] if vocabulary else [])}
        assert set((repository / name / "1").iterdir()) == there
        engine = tmp_path / "out" / config.parameters["gpt_model_path"].string_value
        built = json.loads((engine / "config.json").read_text())["build_config"]
        assert config.max_batch_size == built["max_batch_size"]
        assert (built["max_draft_len"] > 0) == (role == "target")


def test_a_recipe_without_a_draft_model_reaches_its_repository(
    pair_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one has whose drafts come from elsewhere; the schema's only method refuses it."""
    alone = "\n".join(line for line in pair_recipe.read_text().splitlines() if "draft" not in line)
    pair_recipe.write_text(alone)
    monkeypatch.setattr("trtspec.backends.table.contradictions", lambda *_, **__: [])

    made = make_plan(pair_recipe, output=pair_recipe.parent / "out", to_run=True)
    run(made.steps, made.output, made.digests, no_progress)

    assert [step.role for step in made.steps if step.role] == [Role.TARGET] * 3
    assert not (made.output / "draft").exists()
    config = (made.output / "model_repository/speculative_llm/config.pbtxt").read_text()
    assert "target_engine_dir" in config
    assert "draft_engine_dir" not in config
