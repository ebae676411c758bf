"""Recorded answers: what is written is read again, whatever broke off in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.workload import Recorded, append_recorded, read_recorded

WHOLE = Recorded(
    name="fib",
    category="coding",
    prompt="def fib(n):\n",
    prompt_token_ids=(5, 6, 7),
    text="    return n",
    answer_token_ids=(8, 9),
    finish_reason="stop",
    model="tiny",
    sampling={"temperature": 0.7, "seed": 3},
)
SHORT = Recorded(name="ё\ud800", prompt_token_ids=(1,), answer_token_ids=())


def test_recorded_answers_are_read_as_they_were_appended(tmp_path: Path) -> None:
    file = tmp_path / "new" / "answers.jsonl"
    append_recorded(file, [WHOLE])
    append_recorded(file, [SHORT])
    assert read_recorded(file) == [WHOLE, SHORT]
    assert json.loads(file.read_bytes().splitlines()[0])["prompt_token_ids"] == [5, 6, 7]


def test_a_line_that_broke_off_is_not_counted_and_not_continued(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    append_recorded(file, [WHOLE, WHOLE])
    file.write_bytes(file.read_bytes()[:-20])
    assert read_recorded(file) == [WHOLE]
    append_recorded(file, [SHORT])
    assert read_recorded(file) == [WHOLE, SHORT]


def test_recorded_answers_of_other_tools_need_only_prompt_and_text(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('\n{"prompt": "a", "text": "b", "score": 1}\n')
    assert read_recorded(file) == [Recorded(name="2", prompt="a", text="b")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"text": "b"}', "neither prompt nor prompt_token_ids"),
        ('{"prompt": "a"}', "neither text nor answer_token_ids"),
        ('{"prompt": 1, "text": "b"}', "prompt must be text"),
        ('{"prompt": "a", "answer_token_ids": [true]}', "answer_token_ids must be a list of token ids"),
        ('{"prompt": "a", "answer_token_ids": [-1]}', "answer_token_ids must be a list of token ids"),
        ('{"prompt": "a", "text": "b", "sampling": {"temperature": "hot"}}', "sampling must be options"),
        ('{"prompt": "a", "text": "b", "finish_reason": "eos"}', "finish_reason is 'eos'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "answers.jsonl"
    append_recorded(file, [WHOLE])
    with file.open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(DatasetError, match=r"answers\.jsonl:2: ") as caught:
        read_recorded(file)
    assert problem in str(caught.value)


def test_a_missing_file_of_recorded_answers_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file"):
        read_recorded(tmp_path / "none.jsonl")
