"""`trtspec top`: a running deployment, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.terminal.options import JsonOption, RunningUrlOption
from trtspec.cli.terminal.output import out, visible
from trtspec.client.local_server import one_address
from trtspec.client.scrape import parse, read
from trtspec.deployment.figures import ServerFigures, between, choose
from trtspec.gateway.ports import LOOPBACK, METRICS

if TYPE_CHECKING:
    from rich.table import Table

    from trtspec.client.local_server import LocalServer
    from trtspec.deployment.figures import ServerFigures


_BAR = 20


def rows(figures: ServerFigures) -> list[tuple[str, str]]:
    """Returns the figures as rows: a name and its text."""
    f = figures
    shown = [
        ("streams", f"{f.running} of {f.places} slots  {_bar(f.running / f.places if f.places else 0)}"),
        ("queue", f"{f.waiting} of {f.queue_size}" + (f", {f.longest_wait:.1f} s" if f.waiting else "")),
        (
            "tokens/s",
            f"{f.tokens_per_second:,.0f}, prompts {f.prompt_tokens_per_second:,.0f}, "
            f"{f.requests_per_second:.1f} requests/s",
        ),
        ("acceptance", _acceptance(f)),
        ("K", _lengths(f)),
        ("first token", _times(f.time_to_first_token)),
        ("between tokens", _times(f.inter_token_latency)),
    ]
    if f.kv_use:
        uses = (f"{engine} {use:.0%} {_bar(use, _BAR // 2)}" for engine, use in sorted(f.kv_use.items()))
        shown.append(("KV cache", "  ".join(uses)))
    if not f.draft_available:
        shown.append(("draft", "not used for now, because it failed"))
    if f.speculation_share < 1 or f.shadow_share:
        shown.append(("roll-out", _rollout(f)))
    if f.fallbacks:
        shown.append(("no draft", _rates(f.fallbacks)))
    if f.errors:
        shown.append(("errors", _rates(f.errors)))
    if f.refusals:
        shown.append(("front refused", _rates(f.refusals)))
    return shown


@contextmanager
def drawn(header: str) -> Iterator[Callable[[ServerFigures], None]]:
    """Yields a function that draws figures on the terminal, each time over the previous ones."""
    from rich.live import Live

    with Live(auto_refresh=False, transient=False) as live:
        yield lambda figures: live.update(_table(header, figures), refresh=True)


def _table(header: str, figures: ServerFigures) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(visible(header)), title_justify="left", show_header=False, box=None, pad_edge=False
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, words in rows(figures):
        table.add_row(Text(name), Text(visible(words)))
    return table


def _acceptance(figures: ServerFigures) -> str:
    if figures.acceptance is None or figures.tokens_per_draft is None:
        return "nothing drafted"
    origins = ", ".join(f"{name} {share:.0%}" for name, share in figures.acceptance_by_origin.items())
    each = f"{figures.tokens_per_draft:.2f} tokens a verification"
    return f"{figures.acceptance:.0%} {_bar(figures.acceptance)}  {each}" + (
        f" ({origins})" if len(figures.acceptance_by_origin) > 1 else ""
    )


def _rollout(figures: ServerFigures) -> str:
    if not figures.shadow_share:
        return f"drafts for {figures.speculation_share * 100:.4g} % of the requests"
    scored = figures.shadow_acceptance
    found = "none yet" if scored is None else f"{scored:.0%} would be accepted"
    return f"drafts of {figures.shadow_share * 100:.4g} % of the requests are only scored: {found}"


def _lengths(figures: ServerFigures) -> str:
    if figures.mean_k is None:
        return "no rounds"
    lengths = sorted(figures.rounds_by_k.items(), key=lambda item: -item[1])[:4]
    shares = ", ".join(f"{length}: {share:.0%}" for length, share in lengths)
    return f"mean {figures.mean_k:.1f} ({shares}), {figures.rounds_per_second:,.0f} rounds/s"


def _times(quantiles: tuple[float, float] | None) -> str:
    if quantiles is None:
        return "none"
    return f"{_time(quantiles[0])}, 1 in 20 above {_time(quantiles[1])}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {rate:.1f}/s" for name, rate in sorted(rates.items(), key=lambda item: -item[1])
    )


def _bar(share: float, width: int = _BAR) -> str:
    full = round(min(max(share, 0.0), 1.0) * width)
    return "#" * full + "." * (width - full)


EXAMPLES = (
    "trtspec top",
    "trtspec top --url gpu-host:8000 --interval 5",
    "trtspec top --once --json",
)


def top(
    url: RunningUrlOption = None,
    model_name: Annotated[
        str | None, typer.Option(help="The recipe's serving.model_name.", show_default="the only one")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two scrapes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and end.")] = False,
    json: JsonOption = False,
) -> None:
    """Show a server live: streams, speed, acceptance, K, queue.

    It reads only the server's metrics. On a terminal the figures change in place. Elsewhere top prints the
    figures of each interval, with --json as one line of JSON.
    """
    url = metrics_url(url)
    before = parse(read(url), time.monotonic())
    model = choose(before, model_name, url)
    with _shown(f"{model} at {url}", json) as show:
        while True:
            time.sleep(interval)
            now = parse(read(url), time.monotonic())
            show(between(before, now, model))
            before = now
            if once:
                return


def metrics_url(url: str | None, is_meant: Callable[[LocalServer], bool] = lambda _: True) -> str:
    """Returns the URL of the metrics of a server at an address, or of what deploy serves here."""
    if url is None:
        return one_address(lambda server: server.metrics, is_meant) or f"{LOOPBACK}:{METRICS}"
    from trtspec.client.finding import metrics_at  # needs an extra

    return metrics_at(url)


@contextmanager
def _shown(header: str, as_json: bool) -> Iterator[Callable[[ServerFigures], None]]:
    if as_json:
        import json

        yield lambda figures: out.result(json.dumps(asdict(figures)))
    elif sys.stdout.isatty():
        with drawn(header) as draw:
            yield draw
    else:
        yield lambda figures: out.table([("", header), *rows(figures)])
