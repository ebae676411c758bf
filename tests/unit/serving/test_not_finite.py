"""What becomes of requests whose logits are NaN or infinite, and of those beside them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.engine_dir import tiny_llama, write_engine
from tests.fakes.languages import DRAFT, TARGET, Run
from tests.fakes.scripted_executor import ScriptedExecutor, babble
from tests.support.draft_failures import draft_failures
from tests.unit.serving.triton.conftest import ENDLESS, Serve, ask, serve
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.coordinator import MAX_FAILURES
from trtspec.serving.errors import EngineLoadError, NotFinite
from trtspec.serving.executor import NOT_FINITE, LogProb, Request, Response, SamplingConfig
from trtspec.serving.executors.bls_executor import new_log_probs
from trtspec.serving.executors.torch.torch_executor import TorchExecutor, load_engines
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.engines import EnginePair
from trtspec.serving.triton.logs import JsonLines
from trtspec.serving.triton.responses import Code
from trtspec.serving.triton.service import CoordinatorService

__all__ = ["serve"]
BROKEN = 7  # a token whose embedding is not finite


def engine(folder: Path, *, number: float = math.nan, seed: int = 0, everywhere: bool = False) -> Path:
    """An engine that has no logits behind `BROKEN`, or never any."""
    model = tiny_llama(seed)
    with torch.no_grad():
        if everywhere:
            model.lm_head.weight[3] = number
        else:
            model.model.embed_tokens.weight[BROKEN] = number
    return write_engine(folder, model)


def prompt(tokens: list[int], **options: Any) -> CompletionRequest:
    return CompletionRequest(prompt_token_ids=tokens, max_tokens=12, end_id=NO_END, **options)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": SamplingConfig(temperature=1.0, top_k=20, seed=1)},
    "biased": {"embedding_bias": ((4, 1.0),)},
    "with log probs": {"return_log_probs": True, "top_log_probs": 3},
    "plain": {"num_draft_tokens": 0},
}


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_request_fails_alone_and_those_beside_it_go_on(
    tmp_path: Path, run: Run, tokenizer: Tokenizer, way: str, number: float
) -> None:
    """The drafts are a healthy engine's, and the slots of failed requests serve others afterwards."""
    broken, whole = engine(tmp_path / "broken", number=number), write_engine(tmp_path / "whole", tiny_llama())
    prompts = [[1, 5, 9], [1, 5, 11, 4], [2, 8, 8, 3], [1, 5, 13]]

    async def texts(target: Path, bad: bool) -> list[Any]:
        engines = load_engines([target, whole])
        coordinator = assemble(engines[0], engines[1], tokenizer, 4)
        try:
            found = []
            for _ in range(3):
                asked = [*prompts[:2], *([[1, 5, BROKEN, 9], [1, 5, BROKEN]] if bad else []), *prompts[2:]]
                requests = [coordinator.complete(prompt(tokens, **WAYS[way])) for tokens in asked]
                found += await asyncio.gather(*requests, return_exceptions=True)
            return found
        finally:
            for one in engines:
                one.shutdown()

    expected = [delta.token_ids for delta in run(texts(whole, bad=False)) if BROKEN not in delta.token_ids]
    found = run(texts(broken, bad=True))
    failed = [one for one in found if isinstance(one, Exception)]
    assert len(expected) == 12
    assert {type(one) for one in failed} == {NotFinite}
    assert [one.token_ids for one in found if not isinstance(one, Exception)] == expected
    assert len(failed) == 6


def test_a_draft_without_logits_fails_as_a_draft(tmp_path: Path, run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = write_engine(tmp_path / "target", tiny_llama())
        engines = load_engines([target, engine(tmp_path / "draft", everywhere=True)])
        coordinator = assemble(engines[0], engines[1], tokenizer, 4)
        try:
            drafted = [prompt([1, 5, last]) for last in range(20, 26)]
            deltas = await asyncio.gather(*map(coordinator.complete, drafted))
            alone = [replace(request, num_draft_tokens=0) for request in drafted]
            plain = await asyncio.gather(*map(coordinator.complete, alone))
            assert [delta.token_ids for delta in deltas] == [delta.token_ids for delta in plain]
            assert draft_failures(coordinator.stats) >= 3
            assert not coordinator.stats.draft_available
            assert coordinator.failure is None
        finally:
            for one in engines:
                one.shutdown()

    run(main())


def test_many_failed_requests_are_no_reason_to_end_the_server(
    tmp_path: Path, run: Run, tokenizer: Tokenizer
) -> None:
    async def main() -> None:
        target = TorchExecutor(engine(tmp_path))
        coordinator = assemble(target, None, tokenizer)
        try:
            for _ in range(2 * MAX_FAILURES):
                with pytest.raises(NotFinite):
                    await coordinator.complete(prompt([1, BROKEN]))
                await asyncio.sleep(0.06)
            assert len((await coordinator.complete(prompt([1, 5]))).token_ids) == 12
            assert coordinator.failure is None
        finally:
            target.shutdown()

    run(main())


def test_an_engine_that_never_has_logits_is_not_served(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def load() -> EnginePair:
        return EnginePair(TorchExecutor(engine(tmp_path, everywhere=True)), None, tokenizer, in_process=True)

    with pytest.raises(EngineLoadError, match="the target engine: cannot run: the model's logits are NaN"):
        CoordinatorService(load, lambda stats: None)


def test_logits_that_are_not_finite_have_their_own_status_metric_and_log_line(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trtspec")

    def fails(request: Request) -> str | None:
        return f"[engine] {NOT_FINITE}" if request.input_token_ids[0] else None  # The warm-up asks with 0.

    service, _ = serve(fails=fails)
    failure = ask(service, ENDLESS).failure()
    assert failure is not None
    assert failure.code is Code.INTERNAL
    assert NOT_FINITE in failure.message
    serve.started.remove(service)
    service.close()
    failures = service._coordinator.stats.failures
    assert {kind for kind, number in failures.items() if number} == {"not_finite"}
    lines = [json.loads(JsonLines("pair").format(one)) for one in caplog.records if hasattr(one, "fields")]
    assert [line["outcome"] for line in lines] == ["not_finite"]


class Vague(ScriptedExecutor):
    """An engine that does not look at its logits, as TensorRT-LLM does not."""

    def enqueue_request(self, request: Request, listener: Any) -> int:
        def spoil(response: Response) -> None:
            if response.log_probs:
                response.log_probs[-1] = LogProb(math.nan)
            listener(response)

        return super().enqueue_request(request, spoil)


def test_a_log_probability_that_is_no_number_fails_the_request(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        coordinator = assemble(Vague(TARGET, babble(300)), ScriptedExecutor(DRAFT, babble(300)), tokenizer)
        with pytest.raises(NotFinite):
            await coordinator.complete(prompt([1], return_log_probs=True))
        assert len((await coordinator.complete(prompt([1]))).token_ids) == 12

    run(main())


def test_a_probability_of_zero_has_a_log_that_json_can_hold() -> None:
    assert new_log_probs({"output_log_probs": [-math.inf, -0.5]}) == [LogProb(-9999.0), LogProb(-0.5)]
