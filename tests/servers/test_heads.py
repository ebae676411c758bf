"""Heads that trtspec trains, read by Speculators and by vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.servers.judges import ROOT, ask
from trtspec.models.source import read_source
from trtspec.train.distill.head import TrainableEagle3, aux_layers, layer_of, write_eagle3
from trtspec.train.distill.model import Teacher

pytestmark = pytest.mark.vllm

TARGET = ROOT / "recipes/tiny/target"
DEPTH = 3


@pytest.fixture(params=[None, 500], ids=["all tokens", "some tokens"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, TrainableEagle3]:
    """A head of the demo pair's target, of random weights, stored in bfloat16."""
    source = read_source(TARGET)
    teacher, count = Teacher(source), request.param
    torch.manual_seed(0)
    known = None if count is None else torch.randperm(source.vocab_size)[:count].sort().values
    net = TrainableEagle3(layer_of(source), aux_layers(source), known)
    net.begin(teacher.embedding, teacher.head)
    for weight in net.parameters():
        weight.data = weight.data.bfloat16().float()
    write_eagle3(
        net.state_dict(),
        tmp_path / "head",
        layer=layer_of(source),
        aux_layers=aux_layers(source),
        target=source,
        verifier=str(TARGET),
        num_draft_tokens=4,
    )
    return tmp_path / "head", net


@torch.no_grad()
def test_speculators_says_the_same(head: tuple[Path, TrainableEagle3]) -> None:
    """Its own model unrolls training-time test over a text; all rounds of a text agree, token by token."""
    folder, net = head
    token_ids = torch.randint(3, 2000, (1, 60), generator=torch.Generator().manual_seed(1))
    ((found),) = ask(
        "ask_speculators.py",
        [{"folder": str(folder), "token_ids": token_ids[0].tolist(), "depth": DEPTH}],
    )
    assert found.get("architectures") == ["LlamaForCausalLM"], found
    ours = []
    for logits in net(Teacher(read_source(TARGET)).teach(token_ids), token_ids, DEPTH):
        own = logits[0].argmax(-1)
        ours.append((own if net.known is None else net.known[own]).tolist())
    for depth in range(DEPTH):
        rounds = len(token_ids[0]) - 1 - depth
        assert ours[depth][:rounds] == found["said"][depth][:rounds]


def test_vllm_takes_it(head: tuple[Path, TrainableEagle3]) -> None:
    """Beside its target, and alone, from which vLLM finds the target."""
    folder, _ = head
    speculation = {"model": str(folder), "method": "eagle3", "num_speculative_tokens": 3}
    limits = ["--max-model-len", "512", "--kv-cache-memory-bytes", "100000000"]
    beside = ["--model", str(TARGET), *limits, "--speculative-config", json.dumps(speculation)]
    found, alone = ask(
        "ask_vllm.py",
        [
            {"arguments": arguments, "whole": True}
            for arguments in (beside, ["--model", str(folder), *limits])
        ],
    )
    assert (found.get("method"), found["num_speculative_tokens"]) == ("eagle3", 3), found
    assert (alone.get("method"), alone["num_speculative_tokens"]) == ("eagle3", 4), alone
    assert found["model"] == alone["model"] == str(folder)
