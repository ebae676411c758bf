"""The lengths of requests, from the traces that people have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.reading import read_lengths, read_rows


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


def test_what_spreadsheets_write_first_is_no_part_of_it(tmp_path: Path) -> None:
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
def test_what_has_no_lengths_is_told_with_its_place(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(DatasetError) as error:
        read_lengths(written(tmp_path, name, text), words, 9)
    assert told in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        read_lengths(tmp_path / "gone.csv", words, 9)
