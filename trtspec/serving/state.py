"""The state of one completion between its rounds, the seeds of its requests, and whether it has rounds."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trtspec.serving.completion import Completion, Delta, EndReason
from trtspec.serving.executor import Guide, LogProb, Request, SamplingConfig
from trtspec.serving.stats import SpeculationCounts
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Detokenizer


class StopMatcher:
    """Passes text on up to the first complete stop string.

    It is the automaton of Aho and Corasick (1975). Its depth after a character is the length of the longest
    suffix of the text that begins a stop string, which is the part to hold back. A character costs the same
    for any number of strings. Of several strings that end at the same character, the longest is cut off.
    With `is_included` none is.
    """

    def __init__(self, stops: Iterable[str], *, is_included: bool = False) -> None:
        self.found, self.is_included = False, is_included
        self._held = ""
        self._node = 0
        # One entry for each node. Node 0 is the empty string.
        self._children: list[dict[str, int]] = [{}]
        self._firsts = self._children[0].keys()
        self._depth = [0]
        self._shorter = [0]  # the node of the longest proper suffix that begins a stop string
        self._match = [0]  # the length of the longest stop string that ends here, 0 for none
        for stop in stops:
            self._add(stop)
        self._link()

    def push(self, text: str) -> str:
        """Returns the text that can be sent now. It must not be called once `found` is true."""
        if not self._node and self._firsts.isdisjoint(text):
            return text
        for position, char in enumerate(text, 1):
            self._node = self._step(self._node, char)
            if match := self._match[self._node]:
                self.found = True
                shown = self._held + text[:position]
                shown = shown if self.is_included else shown[:-match]
                self._held = ""
                return shown
        seen = self._held + text
        border = len(seen) - self._depth[self._node]
        self._held = seen[border:]
        return seen[:border]

    def flush(self) -> str:
        """Returns the text that was held back, at the end of a text without a stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._children[node]:
            node = self._shorter[node]
        return self._children[node].get(char, 0)

    def _add(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._children[node]:
                self._children[node][char] = len(self._depth)
                self._children.append({})
                self._depth.append(self._depth[node] + 1)
                self._shorter.append(0)
                self._match.append(0)
            node = self._children[node][char]
        self._match[node] = len(stop)

    def _link(self) -> None:
        waiting = deque(self._children[0].values())
        while waiting:
            node = waiting.popleft()
            for char, child in self._children[node].items():
                self._shorter[child] = self._step(self._shorter[node], char)
                self._match[child] = self._match[child] or self._match[self._shorter[child]]
                waiting.append(child)


NUM_SEEDS = 2**64


def with_seed(sampling: SamplingConfig) -> SamplingConfig:
    """Returns the options with a random seed, if they sample and have none.

    An engine gives every request without a seed the same one, so all rounds would draw the same numbers.
    """
    if sampling.is_greedy or sampling.seed is not None:
        return sampling
    return replace(sampling, seed=secrets.randbelow(NUM_SEEDS))


def at_token(sampling: SamplingConfig, position: int) -> SamplingConfig:
    """Returns the options of a request that starts with token `position` of a completion.

    Draft and target get the same options, so both draw the same number for the same token and agree more
    often. The output still has the target's own distribution.
    """
    if sampling.is_greedy or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + position) % NUM_SEEDS)


