"""Another model of the same server, through Triton's business logic scripting."""

from __future__ import annotations

from collections.abc import Iterator

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.errors import EngineFailure
from trtspec.serving.executors.bls.tensors import Arrays

_OUTPUTS = ["output_ids", "sequence_length"]


class TritonModel:
    """A `tensorrt_llm` model by its name, whether it is decoupled or not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def infer(self, inputs: Arrays, request_id: str) -> Iterator[Arrays]:
        request = pb_utils.InferenceRequest(
            model_name=self._name,
            request_id=request_id,
            requested_output_names=_OUTPUTS,
            inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        )
        try:
            for response in request.exec(decoupled=True):
                if response.has_error():
                    raise EngineFailure(self._first_line(response.error().message()))
                tensors = response.output_tensors()
                if tensors:
                    yield {tensor.name(): tensor.as_numpy() for tensor in tensors}
        except pb_utils.TritonModelException as error:
            raise EngineFailure(self._first_line(str(error))) from None

    def _first_line(self, message: str) -> str:
        return f"{self._name}: {message.partition(chr(10))[0]}"
