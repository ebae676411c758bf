"""The Triton edges over engines that only take time; `triton_overhead.py` serves it as `model.py`.

The model's name says what it is. Nobody waits for the engines of `instant` and `adaptive`, and for those of
`timed` somebody does; K is 4, and in `adaptive` at most 4. Both engines are in its process; one with `bls_`
before it calls the models whose names have `_target` and `_draft` behind it. `sends` has no engines: it sends
responses, and says what one takes.
"""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from tests.perf import coordinator as engines
else:
    import coordinator as engines

from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.executor import Executor, Limits
from trtspec.serving.executors.bls_executor import BlsExecutor
from trtspec.serving.triton import engine_model, model
from trtspec.serving.triton.bls import TritonModel
from trtspec.serving.triton.engines import EnginePair
from trtspec.serving.triton.responses import TextChunk

NAME = Path(__file__).parents[1].name
LIMITS = Limits(64, 8192, 8192, max_draft_len=engines.NUM_DRAFT_TOKENS, vocab_size=256)
POLICY: Policy = "adaptive" if "adaptive" in NAME else "fixed"
CLOCK = engines.Clock() if "timed" in NAME else engines.SkippingClock()


def engine(role: str) -> engines.TimedEngine:
    times = (0.0, engines.VERIFICATION_S) if role == "target" else (engines.DRAFT_TOKEN_S, 0.0)
    return engines.TimedEngine(LIMITS, CLOCK, *times)


def load(values: Mapping[str, str], folder: Path) -> EnginePair:
    in_process = not NAME.startswith("bls_")
    target, draft = (
        engine(role) if in_process else BlsExecutor(TritonModel(f"{NAME}_{role}"), LIMITS)
        for role in ("target", "draft")
    )
    return EnginePair(target, draft, engines.byte_tokenizer(), in_process=in_process, policy=POLICY)


def load_engine(parameters: Mapping[str, str], folder: Path) -> Executor:
    return engine(NAME.rpartition("_")[2])


class Coordinator(model.TritonPythonModel):
    load = staticmethod(load)


class Sender:
    """Answers with as many responses as `max_tokens` says, made as the coordinator's are, on a thread."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Needs nothing."""

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            sender, number = request.get_response_sender(), int(inputs["max_tokens"].reshape(-1)[0])
            threading.Thread(target=self._send, args=(sender, number)).start()

    def _send(self, sender: Any, number: int) -> None:
        client, chunk = model.TritonClient(sender), TextChunk(" word")
        begin, cpu = time.perf_counter(), time.thread_time()
        for _ in range(number):
            client.send(chunk)
        took, used = time.perf_counter() - begin, time.thread_time() - cpu
        said = {"us": round(took / number * 1e6, 1), "us_of_processor": round(used / number * 1e6, 1)}
        text = pb_utils.Tensor("text_output", np.array([[json.dumps(said).encode()]], np.object_))
        sender.send(pb_utils.InferenceResponse([text]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


engine_model._load = load_engine
is_engine = NAME.endswith(("_target", "_draft"))
TritonPythonModel: type = engine_model.TritonPythonModel if is_engine else Coordinator
if NAME == "sends":
    TritonPythonModel = Sender
