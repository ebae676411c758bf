"""A sequence knows its largest token, in whatever portions its tokens come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtspec.serving.text import Text

TOKENS = st.lists(st.integers(0, 50), max_size=5)


@given(TOKENS, st.lists(TOKENS | st.integers(0, 50), max_size=6), st.integers(0, 20))
def test_the_largest_token_is_that_of_all(prompt: list[int], rounds: list[list[int] | int], cut: int) -> None:
    text, same = Text(prompt), list(prompt)
    for new in rounds:
        if isinstance(new, int):
            text.append(new)
            same.append(new)
        else:
            text.extend(new)
            same.extend(new)
    assert text == same
    assert text.largest == max(same, default=0)
    assert list(text.packed(len(text))) == same
    beginning = text.beginning(min(cut, len(text)))
    assert beginning == same[: len(beginning)]
    assert beginning.largest == max(beginning, default=0)
