"""Tries the rules on an engine that Triton serves as a model of its own: NVIDIA's C++ backend, on a GPU.

The coordinator asks that model by business logic scripting (BLS), with the tensors of `BlsExecutor`. Here the
same executor asks it by Triton's HTTP.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy.typing as npt

from trtspec.measure.selftest.engines import Reference, decoder, length_of_drafts
from trtspec.measure.selftest.rules import RULES
from trtspec.measure.selftest.trial import LAYOUT, WAIT_S, Differs, Outcome, Question, Rule, Trial
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executors.bls_executor import Arrays, BlsExecutor, Outputs
from trtspec.serving.executors.validation import read_limits
from trtspec.serving.tokenizer import Tokenizer

_MODEL = "tensorrt_llm"
_DATATYPES = {"i4": "INT32", "u8": "UINT64", "f4": "FP32", "b1": "BOOL"}
_SENT = (
    *("input_ids", "input_lengths", "request_output_len", "exclude_input_in_output", "return_perf_metrics"),
    *("draft_input_ids", "draft_logits", "return_log_probs", "end_id", "embedding_bias", "bad_words_list"),
    *("guided_decoding_guide_type", "guided_decoding_guide", "stop"),
    *("runtime_top_k", "runtime_top_p", "temperature", "seed", "min_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
_READ = ("output_ids", "sequence_length", "total_draft_tokens", "kv_cache_reused_blocks", "output_log_probs")


class HttpModel:
    """Calls a model of the Triton server at `url`, whose HTTP it speaks; many threads may."""

    def __init__(self, url: str, name: str = _MODEL) -> None:
        self._host, self._path = urlsplit(url).netloc, f"/v2/models/{name}"

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        """Returns the outputs of the one response; raises `EngineFailure`."""
        tensors = [_tensor(name, array) for name, array in inputs.items()]
        said = self._ask("POST", "/infer", {"id": request_id, "inputs": tensors})
        return {output["name"]: output["data"] for output in said["outputs"]}

    def tensors(self) -> tuple[set[str], set[str]]:
        """Returns the names of the inputs and of the outputs; raises `EngineFailure`."""
        said = self._ask("GET", "", None)
        inputs, outputs = ({tensor["name"] for tensor in said[side]} for side in ("inputs", "outputs"))
        return inputs, outputs

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        connection = HTTPConnection(self._host, timeout=WAIT_S)
        try:
            connection.request(method, self._path + path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            said: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError) as error:
            raise EngineFailure(f"{self._path}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise EngineFailure(str(said.get("error", said)).partition("\n")[0])
        return said


def _tensor(name: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    data = array.reshape(-1).tolist()
    if array.dtype.kind == "O":
        data = [word.decode() for word in data]
    datatype = _DATATYPES.get(array.dtype.str[1:], "BYTES")
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": data}


def _tensors(model: HttpModel) -> Rule:
    async def run(trial: Trial) -> str:
        inputs, outputs = model.tensors()
        lacking = [name for name in _SENT if name not in inputs]
        lacking += [name for name in _READ if name not in outputs]
        if lacking:
            raise Differs(f"it has no {', '.join(lacking)}")
        return f"{len(_SENT)} inputs and {len(_READ)} outputs, total_draft_tokens among them"

    rule = "The model takes every tensor that trtspec sends, and returns those that it reads."
    source = "all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"
    return Rule("tensors", rule, source, LAYOUT, run, of_drafts=False)


async def try_model(
    url: str, folder: Path, reference: Path, questions: Sequence[Question], build: str, *, guides: bool
) -> AsyncIterator[Outcome]:
    """Yields the outcome of each rule for the target of the build in `folder`, which is served at `url`.

    `reference` is the engine directory of the same target on the torch backend. With `guides` the model was
    built with them.
    """
    words = Tokenizer.load(folder / "tokenizer")
    known, end_id = Reference(reference), next(iter(words.end_ids), None)
    limits = read_limits(folder / "target" / "engine")
    model = HttpModel(url)
    executor = BlsExecutor(model, limits, None, end_id if guides else None)
    try:
        k = length_of_drafts(limits)
        trial = Trial(executor, questions, known.likely, k, words.end_ids, decoder(words))
        for rule in (_tensors(model), *RULES):
            yield await rule.outcome(trial, build)
    finally:
        executor.shutdown()
        known.close()
