"""None"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import vocabularies
from tests.fakes.languages import Run
from tests.fakes.scripted_executor import ScriptedExecutor, agreeing, babble, echo
from tests.support.draft_failures import draft_failures
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.drafters.translation import LONG, MOST_OPEN, Dictionary, Translation
from trtspec.serving.executor import Limits, Request, SamplingConfig
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer

WORDS = [(71, 68), (75, 75), (256, 257), (258, 78), (220, 86), (220, 71)]


def dictionary(target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer) -> Dictionary:
    ours, theirs = Tokenizer(target), Tokenizer(draft)
    return Dictionary(ours, theirs, ours.size, theirs.size)


def bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.bytes_of, ids))


def whole(text: bytes) -> bytes:
    """The text without the beginning of a character at its end."""
    for end in range(len(text), max(len(text) - 4, -1), -1):
        try:
            text[:end].decode()
        except UnicodeDecodeError:
            continue
        return text[:end]
    raise AssertionError(text)


def in_pieces(words: Dictionary, ids: Sequence[int], cuts: Sequence[int]) -> Translation:
    text = Text(())
    translation = Translation(words, text)
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        text.extend(ids[begin:end])
        translation.read()
    return translation


@settings(max_examples=30, deadline=None)
@given(vocabularies.vocabularies, vocabularies.vocabularies)
def test_a_counterpart_has_the_same_bytes_or_is_nothing_of_the_targets(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer
) -> None:
    words = dictionary(target, draft)
    for token_id, found in enumerate(words.counterparts()):
        own = words.draft.bytes_of(token_id)
        if found < words.target.size:
            assert words.target.bytes_of(found) == own
        else:
            assert not own or own not in words.target.vocabulary(words.target.size)


@settings(max_examples=30, deadline=None)
@given(vocabularies.vocabularies, vocabularies.vocabularies, vocabularies.texts, st.data())
def test_the_draft_reads_the_same_text(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer, text: str, data: st.DataObject
) -> None:
    words = dictionary(target, draft)
    ids = words.target.encode(text, add_special_tokens=False)
    said = bytes_of(words.target, ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    translation = in_pieces(words, ids, cuts)
    assert bytes_of(words.draft, translation.text) == said
    assert bytes_of(words.draft, in_pieces(words, ids[: cuts[0]] if cuts else ids, []).text) == whole(
        bytes_of(words.target, ids[: cuts[0]] if cuts else ids)
    )
    if len(said) <= MOST_OPEN and "<|" not in text and "</s>" not in text:
        assert translation.text == words.to_draft(said.decode())


@settings(max_examples=30, deadline=None)
@given(vocabularies.vocabularies, vocabularies.vocabularies, vocabularies.texts, st.data())
def test_a_proposal_says_what_the_draft_said(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer, text: str, data: st.DataObject
) -> None:
    words = dictionary(target, draft)
    ids = words.target.encode(text, add_special_tokens=False)
    end = data.draw(st.integers(0, len(ids)))
    translation = in_pieces(words, ids[:end], [])
    said = data.draw(st.lists(st.integers(0, words.draft.size - 1), max_size=8))
    found = translation.translated(said)
    assert max(found, default=0) < words.target.size
    before = bytes_of(words.target, ids[:end])
    heard = before[len(whole(before)) :] + bytes_of(words.target, found)
    assert (bytes_of(words.draft, said) + b"\0").startswith(heard) or not found


@settings(max_examples=30, deadline=None)
@given(vocabularies.byte_levels, vocabularies.byte_levels, vocabularies.texts, st.data())
def test_a_translated_draft_is_in_the_tokens_that_the_target_would_say(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer, text: str, data: st.DataObject
) -> None:
    """Up to a last token of which the draft may not have said all."""
    words = dictionary(target, draft)
    ids = words.target.encode(text, add_special_tokens=False)
    end = data.draw(st.integers(0, len(ids)))
    translation = in_pieces(words, ids[:end], [])
    rest = words.to_draft(text)[len(translation.text) :]
    if bytes_of(words.draft, translation.text) + bytes_of(words.draft, rest) != text.encode():
        return  # The draft has joined what the target has not said yet to what it has.
    if "<|" not in text:
        assert translation.translated(rest) == ids[end:]


def test_a_word_is_cut_anew_when_it_goes_on() -> None:
    words = dictionary(vocabularies.byte_level([]), vocabularies.byte_level(WORDS))
    translation = in_pieces(words, words.target.encode("hell"), [])
    before = translation.text
    assert translation.text == words.draft.encode("hell")
    translation._source.extend(words.target.encode("o he"))
    translation.read()
    assert translation.text == words.draft.encode("hello he")
    assert before == words.draft.encode("hell")


def test_the_same_text_object_goes_on_where_nothing_is_cut_anew() -> None:
    words = dictionary(vocabularies.byte_level([]), vocabularies.byte_level(WORDS))
    translation = in_pieces(words, words.target.encode("hello"), [])
    before = translation.text
    translation._source.extend(words.target.encode(" world"))
    translation.read()
    assert translation.text is before


def test_a_long_text_is_cut_as_the_tokenizer_cuts_it() -> None:
    words = dictionary(vocabularies.byte_level(WORDS[:2]), vocabularies.byte_level(WORDS))
    text = "hello world, hell of a whale; she helped him well. " * 40
    ids = words.target.encode(text)
    translation = in_pieces(words, ids, range(7, len(ids), 7))
    assert translation.text == words.draft.encode(text)
    assert len(translation._open) <= MOST_OPEN


def test_shuffled_ids_are_translated_token_by_token() -> None:
    """Even where the target has cut a word as its tokenizer would not."""
    inner = vocabularies.byte_level(WORDS)
    other, new = vocabularies.shuffled(inner)
    words = dictionary(inner, other)
    translation = in_pieces(words, [inner.token_to_id(letter) for letter in "hel"], [])
    said = [inner.token_to_id(letter) for letter in "lo!"]
    assert translation.translated([new[token_id] for token_id in said]) == said


def test_special_tokens() -> None:
    """One of the same name is the draft's own, others have no text; a proposal ends before one."""
    target, draft = vocabularies.byte_level([]), vocabularies.byte_level(WORDS, end="</s>")
    words = dictionary(target, draft)
    end, turn = map(target.token_to_id, ("<|end|>", "<|turn|>"))
    hello = words.target.encode("hello")
    translation = in_pieces(words, [*hello, turn, *hello, end, *hello], [])
    theirs = words.draft.encode("hello")
    again = words.draft.encode("hellohello")
    assert translation.text == [*theirs, draft.token_to_id("<|turn|>"), *again]
    assert translation.translated([*theirs, draft.token_to_id("</s>"), *theirs]) == hello


