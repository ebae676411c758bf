"""Loads the engines of one build in a separate process, and tries and measures them there.

    python3 -m trtspec.measure.selftest.engines JOB.json

It also runs in NVIDIA's image, which has only this folder and `trtspec.serving`. So it imports nothing else
of trtspec. Each outcome is written as soon as it is known, since an engine may end the process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from statistics import median

from trtspec.measure.selftest.names import names, signatures
from trtspec.measure.selftest.rules import RULES
from trtspec.measure.selftest.trial import (
    DRAFTS,
    LAYOUT,
    WORK,
    Differs,
    NotTried,
    Outcome,
    Question,
    Rule,
    Ruling,
    Trial,
    check,
)
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.executor import Limits, Request
from trtspec.serving.executors.tensorrt_llm.bindings import free_memory, load_bindings
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.engines import EnginePair, load

_LOOKED_AT, _CLEAR, _LONGEST, _QUESTIONS = 96, 8, 40, 6
"""The tokens that are searched for a question, the shortest and the longest sequence of one, and the number
of questions."""
_K = 6
_TOKENS, _DRAFTED = 32, 4
_PREFILL, _STREAMS, _TIMES = 2048, 32, 7
"""The tokens of a measured prefill, the verifications of a measured batch, and the number of measurements."""


@dataclass(frozen=True, slots=True)
class TrialJob:
    """The rules that one process must try, read from JSON."""

    build: str
    """The name of the build."""
    parameters: Mapping[str, str]
    """The parameters of the model's config.pbtxt."""
    folder: str
    """The model's folder."""
    reference: str
    """An engine of the torch backend of the same target: the reference."""
    questions: Sequence[tuple[Sequence[int], Sequence[int]]]
    """Each a prompt and its text, as of `Question`; empty if only times are measured."""
    release: str | None
    """The release of TensorRT-LLM; None for the torch backend."""
    planned: Mapping[str, float]
    """The planned bytes `engines` and `draft_cache`, and the caches' share `fraction` of the memory."""
    results: str
    """The file of outcomes, one line of JSON each."""

    def tell(self, outcome: Outcome) -> None:
        with open(self.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(outcome.as_dict()) + "\n")


class Reference:
    """Computes the target's text by the torch backend on the CPU."""

    def __init__(self, folder: Path) -> None:
        self._trial = Trial(TorchExecutor(folder), (), self.likely, 0)

    async def questions(self, prompts: Sequence[Sequence[int]], clear: float) -> list[Question]:
        """Returns the positions after the prompts from which the next tokens are clear for longest.

        A clear token is this many nats likelier than any other, so that rounding cannot change the choice.
        """
        asked = [Request(each, _LOOKED_AT, return_log_probs=True, top_log_probs=2) for each in prompts]
        found = []
        for prompt, answer in zip(prompts, await self._trial.ask(*asked), strict=True):
            margins = [place.top[0][1] - place.top[1][1] for place in answer.log_probs or ()]
            begin, end = _longest_run([margin >= clear for margin in margins])
            text = answer.token_ids
            found.append(Question((*prompt, *text[:begin]), tuple(text[begin : min(end, begin + _LONGEST)])))
        found.sort(key=lambda question: len(question.text), reverse=True)
        usable = [question for question in found[:_QUESTIONS] if len(question.text) >= _CLEAR]
        if not usable:
            raise Differs(
                f"no prompt is followed by {_CLEAR} tokens that are {clear} nats likelier than others"
            )
        return usable

    async def likely(self, text: Sequence[int], count: int) -> Mapping[int, float]:
        [answer] = await self._trial.ask(Request(text, 1, return_log_probs=True, top_log_probs=count))
        assert answer.log_probs
        shares = {token: exp(value) for token, value in answer.log_probs[0].top}
        return {token: share / sum(shares.values()) for token, share in shares.items()}

    def close(self) -> None:
        self._trial.executor.shutdown()


def _longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    """Returns the start and the end of the longest run of true values."""
    best = begin = end = 0
    for at, flag in enumerate((*flags, False)):
        if not flag:
            if at - best > end - begin:
                begin, end = best, at
            best = at + 1
    return begin, end


