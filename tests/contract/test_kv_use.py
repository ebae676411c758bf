"""An executor says how much of its KV cache requests hold, or that it does not know."""

from __future__ import annotations

from tests.contract.conftest import Answers, Subject
from tests.fakes.scripted_executor import ScriptedExecutor
from trtspec.serving.executor import Request

PROMPT = [3, 9, 27]


def test_kv_use_is_the_share_that_requests_held_since_the_last_look(
    subject: Subject, answers: Answers
) -> None:
    executor = subject.load()
    if executor.take_kv_use() is None:
        answers(executor, Request(PROMPT, 8))
        assert executor.take_kv_use() is None
        return
    assert executor.take_kv_use() == 0
    answers(executor, Request(PROMPT, 8))
    one = executor.take_kv_use()
    answers(executor, *(Request([token, *PROMPT], 100) for token in range(4)))
    four = executor.take_kv_use()
    assert one is not None
    assert four is not None
    assert 0 < one < four <= 1
    assert executor.take_kv_use() == 0


def test_a_request_says_what_it_found(subject: Subject, answers: Answers) -> None:
    executor, prompt = subject.load(), [number % 50 + 3 for number in range(100)]
    [first] = answers(executor, Request(prompt, 4))
    [second] = answers(executor, Request(prompt, 4))
    [verified] = answers(executor, Request(prompt, 3, draft_token_ids=[1, 2]))
    if first.num_reused is None:
        assert isinstance(executor, ScriptedExecutor)
        return
    assert first.num_reused == 0
    # TensorRT-LLM tells whole blocks of 32 tokens; the last token is computed in any case.
    assert second.num_reused in (96, 99)
    assert verified.num_reused == second.num_reused


def test_prompt_tokens_found_in_the_kv_cache_are_counted(subject: Subject, answers: Answers) -> None:
    executor = subject.load()
    prompt = [number % 50 + 3 for number in range(100)]
    answers(executor, Request(prompt, 4))
    executor.take_kv_use()
    if (first := executor.kv_reuse) is None:
        return
    answers(executor, Request(prompt, 4))
    executor.take_kv_use()
    second = executor.kv_reuse
    assert second is not None
    # Whole blocks of 32 tokens with TensorRT-LLM; the last token is computed in any case.
    assert 100 <= first.asked <= 128
    assert first.found == 0
    assert 200 <= second.asked <= 256
    assert 64 <= second.found <= 99
