"""The one mapping from an exception to text for a person: the thing, what is wrong with it, the repair."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from trtspec.base.errors import RecipeError, StepError, TrtspecError
from trtspec.base.extras import missing_extra


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of an error for a person.

    The lines are shown first, as they are, then the summary, then the repair.
    """

    summary: str
    repair: str | None = None
    lines: tuple[str, ...] = ()


def explain(error: BaseException) -> Explanation | None:
    """Returns the explanation of an error; None for one that no user can cause, a defect of trtspec."""
    known = missing_extra(error) if isinstance(error, ModuleNotFoundError) else error
    if isinstance(known, RecipeError):
        return _recipe(known)
    if isinstance(known, TrtspecError):
        return _known(known)
    return _os(known) if isinstance(known, OSError) else None


def _recipe(error: RecipeError) -> Explanation:
    lines = []
    for finding in error.findings:
        place = f"{error.path}:{finding.line}" if finding.line else error.path
        key = f"{finding.subject}: " if finding.subject else ""
        repair = f"; {finding.repair}" if finding.repair else ""
        lines.append(f"{place}: {key}{finding.problem}{repair}")
    count = len(lines)
    return Explanation(f"{error.path}: {count} problem{'s' * (count > 1)} in this recipe", lines=tuple(lines))


def _known(error: TrtspecError) -> Explanation:
    log = (f"its output is in {error.log}",) if isinstance(error, StepError) and error.log else ()
    return Explanation(f"{error.subject}: {error.problem}", error.repair, (*error.lines, *log))


def _os(error: OSError) -> Explanation:
    name = str(error.filename) if error.filename is not None else ""
    problem, repair = _OS_PROBLEMS.get(error.errno or 0, (error.strerror or str(error), None))
    return Explanation(f"{name}: {problem}" if name else problem, repair)


_OS_PROBLEMS: dict[int, tuple[str, str | None]] = {
    errno.ENOSPC: ("the disk is full", "Free some space and run the command again; what is whole is kept."),
    errno.EDQUOT: (
        "the disk quota is used up",
        "Free some space and run the command again; what is whole is kept.",
    ),
    errno.EACCES: ("permission denied", "Check the owner and the mode of the file and of its folder."),
    errno.EPERM: ("operation not permitted", "Check the owner and the mode of the file and of its folder."),
    errno.EROFS: ("the file system is read-only", None),
    errno.ENOENT: ("no such file or folder", None),
    errno.EEXIST: ("is in the way", "Remove it, or choose another name."),
    errno.EISDIR: ("is a folder, but a file is needed", None),
    errno.ENOTDIR: ("a part of this path is not a folder", None),
    errno.EMFILE: ("too many open files", "Raise the limit: ulimit -n 4096"),
    errno.ENAMETOOLONG: ("this name is too long", None),
    errno.EADDRINUSE: ("the port is in use", "Stop what listens there, or choose another port."),
}
