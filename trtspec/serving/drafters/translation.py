"""Translation between two vocabularies, of sequences into a draft's tokens and of its proposals back.

Translation goes through text, as in string-level exact match (Timor et al. 2025, "Accelerating LLM inference
with lossless speculative decoding algorithms for heterogeneous vocabularies", arXiv 2502.05202), so that each
model sees text tokenized as in its training. Where the target's tokens differ from those of its tokenizer,
tokens of the same bytes replace each other, as in that paper's token-level intersection. The target verifies
its own tokens, so a bad translation is not accepted and changes no output.
"""

from __future__ import annotations

import asyncio
import codecs
from dataclasses import replace
from itertools import accumulate, takewhile

from trtspec.serving.drafters.engine import EngineSource, room
from trtspec.serving.drafters.source import ENGINE, Drafter, Offer
from trtspec.serving.executor import DrawsByToken, Executor, Request
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text, common_prefix
from trtspec.serving.tokenizer import Tokenizer

MOST_OPEN, KEPT_OPEN = 192, 64
"""The bytes at the end whose tokens later text may change: at most, and after a part of them is settled."""
MOST_TRIED = 16
"""The number of positions that are tried as a new begin of the open end. If none works, it is all settled."""
CONTEXT = 24
"""The bytes before a proposal that are tokenized with it, up to the begin of a token."""


class Dictionary:
    """The tokenizers of a target and of a draft; translations have only ids below their models' sizes."""

    def __init__(self, target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int) -> None:
        self.target, self.draft = target, draft
        self._target_size, self._draft_size = target_size, draft_size
        self._target_within, self._draft_within = target.within(), draft.within()
        self._same: dict[bytes, int] = {}
        for token_id, own in enumerate(target.vocabulary(target_size)):
            if own:
                self._same.setdefault(own, token_id)
        self._specials: dict[int, int | None] = {}

    def to_draft(self, text: str) -> list[int]:
        """Returns the draft's tokens of a part of a text."""
        ids = self._draft_within.encode(text, add_special_tokens=False)
        return [token_id for token_id in ids if token_id < self._draft_size]

    def to_target(self, text: str) -> list[int]:
        """Returns the target's tokens of a part of a text, up to one that the target lacks."""
        ids = self._target_within.encode(text, add_special_tokens=False)
        return list(takewhile(lambda token_id: token_id < self._target_size, ids))

    def same(self, own: bytes) -> int | None:
        """Returns the target's token of these bytes; None if it has none."""
        return self._same.get(own)

    def counterparts(self) -> list[int]:
        """Returns for each token of the draft the target's of the same bytes, or an id that it lacks."""
        own = enumerate(self.draft.vocabulary(self._draft_size))
        return [self._same.get(token, self._target_size + token_id) for token_id, token in own]

    def special(self, token_id: int) -> int | None:
        """Returns the draft's token of the same name as a special token of the target; None without one."""
        if token_id not in self._specials:
            found = self.draft.id_of(self.target.name_of(token_id))
            self._specials[token_id] = None if found is None or found >= self._draft_size else found
        return self._specials[token_id]


