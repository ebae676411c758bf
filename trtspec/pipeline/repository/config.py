"""`config.pbtxt` of the model in front, made from Triton's own protobuf message."""

from __future__ import annotations

from dataclasses import asdict

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from trtspec.pipeline.repository.spec import RepositorySpec
from trtspec.serving.triton.tensors import INPUTS, OUTPUTS


def model_config(spec: RepositorySpec) -> pb.ModelConfig:
    """Returns the config of the model that runs the coordinator, and in the in-process layout the engines.

    `max_batch_size` 1 gives each tensor the batch dimension that clients of NVIDIA's models send ([1, 1]),
    and lets Triton refuse more than one prompt in a request. The one instance serves all requests at once. If
    the engine drafts by itself, there is no input `num_draft_tokens`: clients see that they cannot ask for
    plain decoding, and a request with it is refused.
    """
    config = pb.ModelConfig(name=spec.model_name, backend="python", max_batch_size=1)
    config.model_transaction_policy.decoupled = True
    for tensor in INPUTS:
        if spec.inside and tensor.name == "num_draft_tokens":
            continue
        datatype = pb.DataType.Value(f"TYPE_{tensor.datatype.value}")
        dims = [-1 if tensor.is_list else 1]
        config.input.add(name=tensor.name, data_type=datatype, dims=dims, optional=True)
    for output in OUTPUTS:
        datatype = pb.DataType.Value(f"TYPE_{output.datatype.value}")
        config.output.add(name=output.name, data_type=datatype, dims=output.dims)
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    for key, value in _parameters(spec).items():
        config.parameters[key].string_value = value
    return config


def _parameters(spec: RepositorySpec) -> dict[str, str]:
    """Returns the parameters that `trtspec.serving.triton.engines` reads."""
    engines = spec.tensorrt_llm
    parameters = {
        "engine_backend": "bls" if spec.engines else "tensorrt_llm" if engines else "torch",
        "target_engine_dir": spec.target_engine_dir,
        "tokenizer_dir": spec.tokenizer_dir,
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


def config_text(spec: RepositorySpec) -> str:
    """Returns the text of `config.pbtxt`; it is the same for the same spec."""
    return text_format.MessageToString(model_config(spec), as_utf8=True)
