from __future__ import annotations

import random

from trtspec.serving.executors.torch.slots import Lease, Slots, common_prefix

LONG = list(range(300))


def filled(*texts: list[int], count: int = 3) -> Slots:
    """Slots that hold these texts, all free, the first the longest unused."""
    slots = Slots(count)
    leases = [slots.take(list(text), 1) for text in texts]
    for text, lease in zip(texts, leases, strict=True):
        slots.grow(lease.slot, len(text))
    for lease in leases:
        slots.free(lease.slot)
    return slots


def test_common_prefix_is_that_of_a_loop():
    dice = random.Random(0)
    for _ in range(500):
        a = [dice.randrange(50) for _ in range(dice.randrange(200))]
        b = a[: dice.randrange(len(a) + 1)] + [dice.randrange(50) for _ in range(dice.randrange(30))]
        limit = dice.randrange(min(len(a), len(b)) + 1)
        same = 0
        while same < limit and a[same] == b[same]:
            same += 1
        assert common_prefix(a, b, limit) == same


def test_the_slot_of_the_last_round_is_taken_again():
    slots = filled(LONG[:100], [7, 7, 7], [8, 8])
    assert slots.take([*LONG[:98], 5, 6], 1) == Lease(0, 98)
    assert slots.take([7, 7, 7, 1], 1) == Lease(1, 3)


def test_the_tokens_needed_are_not_reused():
    assert filled(LONG[:100]).take(LONG[:100], 1).reused == 99


def test_a_text_that_would_lose_its_tail_is_copied_from():
    slots = filled(LONG, [7, 7])
    lease = slots.take([*LONG[:150], 3], 1)
    assert (lease.reused, lease.copy_from) == (150, 0)
    assert lease.slot != 0
    assert slots.take([*LONG, 3], 1).reused == 300


def test_a_busy_slot_is_copied_from_when_that_pays():
    slots = Slots(2)
    busy = slots.take(LONG[:100], 1)
    slots.grow(busy.slot, 100)
    assert slots.take([*LONG[:100], 1], 1) == Lease(1, 100, busy.slot)
    assert slots.take([1], 1) is None


def test_what_a_busy_slot_has_not_computed_is_not_there():
    slots = Slots(2)
    slots.grow(slots.take(LONG, 1).slot, 10)
    assert slots.take(LONG, 1) == Lease(1, 0)


def test_the_least_recently_used_is_overwritten():
    slots = filled([1] * 9, [2] * 9, [3] * 9)
    assert slots.take([4, 4], 1).slot == 0
    assert slots.take([5, 5], 1).slot == 1


def test_nothing_is_known_after_forget():
    slots = filled(LONG)
    slots.forget()
    assert slots.take(LONG, 1).reused == 0
