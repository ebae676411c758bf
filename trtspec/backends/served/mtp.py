"""Decides whether a server can draft with a target's own layers for multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtspec.base.findings import Finding
from trtspec.models.mtp import mtp_layers
from trtspec.models.source import Source

_SUBJECT = "MTP layers"
_NOTHING = "nothing proposes"
_REPAIR = "take a model that was trained with them, or another method"


@dataclass(frozen=True, slots=True)
class MtpSupport:
    """The targets whose own layers a server drafts with."""

    names: frozenset[str]
    """The `model_type` or the class of each, as `config.json` has it."""
    source: str
    """Where that is written."""
    in_whole_turns: bool = False
    """True if a draft longer than the number of layers must be a multiple of it."""

    def check(self, target: Source, num_draft_tokens: int | None) -> Iterator[Finding]:
        """Finds why the server cannot draft so many tokens with the target; None stands for the default."""
        found = mtp_layers(target)
        if found is None:
            problem = "the target has none: neither config.json nor a tensor names one"
            yield Finding(_SUBJECT, problem, _REPAIR, effect=_NOTHING)
        elif not found.size:
            problem = f"config.json says {found.count}, and their weights are missing, as in many copies"
            yield Finding(_SUBJECT, problem, "take the publisher's own weights", effect=_NOTHING)
        elif not self.names & {target.model_type, target.architecture}:
            problem = f"the server cannot draft with those of {target.architecture} ({self.source})"
            yield Finding(_SUBJECT, problem, "take another method, or another engine", effect=_NOTHING)
        elif self.in_whole_turns and found.is_said and num_draft_tokens:
            count = found.count
            if num_draft_tokens > count and num_draft_tokens % count:
                problem = (
                    f"a draft of {num_draft_tokens} tokens is not a multiple of the target's {count} layers"
                )
                repair = f"write num_draft_tokens: {num_draft_tokens // count * count}"
                yield Finding(_SUBJECT, problem, repair, effect="the server does not start")
