"""A `tensorrt_llm` model without a server: the engine's side of the bls layout, called as BLS would.

Everything that goes back and forth is the tensors of NVIDIA's `config.pbtxt`; others are errors.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import Executor
from trtspec.serving.executors.bls_executor import Arrays, Outputs
from trtspec.serving.triton.engine_service import EngineService
from trtspec.serving.triton.tensors import ENGINE_INPUTS, ENGINE_OUTPUTS, Datatype

_DTYPES = {
    Datatype.INT32: np.int32,
    Datatype.INT64: np.int64,
    Datatype.UINT64: np.uint64,
    Datatype.FP16: np.float16,
    Datatype.FP32: np.float32,
    Datatype.BOOL: np.bool_,
    Datatype.STRING: np.object_,
}


class QueueClient:
    """Hears on a queue: arrays, whether that was the last, and an error."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[Arrays, bool, str | None]] = queue.Queue()
        self.left = False

    def send(self, arrays: Arrays, is_final: bool) -> None:
        for output in ENGINE_OUTPUTS:
            if (array := arrays.get(output.name)) is not None:
                _check(output.name, array, output.datatype, (1, *output.dims))
        assert arrays.keys() <= {output.name for output in ENGINE_OUTPUTS}
        self.heard.put((arrays, is_final, None))

    def fail(self, message: str) -> None:
        self.heard.put(({}, True, message))

    def has_left(self) -> bool:
        return self.left


class BlsModel:
    """As `trtspec.serving.triton.engines.TritonModel`."""

    def __init__(self, load: Callable[[], Executor]) -> None:
        self.service = EngineService(load, excludes_input=False, check_s=0.01)

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        client = QueueClient()
        try:
            self.service.submit(as_received(inputs), request_id, client)
        except RuntimeError as closed:  # Triton refuses calls of a model that it has unloaded.
            raise EngineFailure(str(closed)) from closed
        arrays, is_final, error = client.heard.get(timeout=120)
        if error is not None:
            raise EngineFailure(error)
        assert is_final, "a model that is not decoupled has one response"
        return as_outputs(arrays)


def as_received(inputs: Arrays) -> Arrays:
    """What Triton would hand to the model: checked, and single numbers without their own dimension."""
    received = {}
    known = {tensor.name: tensor for tensor in ENGINE_INPUTS}
    for name, array in inputs.items():
        tensor = known[name]
        _check(name, array, tensor.datatype, (1, *(tensor.dims or (1,))))
        received[name] = array.reshape(1) if tensor.dims is None else array
    assert {tensor.name for tensor in ENGINE_INPUTS if tensor.is_required} <= received.keys()
    return received


def as_outputs(arrays: Arrays) -> Outputs:
    """What `TritonModel` makes of a response's tensors."""
    return {name: array.reshape(-1).tolist() for name, array in arrays.items()}


def _check(name: str, array: npt.NDArray[Any], datatype: Datatype, dims: tuple[int, ...]) -> None:
    assert array.dtype == _DTYPES[datatype], (name, array.dtype)
    assert array.ndim == len(dims), (name, array.shape)
    for found, wanted in zip(array.shape, dims, strict=True):
        assert wanted in (-1, found), (name, array.shape)