async def try_engines(job: TrialJob) -> None:
    """Tries the engines of a job, one rule after the other."""
    if job.release is not None:
        trtllm = load_bindings(f"the image of {job.release}")
        for outcome in names(trtllm, job.release, job.build):
            job.tell(outcome)
        file = Path(job.results).with_suffix(".signatures.json")
        file.write_text(json.dumps(signatures(trtllm), indent=1))
    free = free_memory(0) if job.release is not None else 0
    start = time.monotonic()
    pair = load(job.parameters, Path(job.folder))
    loaded = f"loaded in {time.monotonic() - start:.1f} s"
    k = length_of_drafts(pair.target.limits)
    if not job.questions:
        try:
            job.tell(await times_of_steps.outcome(Trial(pair.target, (), _unknown, k), job.build))
        finally:
            pair.shutdown()
        return
    reference = Reference(Path(job.reference))
    try:
        questions = [Question(tuple(prompt), tuple(text)) for prompt, text in job.questions]
        trial = Trial(
            pair.target, questions, reference.likely, k, pair.tokenizer.end_ids, decoder(pair.tokenizer)
        )
        for rule in (*_of_pair(pair, loaded), *RULES, *_last(job, pair, free)):
            job.tell(await rule.outcome(trial, job.build))
    finally:
        pair.shutdown()
        reference.close()


def length_of_drafts(limits: Limits) -> int:
    """Returns the length of the drafts that are tried."""
    return min(limits.max_draft_len, _K)


