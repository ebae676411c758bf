from __future__ import annotations

from trtspec.serving.executor import SamplingConfig
from trtspec.serving.sequences import of_sequence
from trtspec.serving.state import NUM_SEEDS, at_token, with_seed


def test_a_round_continues_the_stream_of_random_numbers() -> None:
    assert at_token(SamplingConfig(temperature=1.0, seed=5), 3) == SamplingConfig(temperature=1.0, seed=8)


def test_the_stream_wraps_around() -> None:
    assert at_token(SamplingConfig(temperature=1.0, seed=NUM_SEEDS - 1), 2).seed == 1


def test_completions_of_one_prompt_share_no_number() -> None:
    sampling = SamplingConfig(temperature=1.0, seed=NUM_SEEDS - 2)
    seeds = [of_sequence(sampling, index).seed or 0 for index in range(3)]
    assert seeds == [NUM_SEEDS - 2, 2**40 - 2, 2**41 - 2]
    assert of_sequence(SamplingConfig(temperature=1.0), 3).seed is None


def test_sampling_without_a_seed_gets_one_of_its_own() -> None:
    seeds = {with_seed(SamplingConfig(temperature=1.0)).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(seed is not None and 0 <= seed < NUM_SEEDS for seed in seeds)


def test_greedy_and_seeded_requests_stay_as_they_are() -> None:
    for sampling in (
        SamplingConfig(),
        SamplingConfig(top_k=1, seed=4),
        SamplingConfig(temperature=1.0, seed=4),
    ):
        assert with_seed(sampling) == sampling
    assert at_token(SamplingConfig(), 7) == SamplingConfig()
