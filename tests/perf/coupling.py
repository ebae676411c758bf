"""What drafts under sampling would gain from rejection sampling, which needs the draft's logits.

    python -m tests.perf.coupling [--prompts 40] [--tokens 128]

The engines sample texts; transformers says what target and draft make of each of their places. Where the
target chose x, the draft has the same token, independently from place to place, with the probability

    independent  q(x)                                  both draw by themselves
    ranked       of the interval of x in p, the share  one number, and the first token at which the sum of
                 that is its interval in q             the likeliest reaches it: TensorRT-LLM's top-k kernel,
                                                       as it reads, where both requests have the same seed
    coupled      1 / sum of max(p(y), q(y) p(x)/q(x))  the largest of logit + one noise: `sampler.py`
    rejection    min(1, q(x) / p(x))                   Leviathan et al., arXiv 2211.17192, section 2.3

with p and q as temperature and top-p leave them. `coupled` is the chance that of two clocks for each token,
of rates p and q and with one noise, both ring first at x; over all x it is at least (1 - D) / (1 + D), with D
the total variation distance, and `rejection` is 1 - D (Daliri et al., arXiv 2408.07978). From these follows,
along each text, what rounds of K are expected to accept: each starts where the one before has ended. Standard
errors are jackknifed over texts; `seen` is what the engines accepted. Logits are carried for nothing in
`tokens/s`; what they weigh, and what one copy of them and the acceptance take, is in `logits of a round`.
Engines use one thread. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.perf.pair import TINY, built, machine
from tests.perf.traces import StepCosts, Trace, step_costs, traces
from trtspec.serving.executor import SamplingConfig

LENGTHS = (4, 8)
KINDS = ("independent", "ranked", "coupled", "rejection")
SETTINGS = {
    "temperature 0.5": SamplingConfig(temperature=0.5),
    "temperature 1": SamplingConfig(temperature=1.0),
    "temperature 1, top_p 0.9": SamplingConfig(temperature=1.0, top_p=0.9),
}
VOCABULARIES = {"the tiny pair": 2048, "Llama 3": 128256}
LONGEST = 8


@dataclass(frozen=True)
class Count:
    """What the rounds of one text accepted; both may be expectations."""

    rounds: float
    accepted: float


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    models = [
        AutoModelForCausalLM.from_pretrained(TINY / role, dtype=torch.float32) for role in ("target", "draft")
    ]
    with tempfile.TemporaryDirectory() as folder:
        build = built(Path(folder), "float32", max_batch_size=64)
        costs = {clients: step_costs(build, clients) for clients in (1, 16, 64)}
        found = {
            name: setting(build, models, sampling, costs, options) for name, sampling in SETTINGS.items()
        }
    carried = {
        f"{name}, K = {length}": carrying(length, size)
        for name, size in VOCABULARIES.items()
        for length in LENGTHS
    }
    json.dump({"machine": machine(), "settings": found, "logits of a round": carried}, sys.stdout, indent=2)
    print(flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128)
    return parser.parse_args()


def setting(
    build: Path,
    models: Sequence[torch.nn.Module],
    sampling: SamplingConfig,
    costs: Mapping[int, StepCosts],
    options: argparse.Namespace,
) -> dict[str, object]:
    seen = {length: traces(build, options.prompts, options.tokens, length, sampling) for length in LENGTHS}
    texts = [agreement(models, trace, sampling) for trace in seen[LENGTHS[0]]]
    counts = {
        length: {kind: [accepted(text[kind], length) for text in texts] for kind in KINDS}
        for length in range(1, LONGEST + 1)
    }
    result: dict[str, object] = {
        f"accepted, K = {length}": {
            **{kind: with_error(counts[length][kind]) for kind in KINDS},
            "seen": with_error([in_fact(trace) for trace in seen[length]]),
        }
        for length in LENGTHS
    }
    for other in KINDS[:-1]:
        result[f"rejection / {other}"] = {
            **{
                f"tokens a round, K = {length}": with_error(
                    counts[length]["rejection"], beside=counts[length][other]
                )
                for length in LENGTHS
            },
            **{
                f"tokens/s of the best K, {clients} at once": round(
                    best(counts, "rejection", cost) / best(counts, other, cost), 3
                )
                for clients, cost in costs.items()
            },
        }
    return result


@torch.inference_mode()
def agreement(
    models: Sequence[torch.nn.Module], trace: Trace, sampling: SamplingConfig
) -> dict[str, list[float]]:
    """Returns, for each token of the output, how likely the draft has it too, under each kind."""
    ids, first = torch.tensor([trace.prompt + trace.output]), len(trace.prompt)
    p, q = (distribution(model(ids).logits[0, first - 1 : -1], sampling) for model in models)
    chosen = torch.tensor(trace.output)[:, None]
    p_chosen, q_chosen = p.gather(1, chosen), q.gather(1, chosen)
    has = q_chosen > 0
    clocks = torch.maximum(p, q * torch.where(has, p_chosen / q_chosen, 0)).sum(-1, keepdim=True)
    p_before, q_before = before(p, chosen), before(q, chosen)
    shared = torch.minimum(p_before + p_chosen, q_before + q_chosen) - torch.maximum(p_before, q_before)
    kinds = (
        q_chosen,
        shared.clamp(min=0) / p_chosen,
        torch.where(has, 1 / clocks, 0),
        (q_chosen / p_chosen).clamp(max=1),
    )
    return {name: values.flatten().tolist() for name, values in zip(KINDS, kinds, strict=True)}


def distribution(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """Returns the probabilities, float64 `[rows, vocab_size]`, that temperature and top-p leave."""
    probabilities = (logits.double() / (sampling.temperature or 1)).softmax(-1)
    ordered, ids = probabilities.sort(descending=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= (sampling.top_p or 1), 0)
    kept = torch.zeros_like(probabilities).scatter(1, ids, ordered)
    return kept / kept.sum(-1, keepdim=True)


def before(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Returns the sum of what is likelier than the chosen tokens, `[rows, 1]`."""
    likelier = probabilities > probabilities.gather(1, chosen)
    return torch.where(likelier, probabilities, 0).sum(-1, keepdim=True)


