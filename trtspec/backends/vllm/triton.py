"""vLLM as a model of Triton's vLLM backend: a model repository with the engine's arguments; pure.

The backend makes `AsyncEngineArgs` of `model.json`. It would add what `config.pbtxt` lacks, but `deploy` has
the server complete no configuration, so all of it is written here (vllm_backend 8de0c14, `src/model.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from trtspec.backends.launch import ServerLaunch
from trtspec.base.progress import Advance
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import write_repository
from trtspec.recipe.schema import triton_name

IMAGE = "nvcr.io/nvidia/tritonserver:26.08-vllm-python-py3"
"""Triton's newest image with this backend (server, `docs/introduction/compatibility.md`).

Its vLLM is 0.27.1, which is not the recipe's `engine.release`.
"""

# Name, type, number of values, and whether a request must have it.
_INPUTS = (
    ("text_input", "STRING", 1, True),
    ("stream", "BOOL", 1, False),
    ("sampling_parameters", "STRING", 1, False),
    ("exclude_input_in_output", "BOOL", 1, False),
    ("return_finish_reason", "BOOL", 1, False),
    ("return_cumulative_logprob", "BOOL", 1, False),
    ("return_logprobs", "BOOL", 1, False),
    ("return_num_input_tokens", "BOOL", 1, False),
    ("return_num_output_tokens", "BOOL", 1, False),
    ("image", "STRING", -1, False),
    # Of Triton's own OpenAI front end alone.
    ("embedding_request", "STRING", 1, False),
)
_OUTPUTS = (
    ("text_output", "STRING", -1),
    ("finish_reason", "STRING", -1),
    ("cumulative_logprob", "FP32", -1),
    ("logprobs", "STRING", -1),
    ("num_input_tokens", "UINT32", 1),
    ("num_output_tokens", "UINT32", -1),
)
# Options of the server alone, which the engine has no arguments for.
_SERVERS = frozenset({"served_model_name"})


def write_repository_step(launch: ServerLaunch) -> Step:
    """Returns the step that writes the model repository."""
    made = files(launch)
    return Step(
        kind=write_repository.KIND,
        summary=f"the Triton model {triton_name(launch.served_model_name)} of the vLLM backend",
        inputs=launch.models,
        output=write_repository.OUTPUT,
        command=(),
        made_of=made,
        action=partial(_write, made),
    )


def _write(files: Mapping[str, str], output: Path, _: Advance) -> None:
    for name, text in files.items():
        file = output / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def files(launch: ServerLaunch) -> dict[str, str]:
    """Returns the files of the repository by their paths in it."""
    name = triton_name(launch.served_model_name)
    return {
        f"{name}/config.pbtxt": text_format.MessageToString(model_config(name), as_utf8=True),
        f"{name}/1/model.json": json.dumps(engine_arguments(launch), indent=2) + "\n",
    }


def model_config(name: str) -> pb.ModelConfig:
    """Returns the configuration of the model, with vLLM's metrics among Triton's."""
    config = pb.ModelConfig(name=name, backend="vllm", max_batch_size=0)
    config.model_transaction_policy.decoupled = True
    for input_name, datatype, length, is_needed in _INPUTS:
        kind = pb.DataType.Value(f"TYPE_{datatype}")
        config.input.add(name=input_name, data_type=kind, dims=[length], optional=not is_needed)
    for output_name, datatype, length in _OUTPUTS:
        config.output.add(name=output_name, data_type=pb.DataType.Value(f"TYPE_{datatype}"), dims=[length])
    # The engine chooses its devices itself.
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_MODEL)
    config.parameters["REPORT_CUSTOM_METRICS"].string_value = "true"
    return config


def engine_arguments(launch: ServerLaunch) -> dict[str, Any]:
    """Returns the server's options as fields of `AsyncEngineArgs`.

    The first argument is the model. An option without a value is a switch, and `--no-` before its name turns
    it off. A value is JSON where it can be read as such: a number, or an object.
    """
    model, *options = launch.arguments
    found: dict[str, Any] = {"model": model}
    for option, value in pairwise([*options, "--"]):
        if not option.startswith("--"):
            continue
        name = option.removeprefix("--").replace("-", "_")
        if not value.startswith("--"):
            found[name] = value
            with suppress(ValueError):
                found[name] = json.loads(value)
        elif name.startswith("no_"):
            found[name.removeprefix("no_")] = False
        else:
            found[name] = True
    return {name: value for name, value in found.items() if name not in _SERVERS}
