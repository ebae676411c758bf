"""Defines what every method of drafting tells of itself; `table.py` has all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from trtspec.base.findings import Finding
from trtspec.base.section import Section

HETEROGENEOUS = "use_heterogeneous_vocab"
TRANSLATES = f"speculation.method.{HETEROGENEOUS}"
PARALLEL = "parallel_drafting"
AT_ONCE = f"speculation.method.{PARALLEL}"
HETEROGENEOUS_VOCAB = (
    "Whether the draft may have another vocabulary than the target: texts and drafts are then translated."
)


def lacking_with(draft: str, mode: str, size: str) -> dict[str, str]:
    """Returns the keys that a recipe has not whose engine has this draft in it, and the reason for each.

    `mode` is TensorRT-LLM's name of the engine's mode, and `size` says how many tokens it drafts.
    """
    by_itself = f"an engine with {draft} drafts by itself, the same number of tokens in every step"
    return {
        "speculation.mode": f"an engine with {draft} verifies only its own drafts: its mode is {mode}",
        "speculation.policy": by_itself,
        "speculation.num_draft_tokens": f"{by_itself}; {size}",
        "speculation.schedule": by_itself,
        "speculation.share": by_itself,
    }


class Method(Section):
    """A place where drafts come from; the fields beside `kind` are the options of its drafter."""

    has_model: ClassVar[bool] = False
    """True if the recipe names a draft, a model or a head."""
    is_head: ClassVar[bool] = False
    """True if the draft reads what its target computes, and so runs in the target's engine."""
    in_target: ClassVar[bool] = False
    """True if the draft is layers of the target itself, which its folder has."""
    of_servers: ClassVar[bool] = False
    """True if it needs no head, and yet trtspec does not draft by it: another engine's server does, or an
    engine by itself.
    """
    gives_way_to: ClassVar[str | None] = "ngram"
    """The method that needs no more than this one, and that every backend runs; None if this is one."""
    lacking_inside: ClassVar[Mapping[str, str]] = {}
    """The keys that a recipe has not whose engine is built with the draft in it, and the reason for each."""
    most_inside: ClassVar[int | None] = None
    """The most tokens that such an engine proposes and verifies in a step; None if nothing bounds them."""
    added: ClassVar[Mapping[str, object]] = {}
    """The options that recipes did not always have, and the value of each that changes nothing."""
    kind: str

    @property
    def options(self) -> dict[str, int | float]:
        """The options of the drafter that the recipe writes, or that have a default."""
        return self.model_dump(exclude={"kind", HETEROGENEOUS, PARALLEL}, exclude_none=True)

    @property
    def translates(self) -> bool:
        """True if the draft has a vocabulary of its own, so that its tokens are translated."""
        return bool(getattr(self, HETEROGENEOUS, False))

    @property
    def is_at_once(self) -> bool:
        """True if a draft model proposes all tokens of a draft in one step."""
        return bool(getattr(self, PARALLEL, False))

    def contradictions(self) -> Iterator[Finding]:
        """Finds options that contradict each other; each subject is the name of the option to change."""
        yield from ()
