"""Prints what would fit instead, and what the rules say of a plan, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trtspec.base.units import gib
from trtspec.cli.terminal.output import out

if TYPE_CHECKING:
    from trtspec.forecast.rules import Judgement, RuleAdvice
    from trtspec.pipeline.plan.alternatives import Alternative

_SHOWN = 8


def print_alternatives(found: Sequence[Alternative]) -> None:
    """Prints what fits, best first, by what is to be changed in the recipe."""
    if not found:
        out.sentence("nothing fits instead: neither FP8 nor shorter texts, on up to 8 such GPUs")
        return
    rows = [
        (
            f"{one.count} GPU{'s' * (one.count > 1)}",
            gib(one.budget.weights),
            f"{one.budget.requests} of {one.budget.max_batch_size}",
            f"{one.budget.tokens_per_request:,}",
            ", ".join(f"{key}: {value}" for key, value in one.changes.items()),
        )
        for one in found[:_SHOWN]
    ]
    out.table(rows, header=("fits instead", "weights", "requests", "of tokens", "with this in the recipe"))


def alternatives_as_json(found: Sequence[Alternative]) -> list[dict[str, Any]]:
    return [
        {
            "changes": one.changes,
            "count": one.count,
            "weights": one.budget.weights,
            "left": one.budget.left,
            "tokens": one.budget.tokens,
            "requests": one.budget.requests,
            "tokens_per_request": one.budget.tokens_per_request,
        }
        for one in found
    ]


def print_advice(advice: RuleAdvice) -> None:
    """Prints each rule and each thing of the checklist with its verdict and number."""
    out.table(_rows(advice.rules), header=("", "the rules that users are told"))
    out.result()
    out.table(_rows(advice.checklist), header=("", "before production"))


def _rows(judgements: Sequence[Judgement]) -> list[tuple[str, str]]:
    return [(one.verdict, _said(one)) for one in judgements]


def _said(one: Judgement) -> str:
    """Returns a rule with its number and what follows, where there are any."""
    found = "; ".join(part for part in (one.number, one.then) if part)
    return f"{one.rule}: {found}" if found else one.rule


def advice_as_json(advice: RuleAdvice) -> dict[str, Any]:
    return {"advice": asdict(advice)}
