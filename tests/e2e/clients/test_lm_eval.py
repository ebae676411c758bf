"""lm-evaluation-harness itself scores a small task at a server with drafts, as transformers scores it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.clients.test_clients import PYTHON
from tests.e2e.conftest import ONLY_IN_PROCESS, TINY, Deploy
from tests.e2e.openai_requests import MODEL
from tests.perf.pair import heldout

pytestmark = [pytest.mark.clients, ONLY_IN_PROCESS]

END, CHOICES, CLOSE = 24, 4, 1e-3
TASK = """task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{right}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


def rows() -> list[dict[str, Any]]:
    """Beginnings of code, each with its own end among those of three others."""
    pairs = [
        (text[:-END], text[-END:]) for text in map(str.rstrip, heldout(20)) if not text[-END - 1].isspace()
    ]
    ends = [end for _, end in pairs] * 2
    found = []
    for number, (text, _) in enumerate(pairs):
        choices = ends[number : number + CHOICES]
        right = number % CHOICES
        found.append(
            {
                "text": text,
                "choices": choices[1 : right + 1] + choices[:1] + choices[right + 1 :],
                "right": right,
            }
        )
    return found


def expected(asked: list[dict[str, Any]]) -> list[list[float]]:
    """transformers' log-likelihood of each choice behind its text."""
    model = AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")

    def likelihood(text: str, choice: str) -> float:
        # As lm-eval joins them: a token that reaches over the border is cut there.
        before = tokenizer.encode(text)
        ids = [*before, *tokenizer.encode(text + choice)[len(before) :]]
        with torch.inference_mode():
            scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(float(scores[place - 1, ids[place]]) for place in range(len(before), len(ids)))

    return [[likelihood(row["text"], choice) for choice in row["choices"]] for row in asked]


def test_it_scores_as_transformers_does(server: Deploy, tmp_path: Path) -> None:
    asked = rows()
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    (tmp_path / "tiny.yaml").write_text(TASK)
    model = f"model={MODEL},base_url={server.api}/completions,tokenizer={TINY / 'target'},num_concurrent=4"
    words = ["--model", "local-completions", "--include_path", ".", "--tasks", "tiny", "--model_args", model]
    subprocess.run(
        [PYTHON.with_name("lm_eval"), *words, "--log_samples", "--output_path", "out"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
        check=True,
    )
    (results,) = tmp_path.glob("out/*/results_*.json")
    (samples,) = tmp_path.glob("out/*/samples_tiny_*.jsonl")
    told = [json.loads(line) for line in samples.read_text().splitlines()]
    right = expected(asked)
    for sample in told:
        found = [float(answer[0][0]) for answer in sample["resps"]]
        assert found == pytest.approx(right[sample["doc_id"]], abs=CLOSE)
    share = sum(max(own) == own[row["right"]] for own, row in zip(right, asked, strict=True)) / len(asked)
    assert json.loads(results.read_text())["results"]["tiny"]["acc,none"] == pytest.approx(share)
    assert len(told) == len(asked) > 10
