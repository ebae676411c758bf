"""The executors under contract, and how to ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

from tests.fakes.bindings import change_config, stand_in, write_trtllm_engine
from tests.fakes.bls_model import BlsModel
from tests.fakes.clock import Clock
from tests.fakes.engine_dir import tiny_llama, write_engine
from tests.fakes.guided import guides
from tests.fakes.scripted_executor import ScriptedExecutor, babble, scripted_log_prob
from tests.fakes.trimming import Keep, Trimming, keep_all
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.executor import Executor, Limits, Request, Response
from trtspec.serving.executors.bls_executor import BlsExecutor
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import KvBudget, TrtLlmExecutor, read_engine
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.executors.validation import TORCH_VERSION, read_limits

LIMITS = {"max_batch_size": 4, "max_seq_len": 128, "max_draft_len": 6}
VOCAB_SIZE = 96
Continuation = Callable[[Sequence[int], int], list[int]]


class Subject(Protocol):
    """One kind of executor, with what it should say, found out by other means.

    `overtaken`: by how many later requests one may be overtaken on its way to the engine. `keep`: what the
    engines that it loads leave of drafts.
    """

    overtaken: int
    keep: Keep

    def load(self, **limits: int) -> Executor:
        """A fresh executor; keywords replace `LIMITS`. A prompt may have max_seq_len - 1 tokens."""
        ...

    def next_token(self, sequence: Sequence[int]) -> int: ...

    def log_prob(self, sequence: Sequence[int], token_id: int) -> float:
        """Of the token behind the sequence, by the model's own logits."""
        ...


class Scripted:
    """The executor without a model of the coordinator's tests."""

    overtaken = 0
    keep: Keep = staticmethod(keep_all)

    def __init__(self) -> None:
        self.next_token, self.log_prob = babble(VOCAB_SIZE), scripted_log_prob

    def load(self, **limits: int) -> Executor:
        values: dict[str, Any] = LIMITS | limits
        made = Limits(**values, max_input_len=values["max_seq_len"] - 1, vocab_size=VOCAB_SIZE)
        return _trimming(ScriptedExecutor(made, self.next_token), self.keep)


class Torch:
    """The torch executor; what it should say comes from transformers, without a cache."""

    overtaken = 0
    keep: Keep = staticmethod(keep_all)

    def __init__(self, folder: Path) -> None:
        self.model, self._folder = tiny_llama(vocab_size=VOCAB_SIZE), folder
        self._cached = cache(self._next_token)
        self._loaded: list[TorchExecutor] = []
        self.guides = guides()

    def load(self, **limits: int) -> Executor:
        return _trimming(self.untrimmed(**limits), self.keep)

    def untrimmed(self, **limits: int) -> TorchExecutor:
        """A fresh one that keeps all of drafts."""
        name = "-".join(f"{key}{value}" for key, value in limits.items()) or "plain"
        folder = write_engine(self._folder / name, self.model, **(LIMITS | limits))
        self._loaded.append(TorchExecutor(folder, guides=self.guides))
        return self._loaded[-1]

    def close(self) -> None:
        async def end() -> None:
            while self._loaded:
                self._loaded.pop().shutdown()

        asyncio.run(end())

    def next_token(self, sequence: Sequence[int]) -> int:
        return self._cached(tuple(sequence))

    def logits(self, sequence: Sequence[int]) -> torch.Tensor:
        """After each token of the sequence: `[tokens, vocab]`."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([list(sequence)])).logits[0]
            return logits

    def log_prob(self, sequence: Sequence[int], token_id: int) -> float:
        return float(self.logits(sequence)[-1].double().log_softmax(-1)[token_id])

    def _next_token(self, sequence: tuple[int, ...]) -> int:
        return int(self.logits(sequence)[-1].argmax())


class TensorRtLlm(Torch):
    """The executor for TensorRT-LLM's engines on a stand-in for NVIDIA's bindings."""

    trtllm: Any = None

    def load(self, **limits: int) -> TrtLlmExecutor:
        name = "trtllm-" + "-".join(f"{key}{value}" for key, value in limits.items())
        folder = write_trtllm_engine(self._folder / name, self.model, **(LIMITS | limits))
        self.trtllm.Executor.KEEP = staticmethod(self.keep)
        return TrtLlmExecutor(self.trtllm, read_engine(folder, "1.2.1"), 0, KvBudget(0.1))


class Bls(Torch):
    """The executor for engines that are Triton models of their own, on one without the server."""

    overtaken = LIMITS["max_batch_size"]  # the threads that race for the engine

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._models: list[BlsModel] = []

    def load(self, **limits: int) -> BlsExecutor:
        name = "bls-" + "-".join(f"{key}{value}" for key, value in limits.items())
        folder = write_engine(self._folder / name, self.model, **(LIMITS | limits))
        change_config(folder, "", version=f"{TORCH_VERSION} 0")
        self._models.append(BlsModel(lambda: _trimming(TorchExecutor(folder), self.keep)))
        return BlsExecutor(self._models[-1], read_limits(folder))

    def close(self) -> None:
        while self._models:
            self._models.pop().service.close()


def _trimming(executor: Executor, keep: Keep) -> Executor:
    return executor if keep is keep_all else Trimming(executor, keep)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def torch_engines(tmp_path_factory: pytest.TempPathFactory) -> Torch:
    return Torch(tmp_path_factory.mktemp("engines"))


@pytest.fixture
def torch_subject(torch_engines: Torch) -> Iterator[Torch]:
    yield torch_engines
    torch_engines.close()


@pytest.fixture(scope="session")
def tensorrt_llm_subject(tmp_path_factory: pytest.TempPathFactory) -> TensorRtLlm:
    return TensorRtLlm(tmp_path_factory.mktemp("trtllm-engines"))


@pytest.fixture(scope="session")
def bls_subject(tmp_path_factory: pytest.TempPathFactory) -> Bls:
    return Bls(tmp_path_factory.mktemp("bls-engines"))


@pytest.fixture(params=["torch", "scripted", "tensorrt_llm", "bls"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "bls":
        bls = request.getfixturevalue("bls_subject")
        yield bls
        bls.close()
    elif request.param == "tensorrt_llm":
        with stand_in() as trtllm:
            tensorrt_llm = request.getfixturevalue("tensorrt_llm_subject")
            tensorrt_llm.trtllm = trtllm
            yield tensorrt_llm
    else:
        yield request.getfixturevalue("torch_subject") if request.param == "torch" else Scripted()


@pytest.fixture
def trimmed(subject: Subject) -> Iterator[Callable[[Keep], Subject]]:
    """The subject with engines that leave so much of drafts."""
    usual = subject.keep

    def trim(keep: Keep) -> Subject:
        subject.keep = keep
        return subject

    yield trim
    subject.keep = usual


@pytest.fixture
def continuation(subject: Subject) -> Continuation:
    """The next `count` tokens that the executor's model says after a prompt."""
    return partial(_continue, subject)


