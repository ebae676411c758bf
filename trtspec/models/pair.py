"""Compares a target with a draft or with a head, and says what each difference does.

The target decides each token, so most differences only lower acceptance. A pair is refused for differences
that could make the text wrong or an engine fail: ids with other bytes, ids beyond an embedding, end tokens
with another meaning, a target beyond its trained length.

With translation between vocabularies no difference of these makes a text wrong; each finding then says its
cost.

A head reads its target's states and proposes the target's tokens, so it fits one model and its fine-tuned
variants. Its proposals are verified: a head for another target makes no text wrong, but a head of other sizes
cannot run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from trtspec.base.errors import PairError
from trtspec.base.findings import Finding, Severity, errors, note
from trtspec.methods.method import HETEROGENEOUS
from trtspec.models.download import is_headers_only
from trtspec.models.families import family_of, longrope
from trtspec.models.families.family import ModelFamily
from trtspec.models.heads.head import TRAINED_FOR_IT, HeadDescription
from trtspec.models.heads.reading import read_model
from trtspec.models.source import DTYPES, Source
from trtspec.models.tokenizer import TokenizerTraits, read_tokenizer


@dataclass(frozen=True, slots=True)
class Member:
    """The compared facts of one model of a pair."""

    source: Source
    tokenizer: TokenizerTraits
    family: ModelFamily | None
    """The family by which engines are built of it; None where another server loads it."""
    max_position: int
    """The longest sequence that the model was made for, in tokens."""


def read_member(
    folder: Path, *, for_engines: bool = True, overrides: Mapping[str, Any] | None = None
) -> Member:
    """Reads a Hugging Face folder, without the data of its weights; raises ModelError or TensorError.

    `for_engines` refuses what trtspec builds no engine of, which other servers may load; `overrides` are keys
    of `config.json` that a server is told otherwise.
    """
    source = read_model(folder, whole=not for_engines)
    return member_of(source, for_engines=for_engines, overrides=overrides)


def member_of(
    source: Source,
    *,
    for_engines: bool = True,
    overrides: Mapping[str, Any] | None = None,
    like: TokenizerTraits | None = None,
) -> Member:
    """Returns the compared facts of a model whose tokenizer is in its folder, as `read_member` does.

    `like` is a tokenizer whose file may be the same.
    """
    source = source.overridden(overrides or {})
    family = family_of(source) if for_engines else None
    longest = source.max_position if for_engines else source.served_length
    return Member(source, read_tokenizer(source.folder, like), family, longest)


def compare(
    target: Member, draft: Member, max_seq_len: int | None = None, *, translates: bool = False
) -> list[Finding]:
    """Every difference with its effect; errors, with which nothing may be built, come first.

    `max_seq_len` is the recipe's limit for prompt and answer in tokens; None means the longest of the target.
    A pair with translation between vocabularies may have different tokens.
    """
    findings = [
        *(translated(target, draft) if translates else alike(target, draft)),
        *_sizes(target, draft),
        *_lengths(target, draft, max_seq_len),
        *_windows(target, draft, max_seq_len),
        *_positions(target, draft, max_seq_len),
    ]
    return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)


def refuse(subject: str, findings: list[Finding], *, can_translate: bool) -> None:
    """Raises PairError with the errors among the findings, if any.

    `can_translate` says whether the backend runs a draft with another vocabulary.
    """
    if refused := errors(findings):
        usual = f"{_SAME_FAMILY}, or {_TRANSLATED}" if can_translate else _SAME_FAMILY
        raise PairError(subject, [replace(found, repair=found.repair or usual) for found in refused])


_SAME_FAMILY = "use a draft of the target's own model family, with the same tokenizer"
_TRANSLATED = f"have tokens translated: method: {{kind: draft_model, {HETEROGENEOUS}: true}}"


def _sizes(target: Member, draft: Member) -> Iterator[Finding]:
    ours, theirs = target.source, draft.source
    if theirs.parameters > ours.parameters:
        difference = f"the draft has {theirs.parameters} parameters, the target {ours.parameters}"
        effect = "the small model's text would be served, at a lower speed"
        yield Finding("size", difference, "swap target and draft", effect=effect)
    elif theirs.parameters == ours.parameters:
        difference = f"both have {ours.parameters} parameters"
        yield note("size", difference, effect="the draft costs as much as it may save: no gain in speed")


def _lengths(target: Member, draft: Member, max_seq_len: int | None) -> Iterator[Finding]:
    needed = max_seq_len or target.max_position
    if needed > target.max_position:
        difference = f"engine.max_seq_len is {needed}, but the target supports {target.max_position} tokens"
        repair = f"set engine.max_seq_len to at most {target.max_position}"
        effect = "its text beyond them is unreliable"
        yield Finding("context length", difference, repair, effect=effect)
    if needed > draft.max_position:
        difference = f"texts have up to {needed} tokens, but the draft supports {draft.max_position}"
        yield note("context length", difference, effect="few drafts are accepted beyond them")


def _windows(target: Member, draft: Member, max_seq_len: int | None) -> Iterator[Finding]:
    """Finds sliding windows, of what engines are built of, that are shorter than the longest sequence.

    TensorRT-LLM 1.0 reuses no KV blocks of texts beyond a window (`KVCacheManager::addSequence`).
    """
    needed = max_seq_len or target.max_position
    for who, side in (("target", target), ("draft", draft)):
        window = side.family.window(side.source) if side.family else None
        if side.family and window is not None and window < needed:
            seer = f"some layers of the {who} were" if side.family.alternates else f"the {who} was"
            difference = f"texts have up to {needed} tokens, of which {seer} made to see the last {window}"
            effect = "beyond them TensorRT-LLM may reuse no KV cache, and a round reads the whole text again"
            yield note("sliding window", difference, effect=effect)


def _positions(target: Member, draft: Member, max_seq_len: int | None) -> Iterator[Finding]:
    """Finds models whose rotary factors change once a text is long (`families/longrope.py`)."""
    needed = max_seq_len or target.max_position
    for who, side in (("target", target), ("draft", draft)):
        original = longrope.original(side.source)
        if original is not None and original < needed:
            difference = (
                f"texts have up to {needed} tokens, but the {who} has other rotary factors beyond {original}"
            )
            repair = (
                f"set engine.max_seq_len to {original} minus the longest draft, to keep the first factors"
            )
            effect = (
                "torch and vLLM then use them for short texts too, and TensorRT-LLM's engines refuse long "
                "texts"
            )
            yield note("positions", difference, repair, effect=effect)


_COST = (
    "text and drafts are translated, which takes about 0.2 ms per round; most is accepted where both "
    "tokenize alike"
)
_LESS_ACCEPTED = "where they occur, fewer drafts are accepted; the text stays right"
_SHOWN = 3


def translated(target: Member, draft: Member) -> Iterator[Finding]:
    """Yields the size of the common vocabulary, and which of the draft's own tokens cannot be used."""
    ours, theirs = target.tokenizer, draft.tokenizer
    own, other = set(ours.tokens.values()), set(theirs.tokens.values())
    if ours.tokens == theirs.tokens:
        difference = (
            f"speculation.method has {HETEROGENEOUS}, but both have the same tokens with the same ids"
        )
        yield note("vocabularies", difference, effect="translation only takes time: leave it out")
    else:
        common = len(own & other)
        difference = f"{common} of the target's {len(own)} tokens are among the draft's {len(other)}"
        yield note("vocabularies", difference, effect=_COST)
    yield from past_embedding("target", target.source, ours)
    yield from past_embedding("draft", draft.source, theirs)
    if not draft.source.end_ids:
        effect = "the draft continues after the end of a text; fewer drafts are accepted there"
        yield note("end tokens", "the draft names none", effect=effect)
    yield note(
        "sampling",
        "engines sample by token id, and the same id is another token in each; only two engines of the "
        "torch backend in one process sample alike",
        effect="other drafts are the likeliest tokens; fewer are accepted at higher temperatures",
    )


