from __future__ import annotations

from trtspec.serving.stats import SpeculationCounts


def test_counts_are_vllms() -> None:
    counts = SpeculationCounts()
    for num_draft, num_accepted in [(3, 3), (3, 1), (2, 0), (4, 2)]:
        counts.record(num_draft, num_accepted)
    assert counts.num_spec_steps == 4
    assert counts.num_draft_tokens == 12
    assert counts.num_accepted_draft_tokens == 6
    assert counts.accepted_per_position == [3, 2, 1, 0]
    assert counts.mean_acceptance_length == 1 + 6 / 4
    assert counts.draft_acceptance_rate == 0.5


def test_nothing_drafted() -> None:
    """A step of the target alone makes one token, as in README.md."""
    assert (SpeculationCounts().mean_acceptance_length, SpeculationCounts().draft_acceptance_rate) == (1, 0)
