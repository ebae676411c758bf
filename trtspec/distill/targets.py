"""Who answers for the target: its engine of the torch backend in this process, or a deployment."""

from __future__ import annotations

from pathlib import Path

from trtspec.distill.sampling import Target
from trtspec.endpoints.endpoint import AskError, Endpoint, Message, Question
from trtspec.endpoints.finding import find
from trtspec.errors import EngineError, ServerError
from trtspec.serving.completion import CompletionRequest, EndReason
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import EngineLoadError, ServingError
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.executors.torch.device import find_device
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer
from trtspec.workloads.prompt import Prompt
from trtspec.workloads.recorded import Recorded

_TIMEOUT_S = 3600.0


class _Engine:
    """The target alone in this process: on the first GPU, if there is one, else on the CPU."""

    def __init__(self, engine: Path, tokenizer: Tokenizer, model: str) -> None:
        try:
            self._executor = TorchExecutor(engine, device=find_device(None))
        except EngineLoadError as error:
            raise EngineError(error.subject, error.problem) from error
        self._coordinator = Coordinator(self._executor, None, tokenizer)
        self._model, self.at_once = model, self._executor.limits.max_batch_size

    async def answer(self, prompt: Prompt, max_tokens: int, options: dict[str, float]) -> Recorded:
        sampling = SamplingConfig(**options)  # type: ignore[arg-type]
        request = CompletionRequest(
            prompt=prompt.text, max_tokens=max_tokens, sampling=sampling, timeout_s=_TIMEOUT_S
        )
        try:
            delta = await self._coordinator.complete(request)
        except ServingError as error:
            raise EngineError(f"the answer to prompt {prompt.name}", str(error)) from error
        assert delta.completion is not None
        return Recorded(
            prompt.name,
            prompt.category,
            prompt=prompt.text,
            text=delta.text,
            answer_token_ids=tuple(delta.token_ids),
            finish_reason="length" if delta.completion.end_reason is EndReason.LENGTH else "stop",
            model=self._model,
            sampling=options,
        )

    async def close(self) -> None:
        self._executor.shutdown()


async def engine(folder: Path, tokenizer: Tokenizer, model: str) -> Target:
    """Loads an engine of the torch backend; raises EngineError."""
    return _Engine(folder, tokenizer, model)


async def deployment(url: str, model: str | None, key: str | None, at_once: int) -> Target:
    """Finds the model at a URL, Triton's or OpenAI's API; raises UnavailableError."""
    found = await find(url, model, chat=False, timeout_s=_TIMEOUT_S, key=key)
    return _Deployment(found.endpoint, at_once)


class _Deployment:
    """A server with the target, its drafts included, since they change no answer."""

    def __init__(self, endpoint: Endpoint, at_once: int) -> None:
        self._endpoint, self.at_once = endpoint, at_once

    async def answer(self, prompt: Prompt, max_tokens: int, options: dict[str, float]) -> Recorded:
        question = Question(
            (Message("user", prompt.text),),
            max_tokens,
            temperature=options.get("temperature", 0.0),
            seed=int(options["seed"]) if "seed" in options else None,
        )
        try:
            said = await self._endpoint.ask(question)
        except AskError as error:
            raise ServerError(self._endpoint.url, f"prompt {prompt.name}: {error.problem}") from error
        return Recorded(
            prompt.name,
            prompt.category,
            prompt=prompt.text,
            text=said.text,
            finish_reason="stop" if said.finish_reason == "stop" else "length",
            model=self._endpoint.model,
            sampling=options,
        )

    async def close(self) -> None:
        await self._endpoint.close()