def alike(target: Member, draft: Member) -> Iterator[Finding]:
    """Yields the differences between vocabularies whose ids should have the same text."""
    yield from _ids(target, draft)
    yield from _reach(target, draft)
    yield from _ends(target, draft)
    yield from _named(target, draft)
    yield from _cutting(target.tokenizer, draft.tokenizer)
    yield from _rows(target, draft)


def _ids(target: Member, draft: Member) -> Iterator[Finding]:
    ours, theirs = target.tokenizer, draft.tokenizer
    common = [token_id for token_id in ours.tokens if token_id in theirs.tokens]
    other = sorted(token_id for token_id in common if ours.tokens[token_id] != theirs.tokens[token_id])
    special = [
        token_id for token_id in other if _is_special(ours, token_id) and _is_special(theirs, token_id)
    ]
    ordinary = sorted(set(other) - set(special))
    if ordinary:
        effect = "the draft's tokens mean other text to the target"
        yield Finding("token ids", _examples(ordinary, target, draft), effect=effect)
    if special:
        yield note("special tokens", _examples(special, target, draft), effect=_LESS_ACCEPTED)
    flags = [
        token_id
        for token_id in sorted(ours.added.keys() | theirs.added.keys())
        if token_id in ours.tokens
        and ours.tokens[token_id] == theirs.tokens.get(token_id)
        and ours.added.get(token_id) != theirs.added.get(token_id)
    ]
    if flags:
        difference = (
            f"{_count(flags, 'token')} added or special in only one of the two, such as "
            f"{_name(ours, flags[0])}"
        )
        yield note("added tokens", difference, effect="none: the target's tokenizer reads the prompts")