def decoder(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    def decode(tokens: Sequence[int]) -> str:
        detokenizer = tokenizer.detokenizer()
        return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()

    return decode


async def _unknown(text: Sequence[int], count: int) -> Mapping[int, float]:
    raise NotTried("no reference of this target")


@check("times of steps", "serving/executors/tensorrt_llm", WORK, of_drafts=False)
async def times_of_steps(trial: Trial) -> str:
    """Prefill and a batch of verifications are measured; a comparison of two builds judges them."""
    limits, measured = trial.executor.limits, trial.measured
    length = min(_PREFILL, limits.max_input_len // 2)
    rows = min(_STREAMS, limits.max_batch_size)
    prefills = [
        await _seconds(trial, [Request([1 + (number + at) % 1999 for at in range(length)], 1)])
        for number in range(_TIMES)
    ]
    begun = [[2 + stream, *range(1, 64)] for stream in range(rows)]
    await trial.ask(*(Request(prompt, 1) for prompt in begun))
    asked = [Request(prompt, _DRAFTED + 1, [7] * _DRAFTED) for prompt in begun]
    batches = [await _seconds(trial, asked) for _ in range(_TIMES)]
    measured["prefill_ms"], measured["batch_ms"] = 1000 * median(prefills), 1000 * median(batches)
    return (
        f"prefill of {length} tokens {measured['prefill_ms']:.2f} ms, "
        f"{rows} x {_DRAFTED + 1} rows {measured['batch_ms']:.2f} ms"
    )


async def _seconds(trial: Trial, requests: Sequence[Request]) -> float:
    start = time.perf_counter()
    await trial.ask(*requests)
    return time.perf_counter() - start


def _of_pair(pair: EnginePair, loaded: str) -> tuple[Rule, ...]:
    """Returns what is tried of two engines, or of one that drafts by itself."""
    if (of_draft := pair.draft) is None:
        return (_DRAFTS_INSIDE,)

    async def together(trial: Trial) -> str:
        draft = replace(trial, executor=of_draft)
        alone, asked = [], [Request(question.prompt, 16) for question in trial.questions]
        for request in asked:
            alone.append(await draft.tokens(request))
        both = await asyncio.gather(draft.ask(*asked), trial.ask(*asked))
        texts = [[answer.token_ids for answer in answers] for answers in both]
        right = [list(question.text[:_CLEAR]) for question in trial.questions]
        if [text[:_CLEAR] for text in texts[1]] != right:
            raise Differs("the target's text changes while the draft runs")
        if sum(one != other for one, other in zip(texts[0], alone, strict=True)) > len(alone) // 2:
            raise Differs("the draft's text changes while the target runs")
        return loaded

    rule = "Two engines run in one process and on one GPU, each in its own cache."
    source = "§6.6, end: leader mode, one rank each"
    return (Rule("two engines", rule, source, LAYOUT, together, of_drafts=False),)


async def _drafts_inside(trial: Trial) -> str:
    steps = tokens = 0
    for question in trial.questions:
        most = min(_LOOKED_AT, trial.executor.limits.max_seq_len - len(question.prompt))
        heard = await trial.hear(Request(question.prompt, most, streaming=True))
        said = [len(response.token_ids) for response in heard if response.token_ids]
        steps, tokens = steps + len(said), tokens + sum(said)
    if steps == tokens:
        raise Differs(f"{tokens} tokens took as many steps: no draft was accepted")
    return f"{tokens} tokens in {steps} steps"


_DRAFTS_INSIDE = Rule(
    "drafts inside",
    "An engine that drafts by itself returns more tokens than it takes steps.",
    "batch_manager/trtGptModelInflightBatching.cpp, updateRequests",
    WORK,
    _drafts_inside,
    of_drafts=False,
)


def _last(job: TrialJob, pair: EnginePair, free: int) -> tuple[Rule, ...]:
    async def memory(trial: Trial) -> str:
        if job.release is None:
            raise NotTried("the plan is about GPU memory, and the torch backend uses the host's")
        taken, part = free - free_memory(0), job.planned["fraction"]
        cache = job.planned["draft_cache"] * (0 if pair.draft is None else pair.draft.kv_tokens or 0)
        most = part * free + (1 - part) * (job.planned["engines"] + cache)
        found = f"{taken / 2**30:.2f} GiB of {free / 2**30:.2f} free, planned at most {most / 2**30:.2f}"
        if taken > most:
            raise Differs(found)
        return found

    async def cost(trial: Trial) -> str:
        speeds = [await _speed(pair, trial.questions, k) for k in (0, _DRAFTED)]
        (plain, _, texts), (fast, rounds, drafted) = speeds
        clear = [list(question.text[:_CLEAR]) for question in trial.questions]
        if [text[:_CLEAR] for text in drafted] != clear or [text[:_CLEAR] for text in texts] != clear:
            raise Differs("the coordinator's text differs from the target's")
        per_round = 1000 * len(drafted) * _TOKENS / fast / rounds
        return f"{plain:.0f} tokens/s plain, {fast:.0f} with K={_DRAFTED}; {per_round:.2f} ms a round"

    return (
        Rule(
            "memory as planned",
            "Weights, workspace and KV caches take no more of a GPU than planned.",
            "pipeline/plan/memory.py; §6.2 KvCacheConfig",
            "a large build may run out of memory: make engine.max_batch_size or engine.max_seq_len smaller",
            memory,
            of_drafts=False,
        ),
        Rule(
            "a round's cost",
            "The coordinator's answer is the target's; a person must judge the numbers.",
            "serving/coordinator.py",
            DRAFTS,
            cost,
        ),
    )


async def _speed(
    pair: EnginePair, questions: Sequence[Question], k: int
) -> tuple[float, int, list[list[int]]]:
    """Returns tokens per second for the texts one after the other, the number of rounds, and the texts."""
    coordinator, texts, rounds, start = pair.coordinator(), [], 0, time.monotonic()
    for question in questions:
        asked = CompletionRequest(
            prompt_token_ids=question.prompt, max_tokens=_TOKENS, num_draft_tokens=k, end_id=-1
        )
        delta = await coordinator.complete(asked)
        assert delta.completion is not None
        texts.append(list(delta.token_ids))
        # Each round gives the accepted tokens and one of the target's own.
        rounds += len(delta.token_ids) - delta.completion.speculation.num_accepted_draft_tokens
    return len(texts) * _TOKENS / (time.monotonic() - start), rounds, texts


def main(file: str) -> None:
    job = TrialJob(**json.loads(Path(file).read_text(encoding="utf-8")))
    try:
        asyncio.run(try_engines(job))
    except Exception as error:
        rule, found = "The engines load, and run to the end.", f"{type(error).__name__}: {error}"
        source = "serving/triton/engines.py"
        job.tell(Outcome(job.build, "engines", rule, source, LAYOUT, Ruling.DIFFERS, found))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
