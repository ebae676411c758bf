"""Where the engines run, by how many GPUs there are."""

from __future__ import annotations

import pytest

from trtspec.base.roles import Role
from trtspec.pipeline.repository.spec import Placement, place


@pytest.mark.parametrize(
    ("target", "draft", "gpus", "expected"),
    [
        (1, 1, 1, Placement((0,), (0,))),
        (1, 1, 2, Placement((0,), (1,))),
        (1, 1, 8, Placement((0,), (1,))),
        (2, 1, 2, Placement((0, 1), (0,))),
        (2, 1, 3, Placement((0, 1), (2,))),
        (8, 8, 8, Placement(tuple(range(8)), tuple(range(8)))),
        (4, 2, 8, Placement((0, 1, 2, 3), (4, 5))),
    ],
)
def test_apart_where_there_is_room(target: int, draft: int, gpus: int, expected: Placement) -> None:
    placement = place({Role.TARGET: target, Role.DRAFT: draft}, gpus)
    assert placement == expected
    assert placement.is_shared is (target + draft > gpus)


@pytest.mark.parametrize(
    ("target", "gpus", "chosen", "shared"),
    [
        (1, 2, (0,), True),
        (1, 4, (3,), False),
        (2, 2, (1,), True),
        (1, 1, (), False),
        (2, 4, (), False),
    ],
)
def test_a_recipe_may_choose_the_gpu_of_the_draft_or_none(
    target: int, gpus: int, chosen: tuple[int, ...], shared: bool
) -> None:
    placement = place({Role.TARGET: target, Role.DRAFT: 1}, gpus, chosen)
    assert placement == Placement(tuple(range(target)), chosen)
    assert placement.is_shared is shared
