"""Workloads as people have them: the forms that benchmarks are published in."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from trtspec.base.errors import DatasetError, MeasureError
from trtspec.measure.workloads.reading import mixed, read_lengths, read_rows, read_workload
from trtspec.measure.workloads.workload import Prompt, Shape, synthetic


def words(text: str) -> int:
    return len(text.split())


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_traces_that_were_published(tmp_path: Path) -> None:
    """The first lines of Mooncake's conversation trace and of Azure's code trace of 2023."""
    mooncake = '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    assert read_lengths(written(tmp_path, "a.jsonl", mooncake), words, 9) == [(6758, 500)]
    assert read_lengths(written(tmp_path, "b.csv", azure), words, 9) == [(374, 44)]


def test_a_byte_order_mark_is_no_part_of_a_workload(tmp_path: Path) -> None:
    """Windows' editors and Excel begin UTF-8 with a byte order mark."""
    assert read_lengths(written(tmp_path, "a.csv", "\ufeffinput_tokens,output_tokens\n5,6\n"), words, 9) == [
        (5, 6)
    ]
    assert read_lengths(written(tmp_path, "a.jsonl", '\ufeff{"prompt": "one"}\n'), words, 9) == [(1, 9)]
    assert read_rows(written(tmp_path, "a.txt", "\ufeffone\n"))[0][1] == {"prompt": "one"}


def test_prompts_and_recorded_answers_are_counted(tmp_path: Path) -> None:
    rows = [
        {"prompt": "one two three"},
        {"prompt": "one two", "max_tokens": 7},
        {"prompt": "one", "text": "four five"},
        {"prompt_token_ids": [1, 2], "answer_token_ids": [3, 4, 5]},
        {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]},
    ]
    file = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_lengths(file, words, 9) == [(3, 9), (2, 7), (1, 2), (2, 3), (2, 9)]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "when,who\n1,2\n", "a.csv:2: has no lengths: its columns are when, who"),
        ("a.csv", "", "a.csv: has no requests"),
        ("a.csv", "when,who\n1,2,3\n", "a.csv:2: has no lengths: its columns are when, who"),
        ("a.csv", "input_tokens,output_tokens\n1,x\n", "output_tokens must be a number of tokens, not 'x'"),
        ("a.csv", "prompt\nHello, world\n", "a.csv:2: has no lengths: its columns are prompt"),
        ("a.csv", f"prompt\n{'a' * 200_000}\n", "a.csv: is not CSV: field larger than field limit"),
        (
            "a.jsonl",
            '{"input_length": -1, "output_length": 2}',
            "input_length is -1, which is impossible for a request",
        ),
        ("a.jsonl", '{"input_length": 1e999, "output_length": 2}', "must be a number of tokens, not inf"),
        ("a:b.csv", "prompt\nHello, world\n", "a:b.csv:2: has no lengths: its columns are prompt"),
        ("a.jsonl", '{"prompt": "a", "text": "\\ud83d"}', "a.jsonl:1: text has half a character"),
        ("a.jsonl", '{"x": 1}', "has no prompt: its keys are x"),
    ],
)
def test_a_workload_line_without_lengths_is_refused_with_file_and_line(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    with pytest.raises(DatasetError) as error:
        read_lengths(written(tmp_path, name, text), words, 9)
    assert told in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        read_lengths(tmp_path / "gone.csv", words, 9)


def lines(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_spec_bench_and_mt_bench(tmp_path: Path) -> None:
    """As github.com/hemingkx/Spec-Bench has them, MT-bench's questions among them."""
    file = lines(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]},
        {"question_id": 161, "category": "translation", "turns": ["Translate: ja"], "reference": ["yes"]},
    )
    found = read_workload(file)
    assert (found.name, found.source) == ("question", "question.jsonl")
    assert sorted(found.prompts, key=lambda prompt: int(prompt.name)) == [
        Prompt("81", ("Compose a post.", "Rewrite it."), "writing"),
        Prompt("161", ("Translate: ja",), "translation"),
    ]
    assert [len(prompt.turns) for prompt in read_workload(file, most_turns=1).prompts] == [1, 1]
    assert read_workload(file).digest == found.digest != read_workload(file, most_turns=1).digest


def test_speed_bench(tmp_path: Path) -> None:
    """Parquet with the columns of huggingface.co/datasets/nvidia/SPEED-Bench."""
    rows: dict[str, list[Any]] = {
        "question_id": ["a1", "b2"],
        "category": ["coding", "math"],
        "sub_category": ["", ""],
        "turns": [["Write a loop.", "Now in C."], ["2 + 2?"]],
        "source": ["x", "y"],
        "src_id": ["1", "2"],
        "difficulty": ["", ""],
        "multiturn": [True, False],
    }
    write_table(pa.table(rows), tmp_path / "test.parquet")
    found = {prompt.name: prompt for prompt in read_workload(str(tmp_path / "test.parquet")).prompts}
    assert found["a1"] == Prompt("a1", ("Write a loop.", "Now in C."), "coding")
    rows["turns"][1] = ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]
    write_table(pa.table(rows), tmp_path / "test.parquet")
    with pytest.raises(DatasetError, match=r"test.parquet\[1\]: its text was left out"):
        read_workload(str(tmp_path / "test.parquet"))


