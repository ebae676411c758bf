"""Compares a head with a target, and says what each difference does.

A head reads its target's states and proposes the target's tokens, so it fits one model and its fine-tuned
variants. Its proposals are verified: a head for another target makes no text wrong, but a head of other sizes
cannot run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from trtspec.base.findings import Finding, Severity, note
from trtspec.models.heads.head import TRAINED_FOR_IT, HeadDescription
from trtspec.models.source import DTYPES, Source


def check_head(head: HeadDescription, target: Source) -> list[Finding]:
    """Returns every difference with its effect; errors, with which the head cannot run, come first.

    Reads `d2t` and `t2d`, a few bytes a token; raises TensorError for a file that was cut off meanwhile.
    """
    findings = [
        *_sizes(head, target),
        *_vocabulary(head),
        *head.misfits(target.num_hidden_layers),
        *_dtype(head, target),
        *_verifier(head, target),
    ]
    return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)


def _sizes(head: HeadDescription, target: Source) -> Iterator[Finding]:
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


def _vocabulary(head: HeadDescription) -> Iterator[Finding]:
    """Compares both mappings: token i of the head is i + d2t[i] of the target."""
    tensors = head.tensors
    if "d2t" not in tensors:
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


def _dtype(head: HeadDescription, target: Source) -> Iterator[Finding]:
    dtypes = {DTYPES[tensor.dtype] for tensor in head.tensors.values() if tensor.dtype in DTYPES}
    for dtype in sorted(dtypes - {target.dtype}):
        effect = (
            "it is rounded to the target's dtype or runs in its own; slightly fewer drafts may be accepted"
        )
        yield note("dtype", f"the head is stored in {dtype}, the target in {target.dtype}", effect=effect)


def _verifier(head: HeadDescription, target: Source) -> Iterator[Finding]:
    if head.verifier is None:
        if head.form == "speculators":
            effect = "vLLM does not start with a head that does not name its target"
            yield note("verifier", "the head names no target", effect=effect)
        return
    named = PurePath(head.verifier).name
    if named not in (target.folder.name, *(part.rpartition("--")[2] for part in target.folder.parts)):
        problem = f"the head was trained for {head.verifier}, the target's folder is {target.folder.name}"
        yield note("verifier", problem, effect="few drafts are accepted if that is another model")
