"""An engine's own model, read back by Triton's message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import xgrammar
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from trtspec.pipeline.repository.spec import EngineModel, RepositorySpec
from trtspec.pipeline.repository.writer import config_text, engine_config_text, write_repository
from trtspec.pipeline.steps.write_repository import vocabulary_path, write_vocabularies
from trtspec.serving.tokenizer import Tokenizer

TINY = Path(__file__).parents[4] / "recipes" / "tiny" / "target"
PYTHON = EngineModel("tensorrt_llm", "python", "../../target/engine", 16)
NVIDIAS = EngineModel("tensorrt_llm", "tensorrtllm", "target/engine", 16, 5000, (0, 1))


def read(model: EngineModel) -> pb.ModelConfig:
    return text_format.Parse(engine_config_text(model), pb.ModelConfig())


def parameters(config: pb.ModelConfig) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def test_both_backends_have_the_same_tensors() -> None:
    ours, nvidias = read(PYTHON), read(NVIDIAS)

    assert (ours.backend, nvidias.backend) == ("python", "tensorrtllm")
    assert ours.input == nvidias.input
    assert ours.output == nvidias.output
    assert ours.max_batch_size == nvidias.max_batch_size == 16


def test_an_engine_of_torch_may_be_told_of_its_device() -> None:
    assert "device" not in parameters(read(PYTHON))
    assert parameters(read(replace(PYTHON, device="cpu")))["device"] == "cpu"


def test_an_engine_config_has_every_parameter_that_nvidias_backend_demands() -> None:
    """What it throws without, reads without a default, or must not be left to guess."""
    config = read(NVIDIAS)
    found = parameters(config)

    assert found["gpt_model_type"] == "inflight_fused_batching"
    assert found["gpt_model_path"] == "target/engine"
    assert {"tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"} <= found.keys()
    assert found["enable_kv_cache_reuse"] == "true"
    assert found["exclude_input_in_output"] == "false"
    assert (found["max_tokens_in_paged_kv_cache"], found["gpu_device_ids"]) == ("5000", "0,1")
    assert 0 < float(found["kv_cache_free_gpu_mem_fraction"]) < 1
    assert [tensor.name for tensor in config.input if not tensor.optional] == [
        "input_lengths",
        "request_output_len",
    ]


def test_single_numbers_have_the_batchs_shape_alone() -> None:
    shapes = {tensor.name: tensor for tensor in read(NVIDIAS).input}

    assert shapes["request_output_len"].HasField("reshape")
    assert not shapes["input_ids"].HasField("reshape")
    assert shapes["input_ids"].allow_ragged_batch
    assert list(shapes["stop_words_list"].dims) == [2, -1]


def test_the_target_follows_guides_by_its_tokenizer() -> None:
    """NVIDIA's backend needs all three keys, and both of the others together."""
    assert "guided_decoding_backend" not in parameters(read(PYTHON))
    ours = parameters(read(replace(PYTHON, tokenizer="../../tokenizer")))
    assert (ours["guided_decoding_backend"], ours["tokenizer_dir"]) == ("xgrammar", "../../tokenizer")

    keys = ("guided_decoding_backend", "xgrammar_tokenizer_info_path", "tokenizer_dir")
    none = parameters(read(NVIDIAS))
    assert [none[key] for key in keys] == ["", "", ""]
    guided = replace(NVIDIAS, tokenizer=vocabulary_path("tensorrt_llm"))
    nvidias = parameters(read(guided))
    path = "model_repository/tensorrt_llm/1/xgrammar_tokenizer_info.json"
    assert [nvidias[key] for key in keys] == ["xgrammar", path, ""]

    for engine, backend in ((NVIDIAS, None), (guided, "xgrammar")):
        found = parameters(
            text_format.Parse(config_text(RepositorySpec(engines=(engine,))), pb.ModelConfig())
        )
        assert found.get("guided_decoding_backend") == backend


def test_nvidias_backend_finds_the_vocabulary(tmp_path: Path) -> None:
    """The file has the keys that it reads, and xgrammar the bytes that the coordinator has."""
    guided = replace(NVIDIAS, tokenizer=vocabulary_path("tensorrt_llm"))
    spec = RepositorySpec(engines=(guided,))
    repository = tmp_path / "model_repository"
    write_repository(repository, spec)
    write_vocabularies(repository, spec, TINY)

    told = json.loads((tmp_path / vocabulary_path("tensorrt_llm")).read_text())
    tokenizer = Tokenizer.load(TINY)
    kind = xgrammar.TokenizerInfo._detect_metadata_from_hf(told["tokenizer_str"])
    tokens = xgrammar.TokenizerInfo(
        told["encoded_vocab"], kind["vocab_type"], stop_token_ids=told["stop_token_ids"]
    )
    assert told.keys() == {"encoded_vocab", "tokenizer_str", "stop_token_ids"}
    assert tokens.decoded_vocab == tokenizer.vocabulary(tokenizer.size)
    assert tokens.stop_token_ids == [tokenizer.end_ids[0]]


def test_an_engine_config_carries_the_attention_window_and_the_chunking_of_prompts() -> None:
    """NVIDIA's backend reads the window as a list of whole numbers with commas between them."""
    model = replace(NVIDIAS, enable_chunked_context=False, max_attention_window=4096)

    assert parameters(read(NVIDIAS))["enable_chunked_context"] == "true"
    assert "max_attention_window_size" not in parameters(read(NVIDIAS))
    assert parameters(read(model))["enable_chunked_context"] == "false"
    assert parameters(read(model))["max_attention_window_size"] == "4096"


def test_a_cache_without_a_neighbour_is_bounded_by_memory_alone() -> None:
    config = read(EngineModel("tensorrt_llm_draft", "tensorrtllm", "draft/engine", 16, None, (2,)))

    assert "max_tokens_in_paged_kv_cache" not in parameters(config)
    assert not config.model_transaction_policy.decoupled


def test_the_coordinator_is_told_who_has_the_engines(tmp_path: Path) -> None:
    draft = EngineModel("tensorrt_llm_draft", "python", "../../draft/engine", 16)
    spec = RepositorySpec(engines=(PYTHON, draft))
    found = parameters(text_format.Parse(config_text(spec), pb.ModelConfig()))
    write_repository(tmp_path, spec)

    assert found["engine_backend"] == "bls"
    assert found["tensorrt_llm_model_name"] == "tensorrt_llm"
    assert found["tensorrt_llm_draft_model_name"] == "tensorrt_llm_draft"
    for name in ("speculative_llm", "tensorrt_llm", "tensorrt_llm_draft"):
        assert (tmp_path / name / "1/trtspec/serving/executor.py").is_file()
        assert "TritonPythonModel" in (tmp_path / name / "1/model.py").read_text()