def test_the_drafts_beginning_comes_once() -> None:
    inner = vocabularies.sentence_piece(["hello"])
    inner.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    words = dictionary(inner, inner)
    ids = words.target.encode("hello")
    assert in_pieces(words, ids, []).text == ids
    plain = dictionary(vocabularies.byte_level([]), inner)
    assert in_pieces(plain, plain.target.encode(" hello"), []).text == ids


@pytest.mark.parametrize("character", ["é", "你", "😀"])
def test_a_character_that_is_cut_in_two(character: str) -> None:
    """The draft reads it once it is whole; what it says is proposed without the bytes that are there."""
    words = dictionary(vocabularies.byte_level([]), vocabularies.byte_level(WORDS))
    ids = words.target.encode(f"hello {character}!")
    for end in range(len("hello ") + 1, len(ids) - 1):
        translation = in_pieces(words, ids[:end], [])
        assert translation.text == words.draft.encode("hello ")
        assert translation.translated(words.draft.encode(f"{character}!")) == ids[end:]
        assert translation.translated(words.draft.encode("hello")) == []


SAID_WORDS = [(71, 68), (75, 75), (256, 257), (258, 78), (220, 86), (220, 71)]
TEXT = "hello world, hell of a whale; she helped him well. é 你好 😀 "


def limits(tokenizer: Tokenizer, draft: bool = False) -> Limits:
    return Limits(4, 4000, 4000, 0 if draft else 8, tokenizer.size)


def served(inner: tokenizers.Tokenizer, end: str = "<|end|>") -> Tokenizer:
    end_id = inner.token_to_id(end)
    return Tokenizer(inner, () if end_id is None else (end_id,))


def speaking(tokenizer: Tokenizer, text: str) -> ScriptedExecutor:
    """A draft that says this text from its beginning on, prompt included."""
    language = echo(tokenizer.encode(text), tokenizer.end_ids[0], prompt_len=0)
    return ScriptedExecutor(limits(tokenizer, draft=True), language)


def target_of(tokenizer: Tokenizer, prompt: Sequence[int], answer: Sequence[int]) -> ScriptedExecutor:
    language = echo(answer, tokenizer.end_ids[0], prompt_len=len(prompt))
    return ScriptedExecutor(limits(tokenizer), language)


async def completed(
    ours: Tokenizer,
    target: ScriptedExecutor,
    draft: ScriptedExecutor | None,
    theirs: Tokenizer,
    **wanted: Any,
) -> Delta:
    coordinator = assemble(target, draft, ours, draft_tokenizer=theirs)
    return await coordinator.complete(CompletionRequest(**wanted))


