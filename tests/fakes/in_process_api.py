"""A stand-in for `tritonserver`, Triton's Python API of a server in the same process, over a server's gRPC.

NVIDIA's OpenAI front end needs that API, which is in NVIDIA's images alone. Run as a program it is this front
end, with the engine of it that asks Triton, in front of a deployment:

    python -m tests.fakes.in_process_api FRONT_END GRPC_PORT TOKENIZER PORT
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import AsyncIterator
from enum import Enum
from inspect import signature
from types import ModuleType, SimpleNamespace
from typing import Any

import fastapi
import numpy as np
import tritonclient.grpc as blocking
from tritonclient.grpc import aio
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor


class DataType(Enum):
    """Those that a front end asks for by name."""

    UINT32 = "UINT32"
    INT32 = "INT32"
    BYTES = "BYTES"
    OTHER = ""

    @classmethod
    def _missing_(cls, _: object) -> DataType:
        return cls.OTHER


class Tensor:
    """A tensor in memory of this process; texts are serialized as in Triton."""

    def __init__(self, array: np.ndarray[Any, Any], kind: str) -> None:
        data: bytes = serialize_byte_tensor(array).item() if kind == "BYTES" else array.tobytes()
        self._memory = ctypes.create_string_buffer(data, len(data))
        self.data_type, self.shape, self.size = DataType(kind), array.shape, len(data)
        self.data_ptr = ctypes.addressof(self._memory)


class Response:
    def __init__(self, result: aio.InferResult) -> None:
        answer = result.get_response()
        self.final = answer.parameters["triton_final_response"].bool_param
        self.outputs = {
            each.name: Tensor(result.as_numpy(each.name), each.datatype) for each in answer.outputs
        }


class Model:
    version = 1

    def __init__(self, name: str, url: str) -> None:
        self.name, self._url = name, url

    def config(self) -> dict[str, Any]:
        with blocking.InferenceServerClient(self._url) as client:
            config: dict[str, Any] = client.get_model_config(self.name, as_json=True)["config"]
        return config

    def create_request(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    async def async_infer(self, inputs: dict[str, Any]) -> AsyncIterator[Response]:
        tensors = []
        for name, value in inputs.items():
            array = value if isinstance(value, np.ndarray) else np.array(value, object)
            tensor = aio.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensors.append(tensor.set_data_from_numpy(array))

        async def asked() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": self.name, "inputs": tensors, "enable_empty_final_response": True}

        async with aio.InferenceServerClient(self._url) as client:
            async for result, error in client.stream_infer(asked()):
                if error is not None:
                    raise error
                response = Response(result)
                yield response
                if response.final:
                    return


class App(fastapi.FastAPI):
    """FastAPI as it was, when it ignored what it does not know."""

    def __init__(self, **options: Any) -> None:
        known = signature(fastapi.applications.FastAPI).parameters
        super().__init__(**{name: value for name, value in options.items() if name in known})


class Server:
    """A server, whose models are those that are ready."""

    def __init__(self, url: str, names: list[str]) -> None:
        self._url, self._names = url, names
        self.options = SimpleNamespace(model_repository="", model_control_mode=None)

    def ready(self) -> bool:
        return True

    def model(self, name: str) -> Model:
        return Model(name, self._url)

    def models(self, exclude_not_ready: bool) -> dict[tuple[str, int], None]:
        assert exclude_not_ready
        return {(name, 1): None for name in self._names}


def main(front_end: str, port: str, tokenizer: str, own_port: str) -> None:
    sys.path.insert(0, front_end)
    api = ModuleType("tritonserver")
    named = {"Server": Server, "Model": Model, "Tensor": Tensor, "InferenceResponse": Response}
    api.__dict__.update(named, DataType=DataType, ModelControlMode=SimpleNamespace(EXPLICIT="explicit"))
    api.__dict__.update(TritonError=RuntimeError, InvalidArgumentError=ValueError)
    api.__dict__.update(_api=SimpleNamespace(_response=SimpleNamespace(InferenceResponse=Response)))
    # It reads calls that a stream has not told whole, and is not asked for any here.
    options = ModuleType("partial_json_parser.core.options")
    options.__dict__.update(Allow=None)
    for name in ("partial_json_parser", "partial_json_parser.core"):
        sys.modules[name] = ModuleType(name)
    sys.modules |= {"tritonserver": api, options.__name__: options}
    fastapi.FastAPI = App  # type: ignore[misc]

    from engine.triton_engine import TritonLLMEngine  # type: ignore[import-not-found]
    from frontend.fastapi_frontend import FastApiFrontend  # type: ignore[import-not-found]

    server = Server(f"127.0.0.1:{port}", ["speculative_llm"])
    engine = TritonLLMEngine(server, tokenizer=tokenizer, default_max_tokens=16)
    FastApiFrontend(engine, "127.0.0.1", int(own_port), "warning").start()


if __name__ == "__main__":
    main(*sys.argv[1:])
