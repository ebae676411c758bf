from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from trtspec.serving.executor import SamplingConfig
from trtspec.serving.executors.torch.follower import BROKEN
from trtspec.serving.executors.torch.sampler import Penalties, TokenChoice, choose, log_probs, noise


def choice(sampling: SamplingConfig, number: int = 0, draft: tuple[int, ...] = ()) -> TokenChoice:
    return TokenChoice(sampling, number, 0, None, lambda last: [1], list(draft))


def penalized(sampling: SamplingConfig, text: list[int], draft: list[int]) -> TokenChoice:
    """The text is read in two parts."""
    penalties = Penalties(sampling, 50, torch.device("cpu"))
    penalties.add(text[:2])
    penalties.add(text[2:])
    return TokenChoice(sampling, 0, 0, None, lambda last: [], draft, penalties=penalties)


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


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0}, {"temperature": 1.5, "top_k": 20, "min_p": 0.1}]
)
@pytest.mark.parametrize("banned", [[], [[4]]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_is_not_finite_has_no_token_and_others_have_theirs(
    sampling: dict[str, Any], banned: list[list[int]], dtype: torch.dtype
) -> None:
    """A head gives tokens that it lacks -inf, which is no flaw."""
    logits = torch.randn(6, 50).to(dtype)
    spoilt = logits.clone()
    spoilt[0, 4], spoilt[2, 49], spoilt[3, 0], spoilt[4] = math.nan, math.nan, math.inf, -math.inf
    spoilt[5, :40] = -math.inf
    rows = [replace(choice(SamplingConfig(**sampling), row), bad_words=banned) for row in range(6)]
    found, expected = choose(spoilt, rows), choose(logits, rows)
    assert [found[row] for row in (0, 2, 3, 4)] == [BROKEN] * 4
    assert found[1] == expected[1]
    assert 40 <= found[5] < 50


def test_log_probabilities_are_numbers_that_json_can_hold() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0, -2e4]])
    (said,) = log_probs(logits, [1], [4])
    assert said.value == -9999.0
    assert [value for _, value in said.top[2:]] == [-9999.0, -9999.0]
    assert math.exp(said.top[0][1]) + math.exp(said.top[1][1]) == pytest.approx(1)


def test_rows_of_a_verification_use_consecutive_numbers() -> None:
    warm, logits = SamplingConfig(temperature=1.0), torch.randn(4, 50)
    together = choose(logits, [choice(warm, 10, (1, 2, 3))])
    assert together == [choose(logits[j : j + 1], [choice(warm, 10 + j)])[0] for j in range(4)]


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 1.5, "top_k": 20, "top_p": 0.9}])
def test_the_same_tokens_under_other_ids_are_drawn(sampling: dict[str, Any]) -> None:
    logits, other = torch.randn(200, 50), torch.randperm(50)
    rows = [choice(SamplingConfig(**sampling), 7 * row) for row in range(200)]
    drawn = choose(logits[:, other], rows, other)
    assert [int(other[token]) for token in drawn] == choose(logits, rows) != choose(logits[:, other], rows)


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


def test_the_rows_of_others_do_not_change_what_is_drawn() -> None:
    filters: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 3},
        {"top_k": 20, "top_p": 0.8},
        {"min_p": 0.05},
    ]
    configs = [SamplingConfig(temperature=1.5, **filters[row % 5]) for row in range(100)]
    logits = torch.randn(100, 50)
    together = choose(logits, [choice(config, row) for row, config in enumerate(configs)])
    alone = [choose(logits[row : row + 1], [choice(config, row)])[0] for row, config in enumerate(configs)]
    assert together == alone


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_a_repetition_penalty_counts_the_draft_before_each_row(penalty: float) -> None:
    text, draft, logits = [3, 5, 3], [7, 5, 9], torch.randn(4, 50)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    expected = [theirs(torch.tensor([text + draft[:j]]), logits[j : j + 1])[0] for j in range(4)]
    ours, sampling = logits.clone(), SamplingConfig(repetition_penalty=penalty)
    penalized(sampling, text, draft).change(ours)
    assert torch.allclose(ours, torch.stack(expected))


def test_presence_and_frequency_penalties_are_those_of_openai() -> None:
    text, draft, logits = [3, 5, 3], [7, 5, 9], torch.randn(4, 50)
    ours, sampling = logits.clone(), SamplingConfig(presence_penalty=0.7, frequency_penalty=-0.2)
    penalized(sampling, text, draft).change(ours)
    for row in range(4):
        for token in range(50):
            count = (text + draft[:row]).count(token)
            expected = float(logits[row, token]) - count * -0.2 - (count > 0) * 0.7
            assert float(ours[row, token]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "penalties",
    [{"frequency_penalty": -3e38}, {"presence_penalty": -math.inf}, {"repetition_penalty": 1e-60}],
)
def test_a_forbidden_token_stays_forbidden_under_any_penalty(penalties: dict[str, float]) -> None:
    logits = torch.randn(1, 50)
    logits[0, [3, 5]] = -math.inf
    penalized(SamplingConfig(**penalties), [3, 5, 3], []).change(logits)  # type: ignore[arg-type]
    assert logits[0].isneginf().nonzero().flatten().tolist() == [3, 5]
    assert not logits.isnan().any()


def test_a_draft_leaves_no_count() -> None:
    """Behind a draft that was rejected the penalties are those of the text alone."""
    sampling = SamplingConfig(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    tried = penalized(sampling, [3, 5, 3], [7, 5, 9])
    tried.change(torch.randn(4, 50))
    logits = torch.randn(1, 50)
    ours, expected = logits.clone(), logits.clone()
    replace(tried, draft=[]).change(ours)
    penalized(sampling, [3, 5, 3], []).change(expected)
    assert torch.equal(ours, expected)
