"""The `TritonPythonModel` of the coordinator, which Triton's Python backend calls."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.errors import RequestError, ServingError
from trtspec.serving.rollout.state import ROLLOUT, RolloutFile
from trtspec.serving.triton import engines, logs
from trtspec.serving.triton.agreement import (
    LOOK_S,
    NOT_UNICODE,
    Departures,
    Stopping,
    read_parameters,
    take_request_id,
)
from trtspec.serving.triton.metrics import TritonMetrics
from trtspec.serving.triton.requests import ResponseOptions, explain, read
from trtspec.serving.triton.responses import Code, Failure, TextChunk, arrays
from trtspec.serving.triton.service import CoordinatorService
from trtspec.serving.triton.watchdog import Watchdog


class TritonPythonModel:
    """The coordinator with its engines."""

    load = staticmethod(engines.load)

    def initialize(self, args: Mapping[str, str]) -> None:
        config, folder = json.loads(args["model_config"]), Path(args["model_repository"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        logs.set_up(args["model_name"])
        self._metrics = TritonMetrics({"model": args["model_name"], "version": args["model_version"]})
        self._watchdog, self._departures = Watchdog(args["model_name"]), Departures()
        load, tell = partial(self.load, parameters, folder), self._metrics.update
        try:
            self._service = CoordinatorService(load, tell, self._watchdog)
            self._service.every(LOOK_S, Stopping(self._service.drain).look)
            if rollout := os.environ.get(ROLLOUT):
                self._service.follow(RolloutFile(Path(rollout)))
        except BaseException as error:
            self._metrics.close()
            self._watchdog.close()
            if isinstance(error, ServingError):
                raise pb_utils.TritonModelException(str(error)) from None
            raise
        # The loaded objects stay, so the garbage collector need not traverse them, not even at the end.
        gc.freeze()

    def execute(self, requests: Sequence[Any]) -> None:
        """Submits the requests and returns at once, so that Triton takes the next ones."""
        for request in requests:
            client = TritonClient(request.get_response_sender())
            try:
                parameters = read_parameters(request.parameters())
                request_id = request.request_id()
            except UnicodeDecodeError:
                # An exception from `execute` would end the other requests too.
                self._service.refuse(client, Failure(NOT_UNICODE, Code.INVALID_ARG))
                continue
            given = take_request_id(parameters)
            request_id = request_id or given
            if self._departures.leave(parameters):
                client.end()
                continue
            self._departures.arrive(parameters, client)
            try:
                tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                completion, client.options = read(tensors, parameters, request.timeout())
            except ServingError as error:
                message = explain(error) if isinstance(error, RequestError) else str(error)
                self._service.refuse(client, Failure(message, Code.INVALID_ARG), request_id)
            else:
                self._service.submit(completion, client.options, client, request_id)

    def finalize(self) -> None:
        self._service.close()
        self._metrics.close()
        self._watchdog.close()


class TritonClient:
    """The client of a request, reached by Triton's response sender. The last response has the final flag."""

    def __init__(self, sender: Any) -> None:
        self._sender, self.options = sender, ResponseOptions()
        self.is_named = self._has_left = False

    def leave(self) -> None:
        self._has_left = True

    def end(self) -> None:
        """Ends the request without a response."""
        self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send(self, chunk: TextChunk) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if chunk.is_last else 0
        if chunk.failure is not None:
            code, message = chunk.failure.code, chunk.failure.message
            message = f"{code.value} {message}" if self.is_named else message
            error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code.name))
            self._sender.send(pb_utils.InferenceResponse(error=error), flags)
        else:
            tensors = [pb_utils.Tensor(name, array) for name, array in arrays(chunk, self.options).items()]
            self._sender.send(pb_utils.InferenceResponse(tensors), flags)

    def has_left(self, ask: bool) -> bool:
        return self._has_left or (ask and bool(self._sender.is_cancelled()))