def _reach(target: Member, draft: Member) -> Iterator[Finding]:
    """Finds ids that only one of the tokenizers has, or that are beyond an embedding."""
    ours, theirs = target.tokenizer, draft.tokenizer
    yield from past_embedding("target", target.source, ours)
    yield from past_embedding("draft", draft.source, None)
    for who, mine, other, whose, rows, effect in (
        ("target", ours, theirs, "draft", draft.source.vocab_size, "the draft cannot read a text with them"),
        ("draft", theirs, ours, "target", target.source.vocab_size, "the target cannot verify them"),
    ):
        in_texts, others = mine.beyond(rows)
        if beyond := in_texts or others:
            difference = f"{_count(beyond, 'id')} of the {who}'s tokenizer, such as {_name(mine, beyond[0])}"
            difference += f", beyond the {whose}'s embedding of {rows} rows"
            rarely = f"{effect}; only a text that names one has it"
            yield (
                Finding("vocabulary", difference, effect=effect)
                if in_texts
                else note("vocabulary", difference, effect=rarely)
            )
        alone = sorted(
            token_id for token_id in mine.tokens if token_id not in other.tokens and token_id < rows
        )
        if alone:
            difference = f"{_count(alone, 'id')} only in the {who}'s, such as {_name(mine, alone[0])}"
            yield note("token ids", difference, effect=_LESS_ACCEPTED)


def past_embedding(who: str, source: Source, tokenizer: TokenizerTraits | None) -> Iterator[Finding]:
    """Finds ids that are past the embedding of the model that names them.

    Without the `tokenizer`, whose texts the model reads, they are those of its configuration alone.
    """
    rows = source.vocab_size
    in_texts, others = tokenizer.beyond(rows) if tokenizer else ([], [])
    if in_texts:
        difference = f"the {who}'s tokenizer has ids up to {in_texts[-1]}, but its embedding has {rows} rows"
        repair = f"use the tokenizer that belongs to the {who}"
        yield Finding("vocabulary", difference, repair, effect="a text with such an id cannot be computed")
    elif tokenizer and others:
        difference = f"{_count(others, 'id')} of the {who}'s tokenizer, such as {_name(tokenizer, others[0])}"
        difference += f", past its own embedding of {rows} rows"
        effect = "only a prompt that names one has it, and engines refuse such a prompt"
        yield note("vocabulary", difference, effect=effect)
    if ends := source.ends_past:
        difference = f"{_list(ends)} in the {who}'s configuration, past its embedding of {rows} rows"
        yield note("end tokens", difference, effect="left out: the model cannot say them")


