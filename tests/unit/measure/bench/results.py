"""A whole result, for the tests of what reads them."""

from __future__ import annotations

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


def figures(tokens_per_second: float, drafts: DraftFigures | None = None) -> ArmFigures:
    times = Percentiles(count=46, mean=0.5, p50=0.45, p90=0.7, p95=0.8, p99=0.9)
    inside = Inside(MeanRoundTimes(0.004, 0.007, 0.0005), kv_reuse=0.25) if drafts else Inside()
    return ArmFigures(
        requests=48,
        errors={"refused": 2},
        seconds=46 * 128 / tokens_per_second,
        input_tokens=4800,
        output_tokens=46 * 128,
        tokens_per_second=Interval(tokens_per_second, tokens_per_second * 0.96, tokens_per_second * 1.04),
        requests_per_second=tokens_per_second / 128,
        time_to_first_token=times,
        inter_token=times,
        between_pieces=times,
        end_to_end=times,
        goodput=Goodput(requests_per_second=3.1, share=0.9),
        drafts=drafts,
        inside=inside,
    )


def result() -> BenchResult:
    acceptance = DraftAcceptance(
        verifications=1000, drafted=4000, accepted=2300, accepted_per_position=(800, 600, 500, 400)
    )
    drafts = DraftFigures("answers", acceptance, {"coding": acceptance, "writing": acceptance})
    levels = tuple(
        LoadResult(
            OfferedLoad("streams", streams),
            Arms(figures(rate * speedup, drafts), figures(rate)),
            Interval(speedup, speedup - 0.1, speedup + 0.1),
            ((rate * speedup, rate), (rate * speedup * 1.02, rate * 0.99)),
        )
        for streams, rate, speedup in ((1, 300.0, 1.9), (8, 1100.0, 1.3), (32, 1500.0, 0.9))
    )
    return BenchResult(
        server=BenchedServer("http://127.0.0.1:8000", "triton", "request", software="tritonserver 2.51.0"),
        model=BenchedModel("speculative_llm", "tiny", "target", "draft", 4),
        machine=BenchMachine("a processor", 2, 4 << 30, "Linux 6.1", "3.11.7"),
        workload=WorkloadSummary(
            "questions", "questions.jsonl", 80, {"coding": 50, "writing": 30}, "0123456789abcdef"
        ),
        settings=BenchSettings(
            started="2026-11-22T20:00:00+00:00",
            version="0.1.0",
            pairs=6,
            block_requests=4,
            warm_up=4,
            max_tokens=128,
            temperature=0.0,
            seed=0,
            chat=False,
            targets=Targets(time_to_first_token=0.5),
        ),
        levels=levels,
        verdict=BenchVerdict(
            "1.9x ± 0.1 at 1 stream, break-even at 24, switch off above", "up_to", 24.0, 24.0, ("a note",)
        ),
    )
