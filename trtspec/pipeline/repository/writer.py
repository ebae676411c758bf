"""Writes a Triton model repository, which can be served where trtspec is not installed."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

import trtspec.serving
from trtspec.backends.backend import PYTHON
from trtspec.backends.table import backend_named
from trtspec.base.tree import copy_tree
from trtspec.pipeline.repository.engine_config import engine_config_text, text_of
from trtspec.pipeline.repository.spec import RepositorySpec
from trtspec.serving.triton.tensors import INPUTS, OUTPUTS

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
        if backend_named(engine.backend).triton_backend == PYTHON:
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