def test_sharegpt(tmp_path: Path) -> None:
    """As ShareGPT_V3_unfiltered_cleaned_split.json; some of its conversations have no user."""
    said = [
        {"from": "human", "value": "What is a list?"},
        {"from": "gpt", "value": "A sequence."},
        {"from": "human", "value": "And a tuple?"},
        {"from": "gpt", "value": "One that stays."},
    ]
    file = tmp_path / "sharegpt.json"
    rows = [
        {"id": "QWJhYvA_0", "conversations": said},
        {"id": "i6IyJda_0", "conversations": [{"from": "gpt", "value": "Hello!"}]},
    ]
    file.write_text(json.dumps(rows))
    assert read_workload(str(file)).prompts == (Prompt("QWJhYvA_0", ("What is a list?", "And a tuple?")),)


def test_plain_prompts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\u2028more\n\ntwo\n")
    assert Counter(prompt.text for prompt in read_workload(str(tmp_path / "a.txt")).prompts) == {
        "one\u2028more": 1,
        "two": 1,
    }
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
    file = lines(tmp_path / "b.jsonl", {"prompt": "x", "max_tokens": 7, "category": "c"}, {"text": "y"}, chat)
    assert set(read_workload(file).prompts) == {
        Prompt("1", ("x",), "c", 7),
        Prompt("2", ("y",)),
        Prompt("3", ("Hi",)),
    }


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{', "a.jsonl:2: is not JSON"),
        ("a.jsonl", "[]\n", "a.jsonl:1: is not a JSON object"),
        ("a.jsonl", "\n", "a.jsonl: has no prompts"),
        ("a.jsonl", '{"question": "a"}', "a.jsonl:1: has no prompt: its keys are question"),
        ("a.jsonl", '{"turns": []}', "turns must be a list of texts"),
        ("a.jsonl", '{"turns": [1]}', "a turn must be text, not 1"),
        ("a.jsonl", '{"prompt": "a", "max_tokens": 0}', "max_tokens must be a number above 0"),
        ("a.jsonl", '{"prompt": "so \\ud83d"}', r"a.jsonl:1: a turn has half a character, '\ud83d'"),
        ("a.jsonl", '{"prompt": "a", "id": "\\ud83d"}', "a.jsonl:1: its name has half a character"),
        ("a.jsonl", '{"prompt": "a", "category": "so \\ud83d"}', ":1: its category has half a character"),
        ("a.jsonl", '{"conversations": "a"}', "a conversation must be a list"),
        ("a.jsonl", '{"messages": [{"role": "system", "content": "a"}]}', "a.jsonl: has no prompts: no user"),
        ("a.json", "{}", "is not a list of JSON objects"),
        ("a.parquet", "PAR", "is not Parquet"),
        ("a.xml", "a", "its name ends with none of"),
    ],
)
def test_a_workload_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError) as caught:
        read_workload(str(tmp_path / name))
    assert problem in str(caught.value)


def test_a_missing_workload_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        read_workload(str(tmp_path / "none.jsonl"))


def test_any_part_has_every_category_in_its_share() -> None:
    prompts = [Prompt(f"a{number}", ("x",), "a") for number in range(40)]
    prompts += [Prompt(f"b{number}", ("x",), "b") for number in range(20)]
    order = mixed(tuple(prompts), 1)
    assert sorted(order, key=lambda prompt: prompt.name) == sorted(prompts, key=lambda prompt: prompt.name)
    for begin in range(0, 54, 6):
        assert Counter(prompt.category for prompt in order[begin : begin + 6])["a"] in (3, 4, 5)
    assert order != mixed(tuple(prompts), 2)
    assert order == mixed(tuple(prompts), 1)


def test_synthetic_prompts_have_the_lengths_that_are_asked_for() -> None:
    found = read_workload("synthetic:input=100,output=50,spread=0.2,prompts=400", 3)
    lengths = [len(prompt.text.split()) for prompt in found.prompts]
    answers = [prompt.max_tokens or 0 for prompt in found.prompts]
    for values, mean in ((lengths, 100), (answers, 50)):
        assert sum(values) / 400 == pytest.approx(mean, rel=0.05)
        deviation = (sum((value - mean) ** 2 for value in values) / 400) ** 0.5
        assert deviation == pytest.approx(0.2 * mean, rel=0.15)
    assert synthetic(Shape(), 1) == synthetic(Shape(), 1) != synthetic(Shape(), 2)
    assert found.source == "synthetic:input=100,output=50,spread=0.2,prompts=400"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("synthetic:inputs=5", "has no inputs; there are input, output, spread, prompts"),
        ("synthetic:input=five", "input must be a number, not 'five'"),
        ("synthetic:input=0", "input must be 1 to 10,000,000, not 0"),
        ("synthetic:input=100000000", "input must be 1 to 10,000,000, not 100000000"),
        ("synthetic:spread=1e200", "spread must be 0 to 5, not 1e200"),
        ("synthetic:spread=nan", "spread must be 0 to 5, not nan"),
    ],
)
def test_a_wrong_shape_is_named(text: str, problem: str) -> None:
    with pytest.raises(MeasureError, match=problem):
        read_workload(text)
