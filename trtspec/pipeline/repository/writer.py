"""Writes a Triton model repository, which can be served where trtspec is not installed.

An engine that is a model of its own has a `config.pbtxt` with the parameters that NVIDIA's C++ backend
reads (`inflight_batcher_llm/src/model_instance_state.cc` and `model_state.cc`), written out where its
default does not fit or depends on the release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

import trtspec.serving
from trtspec.backends.backend import PYTHON
from trtspec.base.files import copy_tree
from trtspec.pipeline.repository.spec import EngineModel, RepositorySpec
from trtspec.serving.triton.tensors import ENGINE_INPUTS, ENGINE_OUTPUTS, INPUTS, OUTPUTS, OutputTensor

_KV_FRACTION = "0.9"
_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"


def engine_config_text(model: EngineModel) -> str:
    """Returns the `config.pbtxt` of a Triton model that takes token ids and returns token ids.

    No request waits for others to form a batch with, since the engine takes in new ones at every step. The
    model is not decoupled: see `trtspec.serving.executors.bls_executor`.
    """
    backend = model.triton_backend
    config = pb.ModelConfig(name=model.name, backend=backend, max_batch_size=model.max_batch_size)
    config.model_transaction_policy.decoupled = False
    config.dynamic_batching.preferred_batch_size.append(model.max_batch_size)
    for tensor in ENGINE_INPUTS:
        added = config.input.add(
            name=tensor.name,
            data_type=pb.DataType.Value(f"TYPE_{tensor.datatype.value}"),
            dims=tensor.dims or [1],
            allow_ragged_batch=tensor.is_ragged,
            optional=not tensor.is_required,
        )
        if tensor.dims is None:
            added.reshape.SetInParent()
    parameters = _common(model)
    if backend == "tensorrtllm":
        parameters |= _tensorrtllm(model)
    else:
        if model.device is not None:
            parameters["device"] = model.device
        if model.tokenizer is not None:
            parameters |= {"guided_decoding_backend": "xgrammar", "tokenizer_dir": model.tokenizer}
    return text_of(config, ENGINE_OUTPUTS, parameters)


def text_of(config: pb.ModelConfig, outputs: Iterable[OutputTensor], parameters: Mapping[str, str]) -> str:
    """Returns a model's `config.pbtxt`, with its outputs and parameters; it is the same for the same model.

    One instance serves all requests at once.
    """
    for output in outputs:
        data_type = pb.DataType.Value(f"TYPE_{output.datatype.value}")
        config.output.add(name=output.name, data_type=data_type, dims=output.dims)
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return text_format.MessageToString(config, as_utf8=True)


def _common(model: EngineModel) -> dict[str, str]:
    """Returns the parameters of both backends.

    The output begins with the prompt, unless a request says otherwise; NVIDIA's BLS coordinator expects that.
    """
    return {
        "gpt_model_path": model.engine_dir,
        "exclude_input_in_output": "false",
        "cancellation_check_period_ms": "100",
    }


def _tensorrtllm(model: EngineModel) -> dict[str, str]:
    """Returns the parameters of the C++ backend alone.

    A KV cache gets the smaller of `max_tokens_in_paged_kv_cache` and a fraction of the memory that is free
    when it is made. Triton loads models at the same time, so fractions alone would depend on the order; the
    numbers of tokens leave room for the other engine, whichever comes first.

    The last three are read without a default, so they must be there; `tokenizer_dir` has no effect in C++
    (`getGuidedDecodingConfigFromParams`), and an engine that follows no guides has nothing in the others. The
    KV cache gets no host memory: blocks that came back from there were mixed up (TensorRT-LLM #8274, #8813).
    """
    parameters = {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "gpt_model_type": "inflight_fused_batching",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "max_beam_width": "1",
        "enable_kv_cache_reuse": "true",
        "enable_chunked_context": str(model.enable_chunked_context).lower(),
        "kv_cache_free_gpu_mem_fraction": _KV_FRACTION,
        "kv_cache_host_memory_bytes": "0",
        "gpu_device_ids": ",".join(map(str, model.gpu_device_ids)),
        "executor_worker_path": _WORKER,
        "tokenizer_dir": "",
        "guided_decoding_backend": "" if model.tokenizer is None else "xgrammar",
        "xgrammar_tokenizer_info_path": model.tokenizer or "",
    }
    if model.kv_tokens is not None:
        parameters["max_tokens_in_paged_kv_cache"] = str(model.kv_tokens)
    if model.max_attention_window is not None:
        parameters["max_attention_window_size"] = str(model.max_attention_window)
    return {**parameters, **model.inside}


VERSION = "1"


def config_text(spec: RepositorySpec) -> str:
    """Returns the `config.pbtxt` of the coordinator's model, which in the in-process layout has the engines.

    `max_batch_size` 1 gives each tensor the batch dimension that clients of NVIDIA's models send ([1, 1]),
    and lets Triton refuse more than one prompt in a request. If the engine drafts by itself, there is no
    input `num_draft_tokens`: clients see that they cannot ask for plain decoding, and a request with it is
    refused.
    """
    config = pb.ModelConfig(name=spec.model_name, backend="python", max_batch_size=1)
    config.model_transaction_policy.decoupled = True
    for tensor in INPUTS:
        if spec.inside and tensor.name == "num_draft_tokens":
            continue
        datatype = pb.DataType.Value(f"TYPE_{tensor.datatype.value}")
        dims = [-1 if tensor.is_list else 1]
        config.input.add(name=tensor.name, data_type=datatype, dims=dims, optional=True)
    return text_of(config, OUTPUTS, _parameters(spec))


def _parameters(spec: RepositorySpec) -> dict[str, str]:
    """Returns the parameters that `trtspec.serving.triton.engines` reads."""
    engines = spec.tensorrt_llm
    parameters = {
        "engine_backend": "bls" if spec.engines else "tensorrt_llm" if engines else "torch",
        "target_engine_dir": "../../target/engine",
        "tokenizer_dir": "../../tokenizer",
    }
    if spec.draft_engine_dir is not None:
        parameters["draft_engine_dir"] = spec.draft_engine_dir
    if spec.draft_tokenizer_dir is not None:
        parameters["draft_tokenizer_dir"] = spec.draft_tokenizer_dir
    if spec.draft_device is not None:
        parameters["draft_device"] = spec.draft_device
    if spec.num_draft_tokens is not None:
        parameters["num_draft_tokens"] = str(spec.num_draft_tokens)
    if spec.policy != "fixed":
        parameters["draft_policy"] = spec.policy
    if spec.share < 1:
        parameters["speculation_share"] = str(spec.share)
    if spec.drafting is not None:
        parameters["draft_method"] = spec.drafting.kind
        parameters |= {f"draft_method.{name}": str(value) for name, value in spec.drafting.options.items()}
    if spec.admission is not None:
        known = asdict(spec.admission).items()
        parameters |= {name: str(value) for name, value in known if value is not None}
    if spec.engines:
        names = ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name")
        parameters |= dict(zip(names, (engine.name for engine in spec.engines), strict=False))
        if spec.engines[0].tokenizer is not None:
            parameters["guided_decoding_backend"] = "xgrammar"
    elif engines:
        parameters |= {
            "image": engines.image,
            "kv_cache_free_gpu_mem_fraction": str(engines.kv_cache_free_gpu_mem_fraction),
        }
        for role, enabled in engines.enable_chunked_context.items():
            (gpu,) = engines.placement.of(role)
            parameters[f"{role}_gpu_device_id"] = str(gpu)
            parameters[f"{role}_enable_chunked_context"] = str(enabled).lower()
        parameters |= spec.inside
    return parameters


def write_repository(destination: Path, spec: RepositorySpec) -> None:
    """Writes `<destination>/<model>/{config.pbtxt,1/}` for each model.

    Models of the Python backend have `model.py` and `trtspec/serving/…` in `1/`. NVIDIA's C++ backend needs
    only the folder, which gets a file, since some stores lose empty folders. `destination` must not exist or
    must be empty; a model that is there already raises FileExistsError. The repository is not written
    atomically; a caller that needs that must arrange it. The same spec gives the same bytes.
    """
    version = _write_config(destination / spec.model_name, config_text(spec))
    _write_code(version, "triton_model.py")
    for engine in spec.engines:
        version = _write_config(destination / engine.name, engine_config_text(engine))
        if engine.triton_backend == PYTHON:
            _write_code(version, "triton_engine_model.py")
        else:
            (version / ".keep").touch()


def _write_config(model: Path, text: str) -> Path:
    version = model / VERSION
    version.mkdir(parents=True)
    (model / "config.pbtxt").write_text(text, encoding="utf-8")
    return version


def _write_code(version: Path, edge: str) -> None:
    """Writes `model.py`, and a copy of `trtspec.serving` beside it.

    The copy is a regular package, which Python prefers to the parts of an installed trtspec.
    """
    (version / "model.py").write_bytes((files("trtspec.pipeline.repository") / edge).read_bytes())
    source, package = Path(trtspec.serving.__path__[0]), version / "trtspec"
    copy_tree(source, package / "serving", "__pycache__", "*.pyc")
    (package / "__init__.py").touch()
