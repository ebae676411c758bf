from __future__ import annotations

from trtspec.serving.stats import SpeculationCounts, Stats


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
    assert (SpeculationCounts().mean_acceptance_length, SpeculationCounts().draft_acceptance_rate) == (
        0.0,
        0.0,
    )


def test_what_is_counted_in_all_is_the_sum_of_the_origins() -> None:
    stats = Stats()
    verified = [("engine", 4, 1), ("lookup", 8, 8), ("engine", 2, 2), ("earlier_answers", 3, 0)]
    for origin, num_draft, num_accepted in verified:
        stats.record(origin, num_draft, num_accepted)
    counts = {
        origin: (each.num_spec_steps, each.num_draft_tokens, each.num_accepted_draft_tokens)
        for origin, each in {"all": stats.speculation, **stats.by_origin}.items()
    }
    assert counts == {
        "all": (4, 17, 11),
        "engine": (2, 6, 3),
        "lookup": (1, 8, 8),
        "earlier_answers": (1, 3, 0),
    }
