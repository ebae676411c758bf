"""How wide an iteration is made, by what can be afforded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec.backends.table import load
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.resolved import Choice, Chooser, choose_num_tokens

SCARCE = "more would cost over a tenth of the KV cache"
WHOLE = ": an iteration counts them whole"

Choose = Callable[[BuildOptions, int], Choice]


@pytest.fixture
def chosen(pair_recipe: Path) -> Choose:
    """The choice for a target where iterations of up to so many tokens can be afforded."""

    def choose(target: BuildOptions, most: int) -> Choice:
        chooser = Chooser(load(pair_recipe), {}, {})
        tokens = choose_num_tokens(chooser, target, lambda tokens: tokens <= most)
        assert tokens == chooser.choices[-1].value
        return chooser.choices[-1]

    return choose


@pytest.mark.parametrize(
    ("batch", "length", "most", "tokens", "reason"),
    [
        (16, 8192, 10**6, 16384, f"16 sequences of 1,016 tokens at once{WHOLE}"),
        (16, 8192, 16383, 8200, SCARCE),  # at least the longest sequence, so that no draft is discarded
        (16, 8192, 8199, 8192, SCARCE),
        (16, 32768, 10**6, 32776, f"16 sequences of 2,040 tokens at once{WHOLE}"),
        (16, 32768, 32775, 16384, SCARCE),
        (16, 1000, 10**6, 16 * 1008, "every request at its longest"),
        (1, 8192, 10**6, 8200, "every request at its longest"),
        (16, 256, 10**6, 8192, "trtllm-build's default"),
        (4096, 8192, 10**6, 4096 * 9, "one verification of every request"),
    ],
)
def test_the_widest_that_can_be_afforded(
    chosen: Choose, batch: int, length: int, most: int, tokens: int, reason: str
) -> None:
    found = chosen(BuildOptions(batch, length - 1, length, 0, 8), most)
    assert (found.value, found.reason) == (tokens, reason)
