"""The tree that Medusa's heads propose."""

from __future__ import annotations

import pytest

from trtspec.backends.tensorrt_llm.heads import choices


@pytest.mark.parametrize("size", [1, 8, 63])
@pytest.mark.parametrize("heads", [2, 4, 5, 8])
def test_the_medusa_tree_has_the_given_size_and_no_gaps(heads: int, size: int) -> None:
    paths = choices(heads, size)
    assert len(paths) == len(set(paths)) == size
    assert max(map(len, paths)) <= heads
    for path in paths:  # Each path's beginning, and its likelier sibling, are there.
        assert len(path) == 1 or path[:-1] in paths
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths


def test_one_head_has_no_more_paths_than_the_runtime_tells_apart() -> None:
    """By four bits a rank: `PREFIX_CHUNK_SIZE_BITS` of TensorRT-LLM's speculativeChoicesUtils.cpp."""
    assert choices(1) == [(rank,) for rank in range(16)]
