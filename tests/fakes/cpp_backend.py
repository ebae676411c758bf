"""NVIDIA's C++ backend as a `tensorrt_llm` model without a server, for engines that verify external drafts.

Requests and answers are tensors of NVIDIA's `config.pbtxt` (`inflight_batcher_llm/src/utils.cc`); a sampled
draft is verified as TensorRT-LLM's kernels do it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.fakes.bls_model import as_outputs, as_received
from tests.fakes.external_drafts import DraftLogits, ExternalDrafts
from tests.fakes.trimming import Keep, keep_all
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import FinishReason, Response
from trtspec.serving.executors.bls_executor import Arrays, Outputs
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.triton.engine_requests import is_stop, read_engine_request, response_arrays
from trtspec.serving.triton.loop import LoopThread


class CppBackend:
    """As `trtspec.serving.triton.engines.TritonModel`; `heard` are the tensors of every request."""

    def __init__(self, engine_dir: Path, keep: Keep = keep_all) -> None:
        self.heard: list[Arrays] = []
        self._loop = LoopThread("cpp-backend")
        self._engine = self._loop.call(lambda: ExternalDrafts(TorchExecutor(engine_dir), keep))
        self._running: dict[str, int] = {}

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        self.heard.append(inputs)
        return as_outputs(self.answer(as_received(inputs), request_id))

    def answer(self, received: Arrays, request_id: str) -> Arrays:
        """Returns the answer to the tensors that Triton hands to the backend."""
        arrays = dict(received)
        if is_stop(arrays):
            self._loop.post(self._stop, request_id)
            return {}
        logits = self._logits(arrays)
        asked = read_engine_request(arrays, excludes_input=False)
        said = self._loop.run(self._answer(asked.request, request_id, logits))
        if said.error is not None:
            raise EngineFailure(f"tensorrt_llm: {said.error}")
        if said.finish_reason is FinishReason.CANCELLED:
            return {}
        # `loadOrAllocateBlocks` of kvCacheManager.cpp counts a block that is reused in part.
        blocks = -(-(said.num_reused or 0) // (self._engine.limits.tokens_per_block or 32))
        return response_arrays(asked, said.token_ids, (), said.num_verified, blocks)

    def close(self) -> None:
        self._loop.call(self._engine.shutdown)
        self._loop.end()

    def _logits(self, arrays: dict[str, Any]) -> DraftLogits | None:
        """Copies the logits, as Triton does before the engine has them."""
        rows = arrays.pop("draft_logits", None)
        threshold = arrays.pop("draft_acceptance_threshold", None)
        if rows is None:
            return None
        wanted = (1, arrays["draft_input_ids"].shape[1], self._engine.limits.vocab_size)
        if rows.shape != wanted:
            raise EngineFailure("tensorrt_llm: Assertion failed: Incompatible buffer sizes")
        return DraftLogits(rows[0].copy(), None if threshold is None else float(threshold[0]))

    async def _answer(self, request: Any, request_id: str, logits: DraftLogits | None) -> Response:
        heard: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def listen(said: Response) -> None:
            if said.is_final and not heard.done():
                heard.set_result(said)

        number = self._engine.enqueue_request(request, listen, logits)
        self._running[request_id] = number
        return await heard

    def _stop(self, request_id: str) -> None:
        if request_id in self._running:
            self._engine.cancel_request(self._running[request_id])