def rate(delta: Delta) -> float:
    assert delta.completion is not None
    return delta.completion.speculation.draft_acceptance_rate


@settings(max_examples=25, deadline=None)
@given(
    vocabularies.byte_levels,
    vocabularies.vocabularies,
    vocabularies.texts,
    st.integers(0, 3),
    st.integers(1, 8),
    st.sampled_from([(), ("el",), ("é",), (" ",), ("😀", "b")]),
    st.booleans(),
)
def test_nothing_changes_the_text(
    target: tokenizers.Tokenizer,
    draft: tokenizers.Tokenizer,
    text: str,
    seed: int,
    length: int,
    stop: tuple[str, ...],
    is_random: bool,
) -> None:
    ours, theirs = served(target), served(draft)
    ours.end_ids = ours.end_ids or (ours.size - 2,)
    prompt, answer = ours.encode("ab"), ours.encode(text)
    language = babble(theirs.size, context=1 + seed)
    if not is_random and theirs.end_ids:
        language = speaking(theirs, "ab" + text).next_token
    saying = target_of(ours, prompt, answer)
    if seed == 3:
        saying.next_token = babble(ours.size)
    wanted = {
        "prompt_token_ids": prompt, "max_tokens": 60, "num_draft_tokens": length, "stop": stop,
        "sampling": SamplingConfig(temperature=1.0, seed=seed) if seed else SamplingConfig(),
    }  # fmt: skip

    async def both() -> None:
        drafting = ScriptedExecutor(limits(theirs, draft=True), language)
        found = await completed(ours, saying, drafting, theirs, **wanted)
        alone = await completed(ours, saying, None, theirs, **{**wanted, "num_draft_tokens": 0})
        assert (found.text, found.token_ids) == (alone.text, alone.token_ids)

    asyncio.run(both())


@pytest.mark.parametrize("merges", [[], SAID_WORDS[:3], SAID_WORDS], ids=["bytes", "parts", "words"])
def test_a_draft_that_knows_the_text_is_believed(run: Run, merges: list[tuple[int, int]]) -> None:
    ours, theirs = (
        served(vocabularies.byte_level(SAID_WORDS)),
        served(vocabularies.byte_level(merges, end="</s>"), "</s>"),
    )
    prompt, answer = ours.encode(TEXT), ours.encode(TEXT * 3)
    draft = speaking(theirs, TEXT * 4)
    wanted = {"prompt_token_ids": prompt, "max_tokens": 400, "num_draft_tokens": 6}
    found = run(completed(ours, target_of(ours, prompt, answer), draft, theirs, **wanted))
    assert found.token_ids == answer
    assert rate(found) > 0.8
    assert found.completion.speculation.mean_acceptance_length > 4
    assert draft.requests[0].input_token_ids == tuple(theirs.encode(TEXT))


def test_shuffled_ids_are_accepted_as_the_same_ids_are(run: Run) -> None:
    inner = vocabularies.byte_level(SAID_WORDS)
    other, new = vocabularies.shuffled(inner)
    ours, theirs = served(inner), served(other)
    prompt, answer = ours.encode("hello"), ours.encode(TEXT * 3)
    old = {token_id: number for number, token_id in enumerate(new)}
    target = target_of(ours, prompt, answer)
    likely = agreeing(target.next_token, ours.size - 2, 0.7)
    wanted = CompletionRequest(prompt_token_ids=prompt, max_tokens=400, num_draft_tokens=4)
    same = assemble(target, ScriptedExecutor(limits(ours, draft=True), likely), ours)
    expected = run(same.complete(wanted))

    def shuffled(sequence: Sequence[int]) -> int:
        return new[likely([old[token_id] for token_id in sequence])]

    draft = ScriptedExecutor(limits(theirs, draft=True), shuffled)
    found = run(assemble(target, draft, ours, draft_tokenizer=theirs).complete(wanted))
    assert found.token_ids == expected.token_ids == answer
    assert abs(rate(found) - rate(expected)) <= 0.01
    assert 0.3 < rate(expected) < 0.9


def test_the_draft_is_asked_greedily_in_its_own_tokens(run: Run) -> None:
    """In its own tokens, greedily, to its own end token; nothing that names tokens of the target."""
    ours, theirs = (
        served(vocabularies.byte_level(SAID_WORDS)),
        served(vocabularies.byte_level([], end="</s>"), "</s>"),
    )
    prompt, answer = ours.encode("hello"), ours.encode(" world")
    draft = speaking(theirs, "hello world")
    wanted = {
        "prompt_token_ids": prompt, "max_tokens": 20, "num_draft_tokens": 2, "bad_words": ("zz",),
        "sampling": SamplingConfig(temperature=0.5, seed=1), "embedding_bias": ((3, 1.0),),
        "return_log_probs": True, "top_log_probs": 2,
    }  # fmt: skip
    run(completed(ours, target_of(ours, prompt, answer), draft, theirs, **wanted))
    asked = draft.requests[0]
    assert asked == Request(tuple(theirs.encode("hello")), asked.max_tokens, end_id=theirs.end_ids[0])
    # "hello" is one token of the target and five of the draft, so its two tokens are ten.
    assert asked.max_tokens == 10


