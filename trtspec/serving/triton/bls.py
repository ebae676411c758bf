"""Calls to another model of the same server, through Triton's business logic scripting (BLS)."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.errors import EngineFailure
from trtspec.serving.executors.bls_executor import Arrays, Outputs

_OUTPUTS = ["output_ids", "sequence_length"]
_LOG_PROBS, _METRICS = ["output_log_probs"], ["total_draft_tokens", "kv_cache_reused_blocks"]


class TritonModel:
    """Calls a `tensorrt_llm` model by its name; the model must not be decoupled."""

    def __init__(self, name: str) -> None:
        self._name = name

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        """Returns the outputs of the one response; raises `EngineFailure`."""
        request = pb_utils.InferenceRequest(
            model_name=self._name,
            request_id=request_id,
            requested_output_names=[
                *_OUTPUTS,
                *(_LOG_PROBS if "return_log_probs" in inputs else []),
                *(_METRICS if "return_perf_metrics" in inputs else []),
            ],
            inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        )
        try:
            response = request.exec()
        except pb_utils.TritonModelException as error:
            raise self._failure(str(error)) from None
        if response.has_error():
            raise self._failure(response.error().message())
        # The arrays are views of memory that Triton takes back. To copy one, numpy gives up Python's lock and
        # waits for it again, behind all other streams; a list is made without.
        return {tensor.name(): tensor.as_numpy().reshape(-1).tolist() for tensor in response.output_tensors()}

    def _failure(self, message: str) -> EngineFailure:
        return EngineFailure(f"{self._name}: {message.partition(chr(10))[0]}")