@dataclass(slots=True)
class CompletionState:
    """The state of one completion."""

    text: Text
    """The sequence: the prompt and the generated tokens."""
    num_input_tokens: int
    max_tokens: int
    """The largest number of generated tokens, which fits the engine."""
    min_tokens: int
    max_draft_len: int
    """The largest K of a round."""
    sampling: SamplingConfig
    end_ids: tuple[int, ...]
    """Any of these ends the completion after `min_tokens` tokens. Requests to engines have only the first."""
    stop: StopMatcher
    detokenizer: Detokenizer
    embedding_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[Sequence[int]] = ()
    return_log_probs: bool = False
    top_log_probs: int = 0
    guide: Guide | None = None
    undrafted_for: tuple[str, ...] = ()
    fallbacks: Counter[str] = field(default_factory=Counter)
    """The number of rounds and bursts without a draft, by reason; empty if none was asked for."""
    speculation: SpeculationCounts = field(default_factory=SpeculationCounts)
    end_reason: EndReason | None = None
    num_cached_tokens: int | None = None
    """The number of the input tokens that the target's KV cache had; None if it is not reported."""

    @property
    def _most_often_why(self) -> tuple[str, ...]:
        """The usual reason if no round had a draft; the last token alone is one only if it was all."""
        if self.speculation.num_spec_steps:
            return ()
        return tuple(sorted(self.fallbacks, key=lambda why: (why == "last_token", -self.fallbacks[why]))[:1])

    @property
    def num_output_tokens(self) -> int:
        return len(self.text) - self.num_input_tokens

    @property
    def num_remaining(self) -> int:
        return self.num_input_tokens + self.max_tokens - len(self.text)

    @property
    def num_endless(self) -> int:
        """The number of tokens that must still come before an end token may, within `max_tokens`.

        It is 0 or less if enough came, if there is no end token, or if the engine gets `min_tokens` itself.
        """
        if not self.min_tokens or not self.end_ids or self.sampling.min_tokens:
            return 0
        return min(self.min_tokens, self.max_tokens) - self.num_output_tokens

    def request(
        self,
        max_tokens: int,
        draft_token_ids: Sequence[int] = (),
        sampling: SamplingConfig | None = None,
        streaming: bool = False,
    ) -> Request:
        """Returns the request that continues the sequence, or that verifies the draft.

        `sampling` may be that of another request at the same token, which saves the time to make it.
        """
        return Request(
            input_token_ids=self.text,
            max_tokens=max_tokens,
            draft_token_ids=draft_token_ids,
            end_id=self.end_ids[0] if self.end_ids else None,
            sampling=sampling or at_token(self.sampling, self.num_output_tokens),
            streaming=streaming,
            bad_words=self.bad_words,
            embedding_bias=self.embedding_bias,
            return_log_probs=self.return_log_probs,
            top_log_probs=self.top_log_probs,
            guide=self.guide,
            num_guided=self.num_output_tokens if self.guide else 0,
        )

    def endless_request(self, max_tokens: int) -> Request:
        """Returns the request that continues the sequence and bans all its end tokens.

        An engine's own `min_tokens` bans only one end token.
        """
        return replace(
            self.request(max_tokens, streaming=True),
            end_id=None,
            bad_words=[*self.bad_words, *([end_id] for end_id in self.end_ids)],
            guide=self.guide and replace(self.guide, end_ids=()),
        )

    def take(
        self,
        new: Sequence[int],
        end_reason: EndReason | None = None,
        log_probs: Sequence[LogProb] | None = None,
    ) -> Delta:
        """Adds the target's tokens up to the end of the completion, and returns them with their `log_probs`.

        `end_reason` is the engine's own.
        """
        text, taken, before = "", list(new), self.num_output_tokens
        # The engine's output has no end token.
        ended_by = self.end_ids[0] if end_reason is EndReason.END_ID and self.end_ids else None
        for index, token_id in enumerate(new):
            if token_id in self.end_ids and before + index >= self.min_tokens:
                end_reason, ended_by = EndReason.END_ID, token_id
                del taken[index:]
                break
            text += self.stop.push(self.detokenizer.push(token_id))
            if self.stop.found:
                end_reason = EndReason.STOP
                del taken[index + 1 :]
                break
        else:
            if before + len(new) == self.max_tokens:
                end_reason = EndReason.LENGTH
        self.text.extend(taken)
        probs = None if log_probs is None else list(log_probs[: len(taken)])
        if end_reason is None:
            return Delta(text, taken, log_probs=probs)

        if end_reason is EndReason.END_ID and ended_by is not None and self.stop.is_included:
            text += self.stop.push(self.detokenizer.push(ended_by))
        if end_reason is not EndReason.STOP:
            text += self.stop.push(self.detokenizer.flush()) + self.stop.flush()
        self.end_reason = end_reason
        completion = Completion(
            end_reason,
            self.num_input_tokens,
            self.num_output_tokens,
            self.speculation,
            self.undrafted_for or self._most_often_why,
            self.max_draft_len,
            self.num_cached_tokens,
        )
        return Delta(text, taken, completion, probs)


def unsplittable_options(
    sampling: SamplingConfig, guide: Guide | None, resumes_guides: bool
) -> tuple[str, ...]:
    """Returns the options with which a completion must be one request: in several its tokens might differ.

    These are penalties: an engine computes them over the tokens that the request itself generated, and the
    tokens of earlier rounds are the prompt of a round. With TensorRT-LLM a guide is one too: its matcher
    begins anew in each request's first context step, and it masks one row of logits a request, where a
    verification has a row for each draft token (`build` and `execute` of `batch_manager/guidedDecoder.cpp`).
    """
    forbids_guide = guide is not None and not resumes_guides
    return (*sampling.penalties, *(("guided_decoding_guide_type",) if forbids_guide else ()))