def _ends(target: Member, draft: Member) -> Iterator[Finding]:
    ours, theirs = target.source.end_ids, draft.source.end_ids
    eos = target.tokenizer.named["eos_token"]
    if not ours:
        yield note("end tokens", "the target names none", effect="only max_tokens and stop words end a text")
    elif eos is not None and eos not in ours:
        difference = f"the target's configuration has {_list(ours)}, its tokenizer {eos}"
        yield note("end tokens", difference, effect="those of the configuration end the text")
    for token_id in ours:
        mine, other = target.tokenizer.tokens.get(token_id), draft.tokenizer.tokens.get(token_id)
        if mine is not None and other is not None and mine != other:
            difference = f"{token_id} is {mine!r} and ends a text in the target; in the draft it is {other!r}"
            effect = "the draft continues after the target's end, or ends too early"
            yield Finding("end tokens", difference, effect=effect)
    if set(ours) != set(theirs):
        difference = f"{_list(ours)} in the target, {_list(theirs)} in the draft"
        yield note(
            "end tokens",
            difference,
            effect="those of the target end the text; fewer drafts are accepted there",
        )


def _named(target: Member, draft: Member) -> Iterator[Finding]:
    """Compares the other special tokens, bos and pad, which end no text."""
    ours, theirs = target.source, draft.source
    fewer = "the draft reads the target's; slightly fewer drafts are accepted"
    for subject, mine, other, effect in (
        ("bos token", ours.bos_id, theirs.bos_id, fewer),
        ("pad token", ours.pad_id, theirs.pad_id, "none: padding is not used"),
    ):
        if mine != other:
            difference = f"{_or_none(mine)} in the target, {_or_none(other)} in the draft"
            yield note(subject, difference, effect=effect)


def _cutting(target: TokenizerTraits, draft: TokenizerTraits) -> Iterator[Finding]:
    """Compares the tokenization of text; a served pair uses only the target's tokenizer for that."""
    effect = "the target's is used; the draft sees text tokenized differently from its training"
    if target.kind != draft.kind:
        yield note("tokenizer", f"{target.kind} in the target, {draft.kind} in the draft", effect=effect)
    elif target.merges != draft.merges:
        yield note("merges", "the rules that merge bytes into tokens differ", effect=effect)
    for stage in target.stages:
        if target.stages[stage] != draft.stages[stage]:
            unseen = stage == "decoder"
            yield note(stage, "its settings differ", effect="the target's is used" if unseen else effect)
    if target.chat_templates != draft.chat_templates:
        missing = [who for who, side in (("target", target), ("draft", draft)) if not side.chat_templates]
        difference = f"the {missing[0]} has none" if missing else "the templates differ"
        yield note("chat template", difference, effect="the target's is used")


def _rows(target: Member, draft: Member) -> Iterator[Finding]:
    ours, theirs = target.source, draft.source
    if ours.vocab_size != theirs.vocab_size:
        difference = f"{ours.vocab_size} rows in the target's embedding, {theirs.vocab_size} in the draft's"
        effect = "none for token matching; acceptance by draft logits would need equal sizes"
        if theirs.vocab_size > ours.vocab_size:
            effect = "a draft ends before an id that the target lacks"
        yield note("padded vocabulary", difference, effect=effect)


def _is_special(tokenizer: TokenizerTraits, token_id: int) -> bool:
    added = tokenizer.added.get(token_id)
    return added is not None and added.special


def _examples(ids: list[int], target: Member, draft: Member) -> str:
    examples = "; ".join(
        f"{token_id} is {target.tokenizer.tokens[token_id]!r} and {draft.tokenizer.tokens[token_id]!r}"
        for token_id in ids[:_SHOWN]
    )
    return f"{_count(ids, 'id')} with other bytes in target and draft: {examples}"


def _name(tokenizer: TokenizerTraits, token_id: int) -> str:
    return f"{token_id} ({tokenizer.tokens[token_id]!r})"


def _count(ids: list[int], noun: str) -> str:
    return f"{len(ids)} {noun}{'s' * (len(ids) > 1)}"


def _list(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids)) or "none"


def _or_none(token_id: int | None) -> str:
    return "none" if token_id is None else str(token_id)


def compare_head(head: HeadDescription, method: str, target: Source) -> list[Finding]:
    """Returns what is wrong with a head as the draft of this target, by this method of a recipe."""
    findings = check_head(head, target)
    if head.method != method:
        problem = f"is {method}, but the draft is a head of method {head.method}"
        repair, effect = f"speculation.method: {head.method}", "the head cannot draft by this method"
        findings.insert(0, Finding("speculation.method", problem, repair, effect=effect))
    return findings


