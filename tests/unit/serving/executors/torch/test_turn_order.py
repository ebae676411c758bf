from __future__ import annotations

from trtspec.serving.executors.torch.device_thread import TurnOrder


def run(order: TurnOrder, work: dict[str, int], arrivals: dict[int, tuple[str, int]] | None = None) -> str:
    """One letter for each step: d of the draft, t of the target; `arrivals` come before the step of that
    number."""
    steps, turn = "", None
    while turn is not None or not steps:
        engine, more = (arrivals or {}).get(len(steps), ("draft", 0))
        work[engine] += more
        turn = order.next([work["draft"] > 0, work["target"] > 0])
        if turn is not None:
            engine = ("draft", "target")[turn]
            work[engine] -= 1
            steps += engine[0]
    return steps


def test_the_draft_goes_first() -> None:
    assert run(TurnOrder(4), {"draft": 4, "target": 2}) == "ddddtt"


def test_nobody_waits_for_an_engine_without_work() -> None:
    assert run(TurnOrder(1), {"draft": 9, "target": 0}) == "d" * 9
    assert run(TurnOrder(1), {"draft": 0, "target": 3}) == "ttt"


def test_the_target_has_its_turn_however_many_arrive() -> None:
    """150 arrivals, one before each step, of two draft steps each: the draft is never without work."""
    steps = run(TurnOrder(8), {"draft": 0, "target": 40}, dict.fromkeys(range(150), ("draft", 2)))
    busy = steps[:150]
    assert busy.count("t") == 150 // 9
    assert "d" * 9 not in busy


def test_only_steps_that_somebody_waited_for_count_in_a_row() -> None:
    """What the draft did while the target had nothing does not count against it."""
    order = TurnOrder(3)
    assert run(order, {"draft": 10, "target": 0}, {4: ("target", 1)}) == "dddd" + "dddt" + "ddd"


def test_a_target_that_has_had_its_step_waits_again() -> None:
    assert run(TurnOrder(2), {"draft": 6, "target": 3}) == "ddtddtddt"
