"""A `tensorrt_llm` model that accepts every draft; `shared_memory.py` serves it as `model.py`.

It says the letters a, b and c in turn, which an n-gram drafter foresees.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.triton.loop import LoopThread
from trtspec.serving.triton.watchdog import BEAT_S, Watchdog

STEP_S = 0.05


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        self._watchdog, self._beats = Watchdog(args["model_name"]), LoopThread("beats")
        self._beats.every(BEAT_S, self._watchdog.beat)
        self._lock = threading.Lock()
        assert json.loads(args["model_config"])["max_batch_size"]

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            threading.Timer(STEP_S, self._answer, [request, request.get_response_sender()]).start()

    def finalize(self) -> None:
        self._beats.end()
        self._watchdog.close()

    def _answer(self, request: Any, sender: Any) -> None:
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        last, length = int(arrays["input_ids"][0, -1]), int(arrays["request_output_len"][0])
        said = [(last + step) % 3 for step in range(1, length + 1)]
        if "draft_input_ids" in arrays:
            assert arrays["draft_logits"].dtype == np.float32
            assert arrays["draft_input_ids"][0].tolist() == said[:-1]
        found = {
            "output_ids": np.array([[said]], np.int32),
            "sequence_length": np.array([[length]], np.int32),
            "total_draft_tokens": np.array([[length - 1]], np.int32),
        }
        response = pb_utils.InferenceResponse([pb_utils.Tensor(*item) for item in found.items()])
        with self._lock:
            sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