def check_head(head: HeadDescription, target: Source) -> list[Finding]:
    """Returns every difference with its effect; errors, with which the head cannot run, come first.

    Reads `d2t` and `t2d`, a few bytes a token; raises TensorError for a file that was cut off meanwhile.
    """
    findings = [
        *_head_sizes(head, target),
        *_head_vocabulary(head),
        *head.misfits(target.num_hidden_layers),
        *_head_dtype(head, target),
        *_head_verifier(head, target),
    ]
    return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)


def _head_sizes(head: HeadDescription, target: Source) -> Iterator[Finding]:
    if head.hidden_size != target.hidden_size:
        problem = (
            f"the head reads states of width {head.hidden_size}, but the target's have width "
            f"{target.hidden_size}"
        )
        yield Finding("hidden size", problem, TRAINED_FOR_IT, effect="the head cannot read them")
    if head.vocab_size != target.vocab_size:
        made_for = f"the head was made for a target with {head.vocab_size} tokens"
        problem = f"{made_for}, but this one has {target.vocab_size}"
        yield Finding("vocabulary", problem, TRAINED_FOR_IT, effect="their tokens are not the same")
    own = head.layer.get("hidden_size")
    if own and own != target.hidden_size and "embed_tokens.weight" not in head.tensors:
        problem = (
            f"the head has none of its own and needs width {own}, but the target's has width "
            f"{target.hidden_size}"
        )
        yield Finding("embedding", problem, TRAINED_FOR_IT, effect="the head cannot read its tokens")


def _head_vocabulary(head: HeadDescription) -> Iterator[Finding]:
    """Compares both mappings: token i of the head is i + d2t[i] of the target.

    Of a head of which only headers were fetched, neither is here.
    """
    tensors = head.tensors
    if "d2t" not in tensors or is_headers_only(head.folder):
        return
    to_target = np.arange(head.draft_vocab_size) + np.frombuffer(tensors["d2t"].read(), "<i8")
    again = "convert or train the head again"
    if to_target.min() < 0 or to_target.max() >= head.vocab_size:
        wrong = int(np.flatnonzero((to_target < 0) | (to_target >= head.vocab_size))[0])
        problem = (
            f"token {wrong} of the head maps to {to_target[wrong]}, but the target has {head.vocab_size} "
            "tokens"
        )
        yield Finding("d2t", problem, again, effect="the head would propose tokens that the target lacks")
        return
    if len(np.unique(to_target)) < len(to_target):
        problem = f"{len(to_target) - len(np.unique(to_target))} tokens of the target occur twice"
        yield note("d2t", problem, again, effect="the head can propose fewer tokens than its vocabulary has")
    if "t2d" not in tensors or head.draft_vocab_size == head.vocab_size:
        return
    known = np.frombuffer(tensors["t2d"].read(), "?")
    if not np.array_equal(np.flatnonzero(known), np.unique(to_target)):
        problem = f"lists {int(known.sum())} tokens of the head, which are not those of d2t"
        effect = "none for drafts, which use only d2t; a training would go wrong"
        yield note("t2d", problem, again, effect=effect)


def _head_dtype(head: HeadDescription, target: Source) -> Iterator[Finding]:
    dtypes = {DTYPES[tensor.dtype] for tensor in head.tensors.values() if tensor.dtype in DTYPES}
    for dtype in sorted(dtypes - {target.dtype}):
        effect = (
            "it is rounded to the target's dtype or runs in its own; slightly fewer drafts may be accepted"
        )
        yield note("dtype", f"the head is stored in {dtype}, the target in {target.dtype}", effect=effect)


def _head_verifier(head: HeadDescription, target: Source) -> Iterator[Finding]:
    if head.verifier is None:
        if head.form == "speculators":
            effect = "vLLM does not start with a head that does not name its target"
            yield note("verifier", "the head names no target", effect=effect)
        return
    named = PurePath(head.verifier).name
    if named not in (target.folder.name, *(part.rpartition("--")[2] for part in target.folder.parts)):
        problem = f"the head was trained for {head.verifier}, the target's folder is {target.folder.name}"
        yield note("verifier", problem, effect="few drafts are accepted if that is another model")
