"""`config.pbtxt` of an engine that is a model of its own, for either backend.

The parameters are those that NVIDIA's C++ backend reads (`inflight_batcher_llm/src/model_instance_state.cc`
and `model_state.cc`), written out where its default does not fit or depends on the release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from trtspec.backends.table import backend_named
from trtspec.pipeline.repository.spec import EngineModel
from trtspec.serving.triton.tensors import ENGINE_INPUTS, ENGINE_OUTPUTS, OutputTensor

_KV_FRACTION = "0.9"
_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"


def engine_config_text(model: EngineModel) -> str:
    """Returns the `config.pbtxt` of a Triton model that takes token ids and returns token ids.

    No request waits for others to form a batch with, since the engine takes in new ones at every step. The
    model is not decoupled: see `trtspec.serving.executors.bls.bls_executor`.
    """
    backend = backend_named(model.backend).triton_backend
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