def test_a_draft_of_smaller_tokens_ends_where_its_room_does(run: Run) -> None:
    ours, theirs = served(vocabularies.byte_level(SAID_WORDS)), served(vocabularies.byte_level([]))
    prompt, answer = ours.encode("hello" * 3), ours.encode("hello" * 20)
    draft = ScriptedExecutor(
        replace(limits(theirs, draft=True), max_input_len=60, max_seq_len=60), babble(200)
    )
    wanted = CompletionRequest(prompt_token_ids=prompt, max_tokens=40, num_draft_tokens=4)
    coordinator = assemble(target_of(ours, prompt, answer), draft, ours, draft_tokenizer=theirs)
    found = run(coordinator.complete(wanted))
    assert found.token_ids == answer
    assert draft_failures(coordinator.stats) == 0
    assert coordinator.stats.fallbacks["no_room"]
    assert all(len(request.input_token_ids) + request.max_tokens <= 60 for request in draft.requests)


def test_a_prompt_that_says_nothing_to_the_draft(run: Run) -> None:
    """An engine refuses an empty text; it is not asked, and so does not fail."""
    ours, theirs = served(vocabularies.byte_level([])), served(vocabularies.sentence_piece([]), "</s>")
    turn = ours.id_of("<|turn|>") or 0
    answer = ours.encode("abc")
    coordinator = assemble(
        target_of(ours, [turn], answer), speaking(theirs, "abc"), ours, draft_tokenizer=theirs
    )
    found = run(
        coordinator.complete(CompletionRequest(prompt_token_ids=[turn], max_tokens=9, num_draft_tokens=2))
    )
    assert found.token_ids == answer
    assert draft_failures(coordinator.stats) == 0
    assert coordinator.stats.fallbacks["draft_untranslated"] == 1


def test_a_long_prompt_is_read_beside_other_rounds(run: Run) -> None:
    ours, theirs = served(vocabularies.byte_level(SAID_WORDS)), served(vocabularies.byte_level([]))
    prompt, answer = ours.encode("hello world " * LONG)[: LONG + 5], ours.encode("hello")
    draft = ScriptedExecutor(
        replace(limits(theirs, draft=True), max_input_len=20000, max_seq_len=20000), babble(99)
    )
    wanted = {"prompt_token_ids": prompt, "max_tokens": 9, "num_draft_tokens": 2}
    assert run(completed(ours, target_of(ours, prompt, answer), draft, theirs, **wanted)).token_ids == answer
    assert len(draft.requests[0].input_token_ids) > LONG


def test_with_lookup_the_engine_is_asked_where_nothing_is_found(run: Run) -> None:
    ours, theirs = served(vocabularies.byte_level(SAID_WORDS)), served(vocabularies.byte_level([]))
    prompt, answer = ours.encode("hello world"), ours.encode(" hello whale hello world")
    hybrid = Drafting("hybrid", {"prompt_lookup_min": 2, "prompt_lookup_max": 8})
    coordinator = assemble(
        target_of(ours, prompt, answer),
        speaking(theirs, "hello world hello whale hello world"),
        ours,
        drafting=hybrid,
        draft_tokenizer=theirs,
    )
    wanted = CompletionRequest(prompt_token_ids=prompt, max_tokens=40, num_draft_tokens=3)
    assert run(coordinator.complete(wanted)).token_ids == answer
    assert all(coordinator.stats.by_origin[origin].num_spec_steps for origin in ("engine", "lookup"))


def test_several_tokens_before_every_text_take_no_room_from_a_long_prompt(run: Run) -> None:
    ours, theirs = served(vocabularies.byte_level([])), served(vocabularies.byte_level([]))
    theirs.beginning = theirs.encode("ab")
    prompt, answer = ours.encode("h" * 3000), ours.encode("hello")
    draft = speaking(theirs, "ab" + "h" * 3000 + "hello")
    wanted = {"prompt_token_ids": prompt, "max_tokens": 20, "num_draft_tokens": 4}
    found = run(completed(ours, target_of(ours, prompt, answer), draft, theirs, **wanted))
    assert found.token_ids == answer
    assert found.completion.speculation.num_accepted_draft_tokens >= 4
