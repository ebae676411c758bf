"""Replay against real speculative decoding: the same rounds, whatever proposes, for every K."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.suffix import SUFFIX
from tests.perf.pair import built, heldout
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, EndReason
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting
from trtspec.serving.executor import Executor, SamplingConfig
from trtspec.serving.executors.torch.torch_executor import load_engines
from trtspec.serving.stats import SpeculationCounts
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import replay
from trtspec.train.tune.teacher_forcing import TeacherForcing

TOKENS, LONGEST = 32, 8
METHODS = {
    "draft_model": DRAFT_MODEL,
    "ngram": Drafting("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 8}),
    "suffix": SUFFIX,
    "hybrid": Drafting("hybrid", {"prompt_lookup_min": 2, "prompt_lookup_max": 8}),
}
FREE = ("ngram", "suffix")
ROWS = "rows = [\n" + '    {"name": "apple", "size": 3},\n    {"name": "table", "size": 5},\n' * 3
"""A text that repeats itself, so that something is looked up."""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("pair"), "float32")


class Pair:
    """The tiny pair, and what speculative decoding counts of each answer."""

    def __init__(self, build: Path) -> None:
        self.tokenizer = Tokenizer.load(build / "tokenizer")
        self.engines: list[Executor] = list(
            load_engines([build / role / "engine" for role in ("target", "draft")])
        )
        self._build = build
        self.end_with(None)

    def end_with(self, text: str | None) -> None:
        """Has texts end with a token that the pair says, since it was taught no end."""
        ends = self.tokenizer.encode(text)[-1:] if text else ()
        self.tokenizer.end_ids = tuple(ends)
        size = self.engines[0].limits.vocab_size
        self.forced = TeacherForcing(self._build / "draft" / "engine", "cpu", size, self.tokenizer.end_ids)

    def said(
        self,
        answer: RecordedAnswer | None,
        prompt: str,
        drafting: Drafting,
        length: int,
        sampling: SamplingConfig,
    ) -> tuple[RecordedAnswer, dict[str, SpeculationCounts]]:
        target, draft = self.engines
        coordinator = assemble(target, draft, self.tokenizer, drafting=drafting)
        token_ids = self.tokenizer.encode(prompt)
        request = CompletionRequest(
            prompt_token_ids=token_ids,
            # The limit of an answer that ended by itself is out of sight.
            max_tokens=4 * TOKENS if answer and answer.stopped else TOKENS,
            num_draft_tokens=length,
            sampling=sampling,
        )
        delta = asyncio.run(coordinator.complete(request))
        assert delta.completion
        stopped = delta.completion.end_reason is EndReason.END_ID
        made = RecordedAnswer("", "", tuple(token_ids), tuple(delta.token_ids), stopped, sampling)
        return made, {origin: c for origin, c in coordinator.stats.by_origin.items() if c.num_spec_steps}


@pytest.fixture(scope="module")
def pair(build: Path) -> Iterator[Pair]:
    found = Pair(build)
    yield found
    for engine in found.engines:
        engine.shutdown()


def counts(
    answer: RecordedAnswer, pair: Pair, drafting: Drafting, length: int
) -> dict[str, SpeculationCounts]:
    choices = pair.forced.choices(answer) if drafting.kind not in FREE else None
    found: dict[str, SpeculationCounts] = {}
    for round, count in replay(
        answer, drafting, choices if choices is None else [choices] * length, length
    ).rounds.items():
        for _ in range(count if round.length else 0):
            found.setdefault(round.origin, SpeculationCounts()).record(round.length, round.accepted)
    return found


def outcome(counted: dict[str, SpeculationCounts]) -> dict[str, tuple[int, int, list[int]]]:
    """All that depends on what was accepted, and not on what was drafted in vain."""
    return {
        origin: (c.num_spec_steps, c.num_accepted_draft_tokens, [n for n in c.accepted_per_position if n])
        for origin, c in counted.items()
    }


@pytest.mark.parametrize(
    "case", ["greedy", *(pytest.param(case, marks=pytest.mark.sweep) for case in ("sampled", "ended"))]
)
@pytest.mark.parametrize("method", METHODS)
def test_a_replay_counts_what_speculative_decoding_counts(pair: Pair, method: str, case: str) -> None:
    sampling = SamplingConfig(temperature=0.8, top_p=0.9, seed=5) if case == "sampled" else SamplingConfig()
    pair.end_with(")" if case == "ended" else None)
    drafting, origins, stopped = METHODS[method], Counter[str](), 0
    for prompt in (*heldout(2), ROWS):
        answer, _ = pair.said(None, prompt, DRAFT_MODEL, 0, sampling)
        stopped += answer.stopped
        for length in (2, LONGEST):
            again, counted = pair.said(answer, prompt, drafting, length, sampling)
            assert again == answer
            replayed = counts(answer, pair, drafting, length)
            if case == "ended":  # Behind a wrong token a draft may end too, which a replay does not see.
                assert outcome(replayed) == outcome(counted)
            else:
                assert replayed == counted
            origins.update(list(counted))
    wanted = {"draft_model": {"engine"}, "hybrid": {"engine", "lookup"}}
    assert set(origins) == ({"lookup"} if method in FREE else wanted[method])
    assert (stopped > 0) == (case == "ended")
