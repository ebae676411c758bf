"""YAML that others wrote to take long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trtspec.base import yaml11


@pytest.mark.parametrize("read", [yaml11.num_aliases, yaml11.compose, yaml11.load])
@pytest.mark.parametrize("brackets", ["[", "{a: "])
def test_brackets_are_read_to_a_depth(read: Callable[[str], object], brackets: str) -> None:
    with pytest.raises(yaml11.MarkedYAMLError, match="brackets are nested more than 100 deep"):
        read(brackets * 100_000)
    read(brackets * 100 + "1" + ("]" if brackets == "[" else "}") * 100)
