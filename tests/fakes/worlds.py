"""Deployments and their clients, as hypothesis thinks of them, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.fakes.expected import STOPS
from tests.fakes.languages import chatter
from tests.fakes.scripted_executor import NextToken, agreeing
from tests.fakes.suffix import SUFFIX
from tests.fakes.unreliable import Fault
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.executor import Limits, SamplingConfig
from trtspec.serving.rollout.state import RolloutState

VOCAB = 267
"""The tokens of the `byte_level` tokenizer: bytes, words from 256, and added ones from 264.

Without the last, `<café>`, which the tokenizers library itself decodes otherwise.
"""
END, OTHER_END = 264, 265
LETTERS = (64, 65, 75, 78, 198, 158, 102)
WORDS = (*LETTERS, 256, 257, 258, 262, END, OTHER_END, 266)
MOST_VISITS = 7
"""Fewer than the failures of the target in a row that make the coordinator look whether it works at all."""


@dataclass(frozen=True)
class Language:
    """What the target says: `words` over and over again, or drawn from them by what is before."""

    words: Sequence[int]
    repeats: bool

    def next_token(self, sequence: Sequence[int]) -> int:
        if self.repeats:
            return self.words[len(sequence) % len(self.words)]
        return chatter(self.words, 1)(sequence)


@dataclass(frozen=True)
class Visit:
    """A client: when it comes, what it asks for, and when it loses patience.

    `target_fault` are the number, from 0, of the request of this client to which the target does that.
    """

    at_s: float
    request: CompletionRequest
    language: Language
    streams: bool = False
    leaves_after_s: float | None = None
    target_fault: tuple[int, Fault] | None = None


@dataclass(frozen=True)
class World:
    """A deployment and its clients; `draft_faults` befall the requests to the draft in turn, and again.

    The roll-out stands at each of `stands` in turn, and again; None is a file that is gone.
    """

    target: Limits
    draft: Limits
    drafting: Drafting
    policy: Policy
    num_draft_tokens: int | None
    agreement: float
    delays: tuple[float, float]
    trims: int | None
    places: int
    queue: int
    kv_tokens: int | None
    draft_faults: Sequence[Fault | None]
    stands: Sequence[RolloutState | None]
    visits: Sequence[Visit]

    def language(self, sequence: Sequence[int]) -> int:
        """What the target says; the first token of a prompt tells the client."""
        return self.visits[sequence[0]].language.next_token(sequence)

    @property
    def drafted(self) -> NextToken:
        says = agreeing(self.language, self.draft.vocab_size, self.agreement)
        return lambda sequence: says(sequence) % self.draft.vocab_size

    def wanted(self, visit: Visit, index: int = 0) -> CompletionRequest:
        """The request for completion `index` alone, as far as it fits the target."""
        request, sampling = visit.request, visit.request.sampling
        room = self.target.max_seq_len - self.target.max_draft_len - len(request.prompt_token_ids or ())
        if sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + index * 2**40) % 2**64)
        return replace(request, max_tokens=min(request.max_tokens, room), sampling=sampling)

    def longest_draft(self, visit: Visit) -> int:
        """The K that no round of this client may exceed."""
        given = (visit.request.num_draft_tokens, self.num_draft_tokens, self.target.max_draft_len)
        return next(length for length in given if length is not None)


@st.composite
def limits(draw: st.DrawFn) -> tuple[Limits, Limits]:
    longest, draft_longest = draw(st.sampled_from([64, 400])), draw(st.sampled_from([40, 64, 400]))
    target = Limits(
        max_batch_size=8,
        max_input_len=longest - 1,
        max_seq_len=longest,
        max_draft_len=draw(st.integers(1, 8)),
        vocab_size=VOCAB,
    )
    vocab_size = draw(st.sampled_from([VOCAB, VOCAB - 3, VOCAB + 30]))
    return target, Limits(8, draft_longest - 1, draft_longest, max_draft_len=0, vocab_size=vocab_size)


@st.composite
def draftings(draw: st.DrawFn) -> Drafting:
    kind = draw(st.sampled_from(["draft_model", "ngram", "hybrid", "suffix"]))
    if kind == "suffix":
        return SUFFIX
    least = draw(st.integers(1, 6))
    options = {"prompt_lookup_min": least, "prompt_lookup_max": least + draw(st.integers(0, 6))}
    options["earlier_answers"] = draw(st.sampled_from([0, 30, 400]))
    return Drafting(kind, {} if kind == "draft_model" else options)


seeds = st.integers(0, 5) | st.just(2**64 - 3)
samplings = st.builds(
    SamplingConfig,
    temperature=st.none() | st.just(1.0),
    seed=seeds,
    min_tokens=st.none() | st.integers(1, 20),
)


@st.composite
def visits(draw: st.DrawFn, index: int, longest: int, places: int, is_calm: bool) -> Visit:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=10))
    language = Language(words, repeats=draw(st.booleans()))
    some = draw(st.lists(st.sampled_from(WORDS), max_size=12))
    tail = draw(st.sampled_from([words * 3, words, some]))
    request = CompletionRequest(
        prompt_token_ids=[index, *tail],
        max_tokens=draw(st.integers(1, 48)),
        num_draft_tokens=draw(st.none() | st.integers(0, longest)),
        stop=draw(st.lists(st.sampled_from(STOPS), max_size=2, unique=True).map(tuple)),
        bad_words=draw(st.lists(st.sampled_from(["a", "ab", "lo", "é"]), max_size=1).map(tuple)),
        sampling=draw(st.just(SamplingConfig()) | samplings),
        end_id=draw(st.sampled_from([None, None, NO_END, LETTERS[0]])),
        tenant=draw(st.sampled_from(["", "one", "one", "other"])),
        num_return_sequences=draw(st.sampled_from([1, 1, 1, 2]) if places > 1 else st.just(1)),
    )
    visit = Visit(draw(st.integers(0, 40)) / 100, request, language, draw(st.booleans()))
    if is_calm:
        return visit
    faults = st.tuples(st.integers(0, 6), st.sampled_from([Fault.FAILS, Fault.HANGS]))
    return replace(
        visit,
        request=replace(request, timeout_s=draw(st.none() | st.sampled_from([0.001, 0.1, 0.7]))),
        leaves_after_s=draw(st.none() | st.integers(0, 80).map(lambda hundredths: hundredths / 100)),
        target_fault=draw(st.none() | faults),
    )


regular = [(*[None] * gap, fault) for fault in Fault for gap in (0, 1, 4)]
stands = st.none() | st.builds(
    RolloutState, st.sampled_from(["speculate", "shadow"]), st.sampled_from([0.0, 0.3, 0.5, 1.0])
)
draft_faults = st.sampled_from([(), *regular]) | st.lists(st.sampled_from([None, *Fault]), max_size=8)


@st.composite
def worlds(draw: st.DrawFn, is_calm: bool) -> World:
    """Where it `is_calm`, every client stays, has a place or waits for one, and the target works."""
    target, draft = draw(limits())
    places, count = draw(st.integers(1, 4)), draw(st.integers(1, MOST_VISITS))
    longest = target.max_draft_len
    return World(
        target=target,
        draft=draft,
        drafting=draw(draftings()),
        policy=draw(st.sampled_from(["fixed", "adaptive"])),
        num_draft_tokens=draw(st.none() | st.none() | st.integers(0, longest)),
        agreement=draw(st.sampled_from([0.0, 0.6, 0.95, 1.0])),
        delays=draw(st.sampled_from([(0.0101, 0.0013), (0.0101, 0.0103), (0.0017, 0.0107)])),
        trims=draw(st.none() | st.integers(0, 9)),
        places=places,
        queue=2 * MOST_VISITS if is_calm else draw(st.integers(0, MOST_VISITS)),
        kv_tokens=draw(st.none() | st.integers(60, 400)),
        draft_faults=draw(draft_faults),
        stands=draw(st.just(()) | st.lists(stands, min_size=1, max_size=4)),
        visits=[draw(visits(index, longest, places, is_calm)) for index in range(count)],
    )