def accepted(agrees: Sequence[float], length: int) -> Count:
    """Returns the expected rounds of K = `length` that the text has whole, and what they accept."""
    rounds = tokens = 0.0
    starts = [1.0] + [0.0] * len(agrees)
    for place in range(len(agrees) - length):
        survives = starts[place]
        rounds += survives
        for step in range(length):
            agreed = survives * agrees[place + step]
            starts[place + step + 1] += survives - agreed
            tokens += agreed
            survives = agreed
        starts[place + length + 1] += survives
    return Count(rounds, tokens)


def in_fact(trace: Trace) -> Count:
    return Count(len(trace.rounds), sum(one.accepted for one in trace.rounds))


def mean(counts: Sequence[Count]) -> float:
    return sum(count.accepted for count in counts) / sum(count.rounds for count in counts)


def best(counts: Mapping[int, Mapping[str, Sequence[Count]]], kind: str, costs: StepCosts) -> float:
    """Returns the tokens per millisecond with the best K, the target alone included."""
    return max(
        1 / (costs.base + costs.row),
        *(
            (1 + mean(of_kind[kind])) / costs.round(length, length + 1, with_log_probs=False)
            for length, of_kind in counts.items()
        ),
    )


def with_error(counts: Sequence[Count], beside: Sequence[Count] | None = None) -> list[float]:
    """Returns the accepted tokens of a round, or the ratio of all its tokens, and the standard error."""

    def value(texts: Sequence[int]) -> float:
        ours = mean([counts[text] for text in texts])
        return ours if beside is None else (1 + ours) / (1 + mean([beside[text] for text in texts]))

    texts = range(len(counts))
    without = [value([text for text in texts if text != one]) for one in texts]
    middle = sum(without) / len(without)
    error = math.sqrt((1 - 1 / len(without)) * sum((one - middle) ** 2 for one in without))
    return [round(value(texts), 3), round(error, 3)]


def carrying(length: int, vocab_size: int) -> dict[str, float]:
    """Bytes of a round's draft logits in float32, and what one copy of them and the acceptance take."""
    logits = np.random.default_rng(0).normal(size=(length, vocab_size)).astype(np.float32)
    p, q = torch.from_numpy(logits.copy()), torch.from_numpy(logits)
    tokens = torch.arange(length)[:, None]

    def accept() -> None:
        ours, theirs = p.softmax(-1), q.softmax(-1)
        _ = (torch.rand(length, 1) * theirs.gather(1, tokens) < ours.gather(1, tokens)).flatten().tolist()
        torch.multinomial((ours[:1] - theirs[:1]).clamp(min=1e-9), 1).item()

    return {
        "MB": round(logits.nbytes / 1e6, 3),
        "copy, us": microseconds(lambda: np.copy(logits)),
        "acceptance, us": microseconds(accept),
    }


def microseconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(200):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(sorted(times)[20] * 1e6, 1)


if __name__ == "__main__":
    main()
