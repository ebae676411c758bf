"""Runs steps that have GPUs of their own at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from threading import Event
from time import monotonic

from trtspec.base.progress import Advance
from trtspec.pipeline.run.step import Step

Job = Callable[[Advance], None]


class _Stopped(Exception):
    """Raised in a job to end it, since another has failed or the user has pressed Ctrl-C."""


def groups(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yields the steps in their order, in groups that can be run at the same time.

    Where a group has several steps, they have GPUs of their own and do not read each other's output.
    """
    group: list[Step] = []
    for step in steps:
        if group and not all(_apart(step, other) for other in group):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def run_together(jobs: Sequence[Job], advance: Advance) -> Iterator[tuple[int, float]]:
    """Runs the jobs, in threads if there are several, and yields the index and the seconds of each that ends.

    Raises what a job raises. The other jobs then end the next time that they call `advance`, as they do with
    Ctrl-C.
    """
    if len(jobs) == 1:
        yield 0, _timed(jobs[0], advance)
        return
    stop, notes = Event(), [""] * len(jobs)

    def tell(index: int, amount: int, note: str = "") -> None:
        if stop.is_set():
            raise _Stopped
        notes[index] = note
        advance(amount, " | ".join(filter(None, notes)))

    with ThreadPoolExecutor(len(jobs)) as pool:
        running = {pool.submit(_timed, job, partial(tell, index)): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            stop.set()


def _apart(one: Step, other: Step) -> bool:
    if not one.gpus or not other.gpus or set(one.gpus) & set(other.gpus):
        return False
    return other.name not in one.after and one.name not in other.after


def _timed(job: Job, advance: Advance) -> float:
    start = monotonic()
    job(advance)
    return round(monotonic() - start, 3)
