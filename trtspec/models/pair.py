"""Compares a target with a draft, and says what each difference does.

The target decides each token, so most differences only lower acceptance. A pair is refused for differences
that could make the text wrong or an engine fail: ids with other bytes, ids beyond an embedding, end tokens
with another meaning, a target beyond its trained length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.base.errors import PairError
from trtspec.base.findings import Finding, Severity, errors, note
from trtspec.methods.method import HETEROGENEOUS
from trtspec.models.families import family_of, longrope
from trtspec.models.families.family import ModelFamily
from trtspec.models.heads.reading import read_model
from trtspec.models.source import Source
from trtspec.models.tokenizer import TokenizerTraits, read_tokenizer
from trtspec.models.vocabularies import alike, translated


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
    source: Source, *, for_engines: bool = True, overrides: Mapping[str, Any] | None = None
) -> Member:
    """Returns the compared facts of a model whose tokenizer is in its folder; as `read_member`."""
    source = source.overridden(overrides or {})
    family = family_of(source) if for_engines else None
    longest = source.max_position if for_engines else source.served_length
    return Member(source, read_tokenizer(source.folder), family, longest)


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
