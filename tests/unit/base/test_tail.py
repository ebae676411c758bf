from __future__ import annotations

from pathlib import Path

from trtspec.base.tail import Tail, last_bytes


def test_lines_come_once_they_have_ended(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    tail = Tail(log)
    assert tail.lines() == []
    log.write_text("one\ntw")
    assert tail.lines() == ["one"]
    log.write_text("one\ntwo\n")
    assert tail.lines() == ["two"]


def test_a_line_ends_at_a_line_end_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text('{"message": "one\u2028two\x85three"}\n50 %\r100 %\n')
    assert Tail(log).lines() == ['{"message": "one\u2028two\x85three"}', "50 %", "100 %"]


def test_a_log_that_is_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("of a server that has ended\n")
    tail = Tail(log)
    tail.lines()
    log.write_text("anew\n")
    assert tail.lines() == ["anew"]
    assert last_bytes(log, 100, begin=27) == "anew\n"


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("0123456789")
    assert last_bytes(log, 4) == "6789"
    assert last_bytes(log, 100, begin=8) == "89"
    assert last_bytes(log, 100, begin=10) == ""


def test_a_log_that_somebody_has_removed_is_empty(tmp_path: Path) -> None:
    assert last_bytes(tmp_path / "none.log", 4) == ""
