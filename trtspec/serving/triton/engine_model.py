"""The `TritonPythonModel` of an engine as its own model, which Triton's Python backend calls."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.errors import ServingError
from trtspec.serving.executor import Executor
from trtspec.serving.executors.validation import read_limits
from trtspec.serving.guides.guides import Guides
from trtspec.serving.metrics import FAMILIES, KV_FRACTION, MetricSample
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton import logs
from trtspec.serving.triton.agreement import NOT_UNICODE
from trtspec.serving.triton.engine_requests import Arrays
from trtspec.serving.triton.engine_service import EngineService
from trtspec.serving.triton.metrics import Series
from trtspec.serving.triton.watchdog import Watchdog

_NOT_DECOUPLED = "Streaming is only supported if model is deployed using decoupled mode."


class TritonPythonModel:
    """An engine of the torch backend, in this process."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config, folder = json.loads(args["model_config"]), Path(args["model_repository"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        excludes_input = parameters["exclude_input_in_output"].lower() in ("true", "1")
        check_s = int(parameters["cancellation_check_period_ms"]) / 1000
        logs.set_up(args["model_name"])
        self._watchdog, self._kv_use = Watchdog(args["model_name"]), _KvUse(args)
        load, update = partial(_load, parameters, folder), self._kv_use.update
        try:
            self._service = EngineService(load, excludes_input, check_s, self._watchdog, update)
        except BaseException as error:
            self._kv_use.close()
            self._watchdog.close()
            if isinstance(error, ServingError):
                raise pb_utils.TritonModelException(str(error)) from None
            raise
        # The loaded objects stay, so the garbage collector need not traverse them, not even at the end.
        gc.freeze()

    def execute(self, requests: Sequence[Any]) -> None:
        """Submits the requests and returns at once, so that the engine takes new ones at every step."""
        for request in requests:
            client = TritonEngineClient(request.get_response_sender())
            arrays = {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}
            try:
                request_id = request.request_id()
            except UnicodeDecodeError:
                # An exception from `execute` would end the other requests too.
                client.fail(NOT_UNICODE)
                continue
            if not self._is_decoupled and "streaming" in arrays and arrays["streaming"].any():
                client.fail(_NOT_DECOUPLED)
            else:
                self._service.submit(arrays, request_id, client)

    def finalize(self) -> None:
        self._service.close()
        self._kv_use.close()
        self._watchdog.close()


class TritonEngineClient:
    """The client of a request, reached by Triton's response sender. The last response has the final flag."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    def send(self, arrays: Arrays, is_final: bool) -> None:
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_final else 0
        self._sender.send(pb_utils.InferenceResponse(tensors), flags)

    def fail(self, message: str) -> None:
        error = pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)
        self._sender.send(
            pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )

    def has_left(self) -> bool:
        return bool(self._sender.is_cancelled())


class _KvUse(Series):
    """Exports the use of the KV cache, as NVIDIA's C++ backend does for its models."""

    def __init__(self, args: Mapping[str, str]) -> None:
        labels = {"model": args["model_name"], "version": args["model_version"]}
        super().__init__(FAMILIES[KV_FRACTION], labels)

    def update(self, use: float) -> None:
        self.set(MetricSample(KV_FRACTION, use, {"kv_cache_block_type": "fraction"}))


def _load(parameters: Mapping[str, str], folder: Path) -> Executor:
    """Loads the engine, with guides if the parameters ask for xgrammar. Paths are relative to `folder`."""
    from trtspec.serving.executors.torch.device import find_device
    from trtspec.serving.executors.torch.torch_executor import TorchExecutor

    engine_dir = (folder / parameters["gpt_model_path"]).resolve()
    guides = None
    if parameters.get("guided_decoding_backend") == "xgrammar":
        tokenizer = Tokenizer.load((folder / parameters["tokenizer_dir"]).resolve())
        guides = Guides(tokenizer.vocabulary, read_limits(engine_dir).vocab_size)
    return TorchExecutor(engine_dir, device=find_device(parameters.get("device")), guides=guides)