@pytest.fixture
def continuation_of(torch_subject: Torch) -> Continuation:
    """The same of the torch executor's model."""
    return partial(_continue, torch_subject)


def _continue(subject: Subject, prompt: Sequence[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(subject.next_token(text))
    return text[len(prompt) :]


def alone(subject: Subject, request: CompletionRequest) -> list[int]:
    """What the executor's model says of a request by itself, greedily."""
    prompt = request.prompt_token_ids
    assert prompt is not None
    text = list(prompt)
    while len(text) < len(prompt) + request.max_tokens:
        token = subject.next_token(text)
        if token == request.end_id:
            break
        text.append(token)
    return text[len(prompt) :]


Ask = Callable[[Executor, Request], Coroutine[Any, Any, list[Response]]]


class Answers(Protocol):
    """Enqueues all requests at once and returns the final response of each; none of them streams."""

    def __call__(self, executor: Executor, *requests: Request) -> list[Response]: ...


async def ask(executor: Executor, request: Request) -> list[Response]:
    """All responses to one request, of which the last is final."""
    responses: list[Response] = []
    finished = asyncio.get_running_loop().create_future()

    def listen(response: Response) -> None:
        assert not finished.done(), "a response after the final one"
        responses.append(response)
        if response.is_final:
            finished.set_result(None)

    request_id = executor.enqueue_request(request, listen)
    assert responses == [], "a response before enqueue_request returned"
    await asyncio.wait_for(finished, 120)
    assert {response.request_id for response in responses} == {request_id}
    return responses


@pytest.fixture(name="ask")
def ask_fixture() -> Ask:
    return ask


@pytest.fixture
def answers() -> Answers:
    async def gather(executor: Executor, *requests: Request) -> list[Response]:
        heard = await asyncio.gather(*(ask(executor, request) for request in requests))
        assert [len(responses) for responses in heard] == [1] * len(requests)
        return [responses[0] for responses in heard]

    return lambda executor, *requests: asyncio.run(gather(executor, *requests))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What a test adds to the time of the loop."""
    clock, time = Clock(), asyncio.BaseEventLoop.time
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: time(loop) + clock.seconds)
    return clock
