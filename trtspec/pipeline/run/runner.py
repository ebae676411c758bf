"""Runs the steps of a build: each makes its whole output or none of it, and no step is run twice.

Steps that have GPUs of their own run at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic

from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.files import FULL, publish, remove, remove_leftovers, replaced_by, temporary, try_lock
from trtspec.base.progress import Advance, Progress
from trtspec.pipeline.run.records import (
    FOLDER,
    FileDigests,
    Record,
    files_of,
    inputs_of,
    is_done,
    pending,
    read_records,
    write_records,
)
from trtspec.pipeline.run.step import Step

Job = Callable[[Advance], None]
LOCK = f"{FOLDER}/lock"


def run(steps: Sequence[Step], build: Path, digests: FileDigests, watch: Progress) -> list[str]:
    """Runs the steps that are not done yet and returns their names; an interrupted run can be repeated.

    Raises a step's obstacle before any step is run, and whatever a step raises, after its unfinished output
    is removed. Raises UnavailableError for a full disk, a directory that another build holds, and one that
    has other files where outputs belong, and ChangedError for a source that is not the one any more that was
    digested: a step whose sources have changed makes nothing.
    """
    ran = []
    check_ours(steps, build)
    with only_build(build):
        for step in steps:
            if step.output:
                remove_leftovers(build / step.output)
        names = pending(steps, build, digests)
        undone = [step for step in steps if step.name in names]
        prepare(undone, watch)
        fetch_weights(undone, watch)
        records = read_records(build)
        for group in groups(steps):
            undone = [step for step in group if not is_done(step, records, build, digests)]
            if not undone:
                continue
            if [step for step in undone if records.pop(step.name, None)]:
                write_records(build, records)
            made_of = [digests.of_step(step) for step in undone]
            jobs = [partial(_make, step, build, digests) for step in undone]
            with watch(" and ".join(step.name for step in undone), undone[0].size) as advance:
                for index, seconds in run_together(jobs, advance):
                    step = undone[index]
                    files = files_of(step, build, digests)
                    records[step.name] = Record(made_of[index], inputs_of(step, records), files, seconds)
                    write_records(build, records)
                    ran.append(step.name)
        digests.save()
    return ran


@contextmanager
def only_build(build: Path) -> Iterator[None]:
    """Holds the lock of a build directory; raises UnavailableError if another process holds it.

    The kernel frees the lock of a process that dies. The descriptor is inheritable: a builder that outlives a
    killed trtspec keeps the lock until it ends. So the file stays, with the process in it.
    """
    file = build / LOCK
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = try_lock(file)
    if descriptor is None:
        owner = file.read_text(errors="replace").strip()
        problem = f"another build is running here (process {owner})"
        raise UnavailableError(build, problem, "wait for it to end, or choose another --output")
    try:
        os.set_inheritable(descriptor, True)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def check_ours(steps: Sequence[Step], build: Path) -> None:
    """Raises UnavailableError if a file of the user's is where an output would be put."""
    outputs = [Path(step.output) for step in steps if step.output]
    made = (path for output in outputs for path in (output, temporary(output), replaced_by(output)))
    theirs = [path.parts[0] for path in made if (build / path.parts[0]).exists()]
    if theirs and not (build / FOLDER).is_dir():
        problem = f"holds {theirs[0]}, which trtspec did not make"
        raise UnavailableError(build, problem, "choose another --output")


def prepare(steps: Sequence[Step], watch: Progress) -> None:
    """Raises the first obstacle of these steps and prepares them, before an hour of conversion."""
    for step in steps:
        if step.obstacle:
            step.obstacle.step = step.name
            raise step.obstacle
    for step in steps:
        if step.prepare:
            with named(step):
                step.prepare(watch)


def fetch_weights(steps: Iterable[Step], watch: Progress) -> None:
    """Downloads the weights that these steps read, as far as this machine lacks them."""
    for step in steps:
        if step.fetch:
            step.fetch(watch)


@contextmanager
def named(step: Step) -> Iterator[None]:
    """Adds the step's name to a TrtspecError that is raised in the block."""
    try:
        yield
    except TrtspecError as error:
        error.step = step.name
        raise


def _make(step: Step, build: Path, digests: FileDigests, advance: Advance) -> None:
    output = build / (step.output or step.name)
    made = temporary(output)
    made.parent.mkdir(parents=True, exist_ok=True)
    try:
        with named(step):
            try:
                step.action(made, advance, **digests.filled(step.told, step.name))
            finally:
                # It may have failed for this reason.
                digests.check()
        if step.output:
            publish(made, output)
    except OSError as error:
        if error.errno not in FULL:
            raise
        repair = "free some space and run the same command again; finished parts are kept"
        full = UnavailableError(output, f"the disk is full ({error.strerror})", repair)
        full.step = step.name
        raise full from error
    finally:
        remove(made)


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
