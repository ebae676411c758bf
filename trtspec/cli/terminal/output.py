"""The one place that writes to the terminal: data on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import zip_longest
from shutil import get_terminal_size
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from trtspec.base.progress import Advance

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C has ended."""

_ASCII = str.maketrans({"✓": "ok", "✗": "x", "…": "...", "→": "->", "≥": ">=", "≤": "<="})
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_GAP = "  "
_INDENT = "    "
_NARROWEST = 16
"""Columns for which it is worth breaking text."""
_RED, _YELLOW, _CYAN = "31", "33", "36"
_INTERVAL_S = 10.0
"""The seconds between two lines of progress."""


def log_line(level: str, logger: str, message: str, **fields: str) -> str:
    """Returns a line of JSON that is of now."""
    time = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said = {"time": time, "level": level, "logger": logger, "message": message, **fields}
    return json.dumps(said, ensure_ascii=False)


class ShownResult(Protocol):
    """The result of a command, which has both of its forms."""

    def tell(self) -> None:
        """Prints it for people."""
        ...

    def as_json(self) -> Any:
        """Returns it for programs."""
        ...


class Output:
    """Prints for the commands; looks up the streams at each call, so that a redirected one is honoured."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._is_log = clock, False
        self.is_quiet = False
        """Nothing is said on stderr but warnings and errors."""
        self.verbose = 0
        """1 shows all that a command knows, and the logs of libraries; 2 shows all logs."""

    def set_talk(self, *, quiet: bool, verbose: int) -> None:
        """Sets how much is said; the logs of libraries go to stderr.

        A second call, for the options behind a command, raises the level of the first. What is asked for by
        -v is said, even with -q.
        """
        self.is_quiet, self.verbose = quiet and not verbose, verbose
        if verbose:
            import logging

            logging.basicConfig()
            logging.getLogger().setLevel(logging.INFO if verbose == 1 else logging.DEBUG)

    def log_as_json(self) -> None:
        """From now on, prints each line as a line of JSON on stdout, for collectors of logs."""
        self._is_log = True

    # Data, on stdout.

    def data(self, text: str) -> None:
        """Prints text as it is, without a line end, at once: for streams of generated text."""
        _write(sys.stdout, text)

    def result(self, line: str = "") -> None:
        """Prints one line of the result."""
        self._line(sys.stdout, "info", line)

    def log(self, line: str) -> None:
        """Prints a line of a log, which is JSON after `log_as_json`."""
        _write(sys.stdout, (line if self._is_log else visible(line)) + "\n")

    def sentence(self, text: str) -> None:
        """Prints prose, wrapped between words on a narrow terminal. Use `result` for what people paste."""
        columns = get_terminal_size().columns if sys.stdout.isatty() else None
        for line in _lines("", visible(text), columns):
            _write(sys.stdout, line + "\n")

    def json(self, value: Any) -> None:
        """Prints the whole answer as one JSON document."""
        text = json.dumps(value, indent=2, ensure_ascii=False)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            text = json.dumps(value, indent=2)
        _write(sys.stdout, text + "\n")

    def show(self, result: ShownResult, *, as_json: bool) -> None:
        """Prints a result, for people or as JSON."""
        if as_json:
            self.json(result.as_json())
        else:
            result.tell()

    def table(self, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> None:
        """Prints columns, each padded to its widest cell except the last.

        On a narrow terminal the last column is wrapped between words, and the widest of the others are if
        they leave no room for it; it gets lines of its own if there still is none. It does not use Rich's
        tables: importing them takes 50 ms, and a pipe needs plain text anyway.
        """
        cells = [[visible(str(cell)) for cell in row] for row in ([header] if header else []) + list(rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        columns = get_terminal_size().columns if sys.stdout.isatty() else None
        if columns:
            _shrink(widths, cells, columns)
        for row in cells:
            for line in _row(row, widths, columns):
                _write(sys.stdout, line.rstrip() + "\n")

    # Talk, on stderr.

    def status(self, line: str) -> None:
        """Says what trtspec is doing."""
        if not self.is_quiet:
            self._line(sys.stderr, "info", line)

    def warning(self, line: str) -> None:
        self._label("warning", _YELLOW, line)

    def error(self, line: str) -> None:
        self._label("error", _RED, line)

    def hint(self, line: str) -> None:
        """Says what to do next, best with a command that can be pasted."""
        self._label("hint", _CYAN, line)

    def next(self, command: str) -> None:
        """Prints the next trtspec command, only on a terminal."""
        if sys.stderr.isatty() and not self._is_log and not self.is_quiet:
            self._label("next", _CYAN, f"trtspec {command}")

    @property
    def draws(self) -> bool:
        """True if progress is drawn in place, and not printed in lines."""
        return sys.stderr.isatty() and not self.is_quiet and not os.environ.get("CI") and not _is_dumb()

    def progress(
        self, label: str, total: int | None = None, unit: str = ""
    ) -> AbstractContextManager[Advance]:
        """Shows the progress of the block: a bar on a terminal, plain lines elsewhere and in CI.

        `total` is in `unit`s ("B" is shown as kB, MB, GB); without it only the time is shown.
        """
        return (as_bar if self.draws else in_lines)(label, total, unit, self.status, self._clock)

    def watch(self, label: str, size: int | None) -> AbstractContextManager[Advance]:
        """Shows the progress of the block in bytes; `size` is None if it is not known."""
        return self.progress(label, size, "B")

    def _line(self, stream: TextIO, level: str, line: str) -> None:
        if self._is_log:
            _write(sys.stdout, log_line(level, "trtspec", line) + "\n")
        else:
            _write(stream, visible(line) + "\n")

    def _label(self, label: str, colour: str, line: str) -> None:
        if self._is_log:
            self._line(sys.stdout, {"hint": "info"}.get(label, label), line)
            return
        if _coloured(sys.stderr):
            label = f"\x1b[1;{colour}m{label}\x1b[0m"
        _write(sys.stderr, f"{label}: {visible(line)}\n")


def _lines(before: str, last: str, columns: int | None) -> list[str]:
    """Returns the lines of a row whose last cell is `last`, if possible no wider than the columns."""
    if columns is None or len(before) + len(last) <= columns:
        return [before + last]
    if columns - len(before) >= _NARROWEST:
        return textwrap.wrap(
            last, columns, initial_indent=before, subsequent_indent=" " * len(before), break_on_hyphens=False
        )
    return [before, *textwrap.wrap(last, columns, initial_indent=_INDENT, subsequent_indent=_INDENT)]


def _shrink(widths: list[int], cells: Sequence[Sequence[str]], columns: int) -> None:
    """Makes the widest columns narrower, down to their longest words, until the last one has room."""
    least = [
        max((len(word) for cell in column for word in cell.split()), default=0)
        for column in zip(*cells, strict=True)
    ]
    while sum(widths[:-1]) + len(_GAP) * (len(widths) - 1) > columns - _NARROWEST:
        wide = [
            (width - low, index)
            for index, (width, low) in enumerate(zip(widths[:-1], least, strict=False))
            if width > low
        ]
        if not wide:
            return
        widths[max(wide)[1]] -= 1


def _row(row: Sequence[str], widths: Sequence[int], columns: int | None) -> list[str]:
    """Returns the lines of a row; cells that are wider than their column are broken between words."""
    *cells, last = row
    parts = [
        textwrap.wrap(cell, width, break_on_hyphens=False) if len(cell) > width else [cell]
        for cell, width in zip(cells, widths, strict=False)
    ]
    befores = [
        _GAP.join((*(part.ljust(width) for part, width in zip(line, widths, strict=False)), ""))
        for line in zip_longest(*parts, fillvalue="")
    ] or [""]
    first, *more = _lines(befores[0], last.rstrip(), columns)
    if first == befores[0]:
        return [*befores, *more]
    start = len(befores[0])
    texts = [line[start:] for line in (first, *more)]
    return [(before or " " * start) + text for before, text in zip_longest(befores, texts, fillvalue="")]


def _coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    """Says whether the terminal cannot redraw a line, such as a shell in an editor."""
    return os.environ.get("TERM") == "dumb"


def visible(text: str) -> str:
    """Returns the text with control characters escaped.

    Names and values come from files and servers: none may send a control sequence to the terminal.
    """
    return text.translate(_CONTROL)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


@contextmanager
def in_lines(
    label: str, total: int | None, unit: str, say: Callable[[str], None], clock: Callable[[], float]
) -> Iterator[Advance]:
    """Prints a line at the start, one every ten seconds, and one at the end with the time that it took."""
    done = 0
    start = spoken = clock()
    say(f"{label} ...")

    def advance(amount: int, note: str = "", /) -> None:
        nonlocal done, spoken
        done += amount
        now = clock()
        if now - spoken >= _INTERVAL_S:
            spoken = now
            percent = f"{100 * done // total} %" if total else ""
            so_far = note or percent or (f"{done} {unit}".rstrip() if done else "")
            left = (
                f", {(total - done) * (now - start) / done:.0f} s left" if total and 0 < done < total else ""
            )
            say(f"{label}: {so_far}{' after ' * bool(so_far)}{now - start:.0f} s{left}")

    yield advance
    say(f"{label}: done in {clock() - start:.1f} s")


@contextmanager
def as_bar(
    label: str, total: int | None, unit: str, say: Callable[[str], None], clock: Callable[[], float]
) -> Iterator[Advance]:
    """Draws a bar on stderr by Rich; at the end, a line with a tick and the time replaces it."""
    from rich import progress
    from rich.console import Console

    columns: list[ProgressColumn] = [progress.TextColumn("{task.description}", markup=False)]
    columns.append(progress.BarColumn() if total else progress.SpinnerColumn())
    if total:
        columns.append(progress.DownloadColumn() if unit == "B" else progress.MofNCompleteColumn())
        columns.append(progress.TimeRemainingColumn(elapsed_when_finished=True))
    else:
        columns.append(progress.TimeElapsedColumn())
    bar = progress.Progress(*columns, console=Console(stderr=True), redirect_stdout=False, transient=True)
    task = bar.add_task(label, total=total)

    def advance(amount: int, note: str = "", /) -> None:
        bar.advance(task, amount)
        if note:
            bar.update(task, description=f"{label}: {note}")

    start, tick = clock(), "✗"
    bar.start()
    try:
        yield advance
        tick = "✓"
    finally:
        bar.stop()
        say(f"{tick} {label}  {clock() - start:.1f} s")


out = Output()


@dataclass(frozen=True, slots=True)
class ShownRows:
    """Rows that people see as a table of their first columns, and programs whole."""

    rows: Sequence[Mapping[str, Any]]
    nothing: str
    """The words if there is no row."""
    header: Sequence[str]
    """The titles of the columns."""

    def tell(self) -> None:
        if not self.rows:
            out.status(self.nothing)
            return
        out.table([list(row.values())[: len(self.header)] for row in self.rows], self.header)

    def as_json(self) -> Any:
        return self.rows
