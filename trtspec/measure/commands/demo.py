"""`trtspec demo` builds and serves the tiny pair, asks it, and compares it with its target alone."""

from __future__ import annotations

import trtspec
from trtspec.base.errors import ServerError
from trtspec.base.extras import require
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.deployment.build import find_build
from trtspec.recipe.shipped import TINY

EXAMPLES = ("trtspec demo",)
PROMPT = 'def fib(n):\n    """Return the nth Fibonacci number."""\n'
_TOKENS = 120


def demo() -> None:
    """Build and serve a tiny pair, stream one completion, stop.

    It takes about half a minute, and needs no GPU. The build goes to build/tiny in this folder, and the
    server uses free ports. The exit status is 1 if the target alone writes another text.
    """
    require("trtspec demo", "yarl", "torch", extra="serve,torch,triton")
    from trtspec.cli.generate import summary
    from trtspec.measure.bench.deployed import served

    recipe = TINY / "recipe.yaml"
    with ended_by_sigterm():
        done = trtspec.build(recipe, progress=out.watch, warn=out.warning)
        out.status(f"{done.output} has the engines of a pair that completes Python")
        with served(find_build(recipe, None), chat=False, python=None, say=out.status) as server:
            out.status(f"HTTP     {server.url}")
            out.status(f"metrics  {server.metrics_url}")
            client = trtspec.Client(server.url)
            # The first request is slower, so it does not count.
            client.generate(PROMPT, max_tokens=8)
            out.status("a completion, the draft proposing and the target verifying:")
            out.data(PROMPT)
            both = client.generate(PROMPT, max_tokens=_TOKENS, hear=out.data)
            out.data("\n")
            out.status(summary(both))
            if both.drafts and both.drafts.verifications:
                mean = both.drafts.drafted / both.drafts.verifications
                out.status(f"the policy measures what drafts cost, and chose {mean:.1f} tokens on average")
            alone = client.generate(PROMPT, max_tokens=_TOKENS, num_draft_tokens=0)
            if alone.text != both.text:
                raise ServerError(server.url, "the target alone says another text", "please report it")
            out.status(f"the target alone says the same text: {summary(alone)}")
