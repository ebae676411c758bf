"""A result of `bench` as a pair might give it: fast where few ask, slower where many do."""

from __future__ import annotations

from typing import Literal

from trtspec.measure.bench.result import (
    ArmFigures,
    Arms,
    BenchedModel,
    BenchedServer,
    BenchMachine,
    BenchResult,
    BenchSettings,
    BenchVerdict,
    DraftAcceptance,
    DraftFigures,
    Goodput,
    Inside,
    Interval,
    LoadResult,
    MeanRoundTimes,
    OfferedLoad,
    Percentiles,
    Targets,
    WorkloadSummary,
)

SPEEDUPS = {1: 1.93, 2: 1.88, 4: 1.71, 8: 1.42, 16: 1.12, 32: 0.91, 64: 0.74}
CATEGORIES = {"coding": 0.84, "math": 0.75, "translation": 0.55, "writing": 0.48, "roleplay": 0.44}


def result(speedups: dict[int, float] = SPEEDUPS, words: str = "") -> BenchResult:
    """Returns a result with a level for each number of streams."""
    last_gain = max((streams for streams, speedup in speedups.items() if speedup > 1), default=None)
    break_even = 24.0 if last_gain and min(speedups.values()) < 1 else None
    decision: Literal["up_to", "on", "off"] = "up_to" if break_even else "on" if last_gain else "off"
    return BenchResult(
        server=BenchedServer(
            "http://127.0.0.1:8000", "triton", "request", software="trtspec 0.1.0, Triton 2.51"
        ),
        model=BenchedModel("speculative_llm", "tiny", "recipes/tiny/target", "recipes/tiny/draft", 4),
        machine=BenchMachine("AMD EPYC 9R14", 2, 16 << 30, "Linux 6.1 x86_64", "3.11.7"),
        workload=WorkloadSummary(
            "spec-bench", "prompts.jsonl", 240, dict.fromkeys(CATEGORIES, 48), "0123456789abcdef"
        ),
        settings=BenchSettings(
            "2026-11-22T20:15:00+00:00",
            "0.1.0",
            6,
            24,
            8,
            256,
            0.0,
            7,
            False,
            targets=Targets(0.25, 0.02),
            command="trtspec bench recipe.yaml --workload prompts.jsonl",
        ),
        levels=tuple(level(streams, speedup) for streams, speedup in speedups.items()),
        verdict=BenchVerdict(
            words or "1.93x ± 0.05 at 1 stream, break-even at 24 streams, switch off above",
            decision,
            break_even,
            break_even,
        ),
    )


def level(streams: int, speedup: float) -> LoadResult:
    plain = 52.0 * streams / (1 + 0.03 * streams)
    spread = 0.04 + 0.01 * streams**0.5
    pairs = tuple((plain * (speedup + spread * way), plain) for way in (-1.4, -0.6, 0.2, 0.4, 1.1, -0.2))
    slow = 1 + streams / 12
    return LoadResult(
        OfferedLoad("streams", streams),
        Arms(
            _figures(streams, plain * speedup, slow / speedup, _drafts(streams)),
            _figures(streams, plain, slow, None),
        ),
        Interval(speedup, speedup - spread, speedup + spread),
        pairs,
    )


def acceptance(per_token: float, verifications: int, length: int = 4) -> DraftAcceptance:
    counts = tuple(round(verifications * per_token ** (number + 1)) for number in range(length))
    return DraftAcceptance(verifications, verifications * length, sum(counts), counts)


def _drafts(streams: int) -> DraftFigures:
    parts = {name: acceptance(share, 200 * streams) for name, share in CATEGORIES.items()}
    counts = [part.accepted_per_position for part in parts.values()]
    positions = tuple(sum(column) for column in zip(*counts, strict=True))
    verifications = sum(part.verifications for part in parts.values())
    return DraftFigures(
        "answers", DraftAcceptance(verifications, 4 * verifications, sum(positions), positions), parts
    )


def _figures(streams: int, speed: float, slow: float, drafts: DraftFigures | None) -> ArmFigures:
    requests = 24 * 6
    return ArmFigures(
        requests=requests,
        errors={"refused": 3} if streams == 64 else {},
        seconds=requests * 200 / speed,
        input_tokens=requests * 96,
        output_tokens=requests * 200,
        tokens_per_second=Interval(speed, speed * 0.95, speed * 1.04),
        requests_per_second=speed / 200,
        time_to_first_token=_times(requests, 0.041 * slow * (1.1 if drafts else 0.9)),
        inter_token=_times(requests, 0.0192 * slow),
        between_pieces=_times(requests * 60, 0.0192 * slow * (3 if drafts else 1)),
        end_to_end=_times(requests, 3.9 * slow),
        goodput=Goodput(speed / 200 * min(1.0, 2 / slow), min(1.0, 2 / slow)),
        drafts=drafts,
        blocks=tuple(speed * (1 + 0.01 * way) for way in (-3, 1, 2, -1, 0, 1)),
        inside=Inside(MeanRoundTimes(0.011 * slow, 0.021 * slow, 0.0021), 0.62, None)
        if drafts
        else Inside(None, 0.6, None),
    )


def _times(count: int, median: float) -> Percentiles:
    return Percentiles(count, median * 1.1, median, median * 1.6, median * 1.9, median * 2.7)