class Translation:
    """The translation of one sequence of the target: `text` has the draft's tokens, as far as it was `read`.

    Only new text is tokenized, together with the open end before it: "un" and "believable" may be other
    tokens than "unbelievable". If tokens of the open end change, `text` becomes another `Text`. Special
    tokens that the draft lacks are left out, and so is an incomplete character at the end.
    """

    def __init__(self, dictionary: Dictionary, source: Text) -> None:
        self._words, self._source, self._num_read = dictionary, source, 0
        self.text = Text(dictionary.draft.beginning)
        self._settled, self._open, self._incomplete = len(self.text), b"", b""

    @property
    def num_unread(self) -> int:
        """The number of tokens of the target that were not read yet."""
        return len(self._source) - self._num_read

    @property
    def ratio(self) -> float:
        """The mean number of the draft's tokens for a token of the target, in what was read."""
        return max(len(self.text), 1) / self._num_read if self._num_read else 1.0

    def read(self) -> None:
        """Translates the new tokens of the target."""
        words = self._words
        for token_id in self._source[self._num_read :]:
            if own := words.target.bytes_of(token_id):
                self._open += own
            elif (special := words.special(token_id)) is not None:
                self._write()
                if self.text != words.draft.beginning or special not in self.text:
                    self.text.append(special)
                self._settled, self._open = len(self.text), b""
        self._num_read = len(self._source)
        self._write()
        if len(self._open) > MOST_OPEN:
            self._settle()

    def translated(self, proposal: list[int]) -> list[int]:
        """Returns the draft's proposal after `text` in the target's tokens, up to a special token."""
        proposed = list(takewhile(bool, map(self._words.draft.bytes_of, proposal)))
        whole, done = b"".join(proposed), len(self._incomplete)
        if not whole.startswith(self._incomplete):
            return []
        found = self._in_context(whole[done:])
        done += sum(len(self._words.target.bytes_of(token_id)) for token_id in found)
        for own, begin in zip(proposed, accumulate(map(len, proposed), initial=0), strict=False):
            if begin < done:
                continue
            if begin > done or (same := self._words.same(own)) is None:
                break
            found.append(same)
            done += len(own)
        return found

    def _in_context(self, new: bytes) -> list[int]:
        """Returns the target's tokens of new bytes, tokenized together with some of the text before them.

        There are none if a token would span the end of the sequence, or if tokenization changes bytes.
        """
        before, bytes_of = self._before(), self._words.target.bytes_of
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(before + new)
        except UnicodeDecodeError:
            return []
        ids = self._words.to_target(text)
        ends = [0, *accumulate(len(bytes_of(token_id)) for token_id in ids)]
        if len(before) not in ends:
            return []
        ids = ids[ends.index(len(before)) :]
        return ids if new.startswith(b"".join(map(bytes_of, ids))) else []

    def _before(self) -> bytes:
        """Returns the last bytes of the sequence, from the begin of a character on."""
        found = b""
        for token_id in reversed(self._source[-CONTEXT:]):
            own = self._words.target.bytes_of(token_id)
            if not own or (len(found) >= CONTEXT and not _is_within_character(found)):
                break
            found = own + found
        while _is_within_character(found):
            found = found[1:]
        return found

    def _write(self) -> None:
        """Replaces the tokens of the open end from the first that changes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        ids, before = self._words.to_draft(decoder.decode(self._open)), self.text[self._settled :]
        self._incomplete = decoder.getstate()[0]
        same = common_prefix(before, ids, min(len(before), len(ids)))
        if same < len(before):
            self.text = self.text.beginning(self._settled + same)
        self.text.extend(ids[same:])

    def _settle(self) -> None:
        """Settles the open end except its last bytes, at a position where that changes no token."""
        ids = self.text[self._settled :]
        ends = [0, *accumulate(len(self._words.draft.bytes_of(token_id)) for token_id in ids)]
        latest = max((n for n, end in enumerate(ends) if ends[-1] - end >= KEPT_OPEN), default=0)
        for number in range(latest, max(latest - MOST_TRIED, 0), -1):
            rest = self._open[ends[number] :]
            if self._words.to_draft(rest.decode("utf-8", "ignore")) == ids[number:]:
                self._settled, self._open = self._settled + number, rest
                return
        self._settled, self._open = len(self.text), self._incomplete


def _is_within_character(own: bytes) -> bool:
    return bool(own) and own[0] & 0xC0 == 0x80


LONG = 1024
"""The number of new tokens from which a translation takes milliseconds."""


class TranslatedSource:
    """Asks the draft engine in its own tokens, by the dictionary."""

    def __init__(self, engine: EngineSource, dictionary: Dictionary, stats: Stats) -> None:
        self.engine, self.dictionary, self.stats = engine, dictionary, stats

    def drafter(self, text: Text, tenant: str = "") -> TranslatedDrafter:
        return TranslatedDrafter(self, text)

    def reap(self, now: float) -> None:
        self.engine.reap(now)


class TranslatedDrafter(Drafter):
    """Proposes tokens of the draft engine for one sequence, of which it keeps a translation.

    It asks the draft for the average number of its tokens in `request.max_tokens` tokens of the target, and
    cuts off the rest of the proposal. Translation is part of a proposal, so its time belongs to the round.
    """

    pause = 64
    silence = "draft_at_rest"

    def __init__(self, source: TranslatedSource, text: Text) -> None:
        self._source, self._translation = source, Translation(source.dictionary, text)

    def offer(self) -> Offer | None:
        if self._source.engine.is_at_rest():
            return None
        translation = self._translation
        left = room(self._source.engine.limits, translation.text) / translation.ratio
        return Offer(ENGINE, max(0, int(left) - translation.num_unread))

    async def propose(self, request: Request, deadline: float) -> list[int]:
        translation, source = self._translation, self._source
        if translation.num_unread > LONG:
            await asyncio.to_thread(translation.read)  # The loop goes on with other rounds.
        else:
            translation.read()
        max_tokens = max(1, round(request.max_tokens * translation.ratio))
        max_tokens = min(max_tokens, room(source.engine.limits, translation.text)) if translation.text else 0
        if not max_tokens:
            return self._nothing()
        proposal = await source.engine.propose(self._translate(request, max_tokens), deadline)
        found = translation.translated(proposal)[: request.max_tokens]
        return found if found or not proposal else self._nothing()

    def _translate(self, request: Request, max_tokens: int) -> Request:
        """Returns the request in the draft's tokens.

        It leaves out options with tokens of the target, and the guide, which is compiled for the target.
        """
        ends = self._source.dictionary.draft.end_ids
        return replace(
            request,
            input_token_ids=self._translation.text,
            max_tokens=max_tokens,
            end_id=ends[0] if ends and request.end_id is not None else None,
            bad_words=(),
            embedding_bias={},
            return_log_probs=False,
            top_log_probs=0,
            guide=None,
            num_guided=0,
        )

    def _nothing(self) -> list[int]:
        self._source.stats.fallbacks["draft_untranslated"] += 1
        return []


def draw_alike(target: Executor, draft: Executor, dictionary: Dictionary) -> bool:
    """Makes the draft draw as the target does, and returns True if both engines can."""
    if not isinstance(target, DrawsByToken) or not isinstance(draft, DrawsByToken):
        return False
    draft.draw_as(dictionary.counterparts())
    return True
