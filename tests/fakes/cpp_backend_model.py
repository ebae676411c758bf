"""The model of Triton in place of NVIDIA's C++ backend; `cpp_backend_build.py` serves it as `model.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.errors import ServingError
from trtspec.serving.triton.loop import LoopThread
from trtspec.serving.triton.watchdog import BEAT_S, Watchdog

HEARD = "heard.jsonl"
"""The file beside it with a line for each request that verifies a draft."""


class TritonPythonModel:
    """An engine that verifies drafts as NVIDIA's kernels do, and writes down what it is asked."""

    def initialize(self, args: Mapping[str, str]) -> None:
        # `deploy` takes a process without a watchdog for stuck, and PyTorch takes long to import under load.
        self._watchdog, self._beats = Watchdog(args["model_name"]), LoopThread("beats")
        self._beats.every(BEAT_S, self._watchdog.beat)
        from tests.fakes.cpp_backend import CppBackend

        config = json.loads(args["model_config"])
        # The server runs in the build directory, from which NVIDIA's backend takes this path.
        self._backend = CppBackend(Path(config["parameters"]["gpt_model_path"]["string_value"]))
        self._answers = ThreadPoolExecutor(config["max_batch_size"], "answers")
        self._sends = ThreadPoolExecutor(1, "sends")
        self._heard = Path(args["model_repository"], HEARD)

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            self._write_down(arrays)
            self._answers.submit(self._answer, request.get_response_sender(), arrays, request.request_id())

    def finalize(self) -> None:
        self._answers.shutdown()
        self._sends.shutdown()
        self._backend.close()
        self._beats.end()
        self._watchdog.close()

    def _answer(self, sender: Any, arrays: Mapping[str, Any], request_id: str) -> None:
        try:
            said = self._backend.answer(arrays, request_id)
            response = pb_utils.InferenceResponse([pb_utils.Tensor(*item) for item in said.items()])
        except ServingError as error:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        self._sends.submit(sender.send, response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _write_down(self, arrays: Mapping[str, Any]) -> None:
        if "draft_input_ids" not in arrays:
            return
        rows, draft = arrays.get("draft_logits"), arrays["draft_input_ids"]
        line: dict[str, Any] = {
            "is_sampled": "temperature" in arrays,
            "draft": draft[0].tolist(),
            "rows": rows is not None and {"shape": rows.shape, "dtype": str(rows.dtype)},
        }
        if rows is not None:
            line["hot"] = [[int(row.argmax()), np.count_nonzero(row)] for row in rows[0]]
        with self._heard.open("a") as file:
            file.write(json.dumps(line) + "\n")
