"""Lists the servers, models, settings and machines of a measurement."""

from __future__ import annotations

from datetime import datetime, timezone

from trtspec.base.units import gib
from trtspec.measure.bench.result import BenchResult
from trtspec.measure.report.numbers import percent
from trtspec.measure.report.requests import in_words

Facts = tuple[tuple[str, str], ...]

_PLAIN_BY = {
    "request": "the same server, asked for num_draft_tokens 0",
    "baseline": "another server",
    "none": "not measured",
}


def facts(result: BenchResult) -> tuple[tuple[str, Facts], ...]:
    """Returns groups of names and values, without unknown values."""
    server, model, workload = result.server, result.model, result.workload
    settings, machine = result.settings, result.machine
    without = _PLAIN_BY[server.plain_by]
    groups: dict[str, dict[str, object]] = {
        "Server and model": {
            "address": server.url,
            "API": {"triton": "Triton's", "openai": "OpenAI's"}[server.api],
            "software": server.software,
            "without drafts": f"{without}, {server.baseline_url}" if server.baseline_url else without,
            "model": model.name,
            "recipe": model.recipe,
            "target": model.target,
            "draft": model.draft,
            "K of the server": model.num_draft_tokens,
        },
        "Workload": {
            "workload": workload.name,
            "source": workload.source,
            "prompts": f"{workload.prompts:,}",
            "categories": ", ".join(f"{name or '(none)'} {n}" for name, n in workload.categories.items()),
            "digest": workload.digest,
        },
        "Settings": {
            "started": when(settings.started),
            "trtspec": settings.version,
            "load by": settings.load_generator,
            "pairs of blocks": f"{settings.pairs}, of {settings.block_requests} requests each",
            "warm-up": f"{settings.warm_up} requests",
            "longest answer": f"{settings.max_tokens} tokens",
            "temperature": f"{settings.temperature:g}",
            "seed": settings.seed,
            "chat": "yes" if settings.chat else "no",
            "K asked for": settings.num_draft_tokens,
            "intervals": f"{percent(settings.confidence)} confidence",
            "latency target": in_words(settings.targets),
        },
        "Machine that measured": {
            "processor": f"{machine.processor}, {machine.cores} cores",
            "memory": gib(machine.memory),
            "GPUs": ", ".join(machine.gpus) or "none",
            "system": machine.system,
            "Python": machine.python,
        },
    }
    return tuple(
        (name, tuple((fact, str(value)) for fact, value in group.items() if value not in (None, "")))
        for name, group in groups.items()
    )


def when(started: str) -> str:
    """Returns an ISO 8601 time as day and minute, 2026-11-22 20:15 UTC; other text unchanged."""
    try:
        return f"{datetime.fromisoformat(started).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return started
