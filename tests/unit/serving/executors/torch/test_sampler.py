from __future__ import annotations

import pytest
import torch

from trtspec.serving.executor import SamplingConfig
from trtspec.serving.executors.torch.sampler import TokenChoice, choose, noise


def choice(sampling: SamplingConfig, number: int = 0, draft: tuple[int, ...] = ()) -> TokenChoice:
    return TokenChoice(sampling, number, 0, None, lambda last: [1], list(draft))


def test_noise_is_standard_gumbel() -> None:
    """Kolmogorov-Smirnov over a million numbers; the bound is the 0.1 % quantile."""
    sample = noise(list(range(250)), torch.arange(4000)[None]).double().flatten().sort().values
    uniform = (-(-sample).exp()).exp()
    steps = torch.arange(1, len(uniform) + 1) / len(uniform)
    assert (uniform - steps).abs().max() < 1.95 / len(uniform) ** 0.5


def test_neighbours_in_either_direction_are_independent() -> None:
    values = noise(list(range(1000)), torch.arange(1000)[None]).double()
    values = (values - values.mean()) / values.std()
    for shift in ((0, 1), (1, 0), (1, 1), (1, -1), (2, 0)):
        assert (values * values.roll(shift, (0, 1))).mean().abs() < 4e-3


def test_noise_depends_on_number_and_token_alone() -> None:
    whole = noise([5, 2**63 + 1, -7], torch.arange(100)[None])
    assert torch.equal(noise([2**63 + 1], torch.tensor([[70, 3]]))[0], whole[1, [70, 3]])
    assert len(whole.unique()) == 300


def test_rows_of_a_verification_use_consecutive_numbers() -> None:
    warm, logits = SamplingConfig(temperature=1.0), torch.randn(4, 50)
    together = choose(logits, [choice(warm, 10, (1, 2, 3))])
    assert together == [choose(logits[j : j + 1], [choice(warm, 10 + j)])[0] for j in range(4)]


def test_filters_of_each_row_are_its_own() -> None:
    logits = torch.randn(3, 50).repeat(200, 1)
    configs = [
        SamplingConfig(temperature=5.0, top_k=2),
        SamplingConfig(temperature=5.0, top_p=1e-6),
        SamplingConfig(),
    ]
    tokens = choose(logits, [choice(configs[row % 3], row) for row in range(600)])
    best = logits[:3].topk(2).indices.tolist()
    assert {*tokens[0::3]} == {*best[0]}
    assert {*tokens[1::3]} == {best[1][0]}
    assert {*tokens[2::3]} == {best[2][0]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_of_any_dtype(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 50).to(dtype)
    assert choose(logits, [choice(SamplingConfig()), choice(SamplingConfig())]) == logits.argmax(-1).tolist()
    assert len(choose(logits, [choice(SamplingConfig(top_p=0.9, seed=1), 1, (4,))])) == 2


def test_top_k_over_the_vocabulary_is_all_of_it() -> None:
    logits = torch.randn(1, 50)
    for number in range(20):
        many = choose(logits, [choice(SamplingConfig(temperature=2.0, top_k=1000), number)])
        assert many == choose(logits, [choice(SamplingConfig(temperature=2.0), number)])
