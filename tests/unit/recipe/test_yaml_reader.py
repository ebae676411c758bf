from __future__ import annotations

import time
import tracemalloc

import pytest

from trtspec.recipe.yaml_reader import MAX_BYTES, Unreadable, read


def test_values_lines_and_what_was_written() -> None:
    document = read(
        b"# a comment\nname: x\n\ntarget:\n  model: 'm'\n  build: {a: 1, b: 1_000}\nrelease: 1.10\n"
    )
    assert document.values == {
        "name": "x",
        "target": {"model": "m", "build": {"a": 1, "b": 1000}},
        "release": 1.1,
    }
    assert document.lines == {
        "name": 2,
        "target": 4,
        "target.model": 5,
        "target.build": 6,
        "target.build.a": 6,
        "target.build.b": 6,
        "release": 7,
    }
    assert document.written["release"] == "1.10"
    assert "target.model" not in document.written
    assert document.findings == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", False),
        ("On", True),
        ("~", None),
        ("", None),
        ("-5", -5),
        ("0", 0),
        ("2.5", 2.5),
        ("1e-5", "1e-5"),
        ("1.0e-5", 1e-5),
        ("1e10", "1e10"),
        ("y", "y"),
        ("2024-01-31", "2024-01-31"),
        ("'no'", "no"),
        ("=", "="),
        ("!!str 5", "5"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    document = read(f"key: {text}".encode())
    assert document.values == {"key": value}
    assert type(document.values["key"]) is type(value)
    assert document.findings == []


@pytest.mark.parametrize("text", ["010", "0x10", "0b11", "1:30", ".inf", ".nan", "1:30.5", "9" * 5000])
def test_numbers_that_nobody_means_are_refused(text: str) -> None:
    document = read(f"a: 1\nkey: {text}".encode())
    (problem,) = document.findings
    assert (problem.line, problem.subject) == (2, "key")
    assert "quotes" in str(problem.repair)


def test_duplicate_keys_name_both_lines() -> None:
    document = read(b"a: 1\nb: {c: 1,\n  c: 2}\na: 3\n")
    assert [(found.line, found.subject) for found in document.findings] == [(3, "b.c"), (4, "a")]
    assert document.findings[1].problem == "appears twice, on line 1 and on line 4"
    assert document.values == {"a": 1, "b": {"c": 1}}


def test_an_alias_stands_for_the_last_anchor_of_its_name() -> None:
    assert read(b"a: &x 1\nb: &x 2\nc: *x\n").values == {"a": 1, "b": 2, "c": 2}


def test_aliases_of_values_work_and_merge_keys_are_refused() -> None:
    document = read(b"a: &x {k: 1}\nb: *x\nc:\n  <<: *x\n")
    assert document.values == {"a": {"k": 1}, "b": {"k": 1}, "c": {}}
    (problem,) = document.findings
    assert (problem.line, problem.subject) == (4, "c.<<")


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system [ls]",
        "a: !!binary aGk=",
        "a: !own x",
        "a: !!set {x, y}",
        "a: !x {}",
    ],
)
def test_tags_are_refused(text: str) -> None:
    (problem,) = read(text.encode()).findings
    assert problem.subject == "a"
    assert "tag" in problem.problem


def test_keys_that_yaml_reads_as_something_else_stay_text() -> None:
    assert read(b"no: 1\n3.10: 2\nnull: 3\n").values == {"no": 1, "3.10": 2, "null": 3}


def test_a_key_that_is_no_scalar() -> None:
    (problem,) = read(b"a: 1\n? [b]\n: 2\n").findings
    assert (problem.line, problem.problem) == (2, "a key is a list, not text")


@pytest.mark.parametrize(
    ("data", "line", "text"),
    [
        (b"", None, "is empty"),
        (b"# only a comment\n", None, "is empty"),
        (b"---\n...\n", None, "is empty"),
        (b"- a\n- b\n", 1, "the top level is a list"),
        (b"\njust text\n", 2, "the top level is a single value"),
        (b"a: 1\n---\nb: 2\n", 3, "a second document begins here"),
        (b"a:\n\tb: 1\n", 2, "a tab stands"),
        (b"a: 1\nb: [1, 2\nc: 3\n", 3, "is not valid YAML"),
        (b"a: b: c\n", 1, "is not valid YAML"),
        (b"a: *nothing\n", 1, "is not valid YAML: found undefined alias"),
        (b"a: 1\nc: @d\n", 2, "is not valid YAML"),
        (b"a: 1\nb: \xff\n", 2, "is not UTF-8"),
        ("a: 1\n".encode("utf-16"), 1, "is not UTF-8"),
        (b"a: 1\nb: x\x00y\n", 2, "U+0000"),
        (b"a: 1\nb: x\x1b[31m\n", 2, "U+001B"),
        (b"a: " + b"[" * 100_000, 1, "brackets are nested more than 100 deep"),
        (b"- " * 100_000, None, "is nested too deeply"),
        (b"a: " + b"{b: " * 50 + b"1" + b"}" * 50, 1, "is nested more than"),
        (b"a: &x {b: *x}\n", 1, "is nested more than"),
        (b"#" * (MAX_BYTES + 1), None, "is larger than 256 KiB"),
    ],
)
def test_unreadable(data: bytes, line: int | None, text: str) -> None:
    with pytest.raises(Unreadable) as error:
        read(data)
    assert error.value.findings[0].line == line
    assert error.value.findings[0].problem.startswith(text) or text in error.value.findings[0].problem


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert read("\ufeffname: x\n".encode()).values == {"name": "x"}


def test_windows_line_ends() -> None:
    document = read(b"a: 1\r\nb:\r\n  c: 2\r\n")
    assert document.lines == {"a": 1, "b": 2, "b.c": 3}


def test_aliases_that_explode_cost_neither_time_nor_memory() -> None:
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(Unreadable, match="once its aliases are expanded"):
        read(b"a0: &a0 [x, x]\n" + levels.encode())
    assert time.process_time() - start < 2
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()
