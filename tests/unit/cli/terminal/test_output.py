from __future__ import annotations

import io
import json
import logging
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from trtspec.cli.terminal.output import Output, in_lines, out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal, outside CI, for a test to redirect stderr to."""
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_data_goes_to_stdout_and_talk_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.data("a")
    out.data("b\n")
    out.result("c")
    out.json({"é": [1]})
    out.table([("x", 1), ("longer", 22)], header=("name", "n"))
    out.status("working")
    out.warning("careful")
    out.error("broken")
    out.hint("do this")
    with out.progress("copy"):
        pass
    streams = capsys.readouterr()
    assert streams.out.startswith("ab\nc\n{")
    assert json.loads(streams.out[5 : streams.out.index("}") + 1]) == {"é": [1]}
    assert streams.out.endswith("name    n\nx       1\nlonger  22\n")
    lines = streams.err.splitlines()
    assert lines[:5] == ["working", "warning: careful", "error: broken", "hint: do this", "copy ..."]
    assert lines[5].startswith("copy: done in ")


def test_an_empty_table_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table([])
    assert capsys.readouterr().out == ""


def test_progress_is_told_in_lines_where_nothing_can_be_drawn(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(terminal), Output().progress("copy", 10, "B"):
        assert terminal.getvalue() == "copy ...\n"


class TestColour:
    def test_labels_are_coloured_on_a_terminal(self, terminal: Terminal) -> None:
        with redirect_stderr(terminal):
            Output().error("broken")
        assert terminal.getvalue() == "\x1b[1;31merror\x1b[0m: broken\n"

    @pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
    def test_and_plain_where_that_is_asked_for(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(name, value)
        with redirect_stderr(terminal):
            Output().warning("careful")
        assert terminal.getvalue() == "warning: careful\n"


class TestTalk:
    def test_options_behind_a_command_raise_the_level_of_those_before_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = logging.RootLogger(logging.WARNING)
        monkeypatch.setattr(logging, "root", root)
        monkeypatch.setattr(logging.Logger, "root", root)
        out = Output()
        levels = []
        for verbose in (1, 2):
            out.set_talk(quiet=False, verbose=verbose)
            levels.append(root.level)
        assert levels == [logging.INFO, logging.DEBUG]

    def test_what_is_asked_for_is_said_even_with_q(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = Output()
        out.set_talk(quiet=True, verbose=1)
        out.status("said")
        assert capsys.readouterr().err == "said\n"


class TestText:
    def test_a_narrow_encoding_gets_ascii(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
        Output().result("✓ done → é")
        assert raw.getvalue() == b"ok done -> \\xe9\n"

    def test_json_is_json_in_any_encoding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw, value = io.BytesIO(), {"é→": "\U0001f600"}
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
        Output().json(value)
        assert json.loads(raw.getvalue()) == value

    def test_a_path_that_is_not_utf8(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8"))
        Output().result(b"caf\xe9".decode("utf-8", "surrogateescape"))
        assert raw.getvalue() == b"caf\\udce9\n"

    def test_no_name_sends_a_control_sequence_to_the_terminal(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = Output()
        out.result("a\x1b[2Jb")
        out.error("c\x07\x9bd")
        out.table([("\x1b[31m", "x\r")])
        streams = capsys.readouterr()
        assert streams.out == "a\\x1b[2Jb\n\\x1b[31m  x\\x0d\n"
        assert streams.err == "error: c\\x07\\x9bd\n"

    def test_data_is_handed_on_as_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        Output().data("a\x1b\r\n")
        assert capsys.readouterr().out == "a\x1b\r\n"


class TestProgress:
    def test_lines_come_at_most_every_ten_seconds(self) -> None:
        lines: list[str] = []
        now = [0.0]
        with in_lines("copy", 200, "B", lines.append, lambda: now[0]) as advance:
            for _ in range(21):
                now[0] += 1
                advance(5)
        assert lines == [
            "copy ...",
            "copy: 25 % after 10 s, 30 s left",
            "copy: 50 % after 20 s, 20 s left",
            "copy: done in 21.0 s",
        ]

    def test_without_a_total_the_amount_is_shown(self) -> None:
        lines: list[str] = []
        now = [0.0]
        with in_lines("read", None, "files", lines.append, lambda: now[0]) as advance:
            now[0] = 12
            advance(3)
        assert lines[1] == "read: 3 files after 12 s"

    def test_where_nothing_is_counted_the_time_is_shown(self) -> None:
        lines: list[str] = []
        now = [0.0]
        with in_lines("start", None, "", lines.append, lambda: now[0]) as advance:
            now[0] = 12
            advance(0)
            now[0] = 24
            advance(0, "loading")
        assert lines[1:3] == ["start: 12 s", "start: loading after 24 s"]

    def test_progress_in_lines_does_not_call_failed_work_done(self) -> None:
        lines: list[str] = []
        with pytest.raises(OSError, match="x"), in_lines("copy", None, "", lines.append, lambda: 0.0):
            raise OSError("x")
        assert lines == ["copy ..."]

    def test_a_bar_on_a_terminal(self, terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
        out = Output(lambda: 7.0)
        with redirect_stderr(terminal), out.progress("convert [target]", total=2, unit="B") as advance:
            advance(1)
            out.status("a line between")
            out.result("data")
            advance(1)
        shown = terminal.getvalue()
        assert "convert [target]" in shown
        assert "2/2 bytes" in shown
        assert "a line between" in shown
        assert "done in" not in shown
        # Rich takes the bar away; what stays is one line.
        assert shown.rpartition("\x1b[2K")[2] == "✓ convert [target]  0.0 s\n"
        assert capsys.readouterr().out == "data\n"

    def test_a_bar_of_what_failed_has_no_tick(self, terminal: Terminal) -> None:
        now = iter((1.0, 3.5))
        with (
            redirect_stderr(terminal),
            pytest.raises(OSError, match="x"),
            Output(lambda: next(now)).progress("convert"),
        ):
            raise OSError("x")
        assert terminal.getvalue().endswith("✗ convert  2.5 s\n")

    def test_no_bar_in_ci(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CI", "true")
        with redirect_stderr(terminal), Output().progress("convert", total=2):
            pass
        assert terminal.getvalue().startswith("convert ...\nconvert: done in")


class TestNarrowTable:
    ROWS = (("name", "default", "a reason of several words that is long"), ("other", "recipe", "short"))

    def test_its_last_column_is_broken_between_words(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        with redirect_stdout(terminal):
            Output().table(self.ROWS)
        assert terminal.getvalue().splitlines() == [
            "name   default  a reason of several",
            "                words that is long",
            "other  recipe   short",
        ]

    def test_the_widest_of_the_others_is_broken_too_where_it_leaves_no_room(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        rule = "memory at the batch sizes that are wanted"
        with redirect_stdout(terminal):
            Output().table([("yes", rule, "32 requests at full length"), ("no", "K", "8")])
        assert terminal.getvalue().splitlines() == [
            "yes  memory at the      32 requests at",
            "     batch sizes that   full length",
            "     are wanted",
            "no   K                  8",
        ]

    def test_the_last_column_gets_its_own_lines_where_the_others_leave_no_room(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "28")
        with redirect_stdout(terminal):
            Output().table(self.ROWS)
        assert terminal.getvalue().splitlines() == [
            "name   default",
            "    a reason of several",
            "    words that is long",
            "other  recipe   short",
        ]

    def test_the_last_column_is_not_broken_where_it_fits(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        with redirect_stdout(terminal):
            Output().table(self.ROWS)
        assert len(terminal.getvalue().splitlines()) == 2

    def test_a_file_has_one_line_a_row(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        Output().table(self.ROWS)
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_a_sentence_is_broken_as_well(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "20")
        with redirect_stdout(terminal):
            Output().sentence("worth a measurement; the rest needs a run")
            Output().result("a command that is pasted stays whole")
        assert terminal.getvalue().splitlines() == [
            "worth a measurement;",
            "the rest needs a run",
            "a command that is pasted stays whole",
        ]


class BothForms:
    """A result as commands have it."""

    def tell(self) -> None:
        out.result("for people")

    def as_json(self) -> dict[str, str]:
        return {"for": "machines"}


def test_a_result_is_shown_in_one_of_its_two_forms(capsys: pytest.CaptureFixture[str]) -> None:
    out.show(BothForms(), as_json=False)
    assert capsys.readouterr().out == "for people\n"
    out.show(BothForms(), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"for": "machines"}
