"""The memory budget of the engines, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trtspec.base.units import gib
from trtspec.cli.terminal.output import out

if TYPE_CHECKING:
    from trtspec.pipeline.plan.embedded import Embedded
    from trtspec.pipeline.plan.memory import Budget


def print_memory(budget: Budget) -> None:
    """Prints what a GPU has, what the engines take of it, what is left and for what."""
    engines = budget.engines.items()
    rows = [
        (
            "weights",
            gib(budget.weights),
            ", ".join(f"{role} {gib(engine.weights)}" for role, engine in engines),
        ),
        ("workspace", gib(budget.workspace), "an estimate: activations, logits, CUDA, TensorRT"),
        (
            "KV cache",
            gib(max(budget.left, 0)),
            f"{budget.tokens:,} tokens{' in each of the two' * (len(engines) > 1)}",
        ),
        (
            "a token",
            f"{budget.kv_per_token:,} B",
            ", ".join(f"{role} {engine.kv_per_token:,} B" for role, engine in engines),
        ),
        (
            "requests",
            str(budget.requests),
            f"of {budget.tokens_per_request:,} tokens, draft included;"
            f" max_batch_size is {budget.max_batch_size}",
        ),
    ]
    out.table(rows, header=("memory", gib(budget.total), f"of the fullest {budget.gpu}"))


def memory_as_json(budget: Budget) -> dict[str, Any]:
    """Returns the budget in bytes, tokens and requests."""
    found = {name: getattr(budget, name) for name in ("left", "tokens", "requests", "problem")}
    values = asdict(budget)
    return {**values, **values.pop("engines"), **found}


def print_embedded(embedded: Embedded) -> None:
    """Prints the same for the engines on the CPU of this machine."""
    is_pair = len(embedded.roles) > 1
    found = f"{'all' if embedded.tokens == embedded.asked else 'of'} {embedded.asked:,}"
    of = "of both models" if is_pair else f"of the {embedded.roles[0]}"
    if embedded.shared:
        of += f", {gib(embedded.shared)} in common"
    rows = [
        ("weights", gib(embedded.weights), of),
        ("a token", f"{embedded.kv_per_token:,} B", "of KV cache, in both" if is_pair else "of KV cache"),
        (
            "KV cache",
            f"{embedded.tokens:,} tokens",
            f"{'in each of the two, ' if is_pair else ''}{found} that requests can ask for",
        ),
        ("threads", str(embedded.threads), f"{embedded.because}; fewer while others are busy on them"),
    ]
    out.table(rows, header=("memory", gib(embedded.free), "free on this machine, for its CPU"))


def embedded_as_json(embedded: Embedded) -> dict[str, Any]:
    return {**asdict(embedded), "problem": embedded.problem}
