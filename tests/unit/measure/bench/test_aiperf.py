"""AIPerf's records as samples, in the form in which AIPerf 0.13 wrote them, and what it is asked for."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from trtspec.base.errors import MeasureError, UnavailableError
from trtspec.client.endpoint import Api, DraftCounts, EndpointRequest, TimedAnswer
from trtspec.measure.bench.aiperf import AiperfTraffic, made
from trtspec.measure.bench.result import OfferedLoad
from trtspec.measure.bench.sample import RequestSample
from trtspec.measure.bench.traffic import Manner
from trtspec.measure.workloads.workload import Prompt

BEGIN = 1795380703359579698
PROMPTS = [Prompt("first", ("a", "b"), "x"), Prompt("second", ("c",), "y", max_tokens=7)]


def record(session: str, turn: int, due_ms: float, end_ms: float, **values: Any) -> dict[str, Any]:
    """One line of `profile_export.jsonl`: sent 2 ms late, text after 10 ms and then in two gaps."""
    metrics = {
        "time_to_first_token": {"value": 10.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [5.0, 20.0], "unit": "ms"},
        "usage_completion_tokens": {"value": 20, "unit": "tokens"},
        "usage_prompt_tokens": {"value": 6, "unit": "tokens"},
    }
    metadata = {
        "conversation_id": session,
        "turn_index": turn,
        "credit_issued_ns": BEGIN + int(due_ms * 1e6),
        "request_start_ns": BEGIN + int((due_ms + 2) * 1e6),
        "request_end_ns": BEGIN + int(end_ms * 1e6),
        "benchmark_phase": "profiling",
    }
    acceptance = {
        "acceptance_histogram": {"0": 2, "4": 3},
        "num_spec_steps": 5,
        "num_draft_tokens": 20,
        "num_accepted_draft_tokens": 12,
        "num_spec_tokens": 4,
    }
    return {"metadata": metadata, "metrics": metrics, "spec_decode_acceptance": acceptance, **values}


def test_records_become_samples() -> None:
    error = {"code": 400, "type": "Bad Request", "message": "prompt is\n1032 tokens"}
    records = [
        record("0", 0, 0, 100),
        record("1", 0, 1, 50),
        record("0", 1, 101, 110, metrics={}, error=error, spec_decode_acceptance=None),
    ]
    block = made(records, PROMPTS, OfferedLoad("streams", 1))
    first, second, failed = block.samples
    assert (first.prompt, first.category, first.turn) == ("first", "x", 0)
    assert (first.intended, first.sent, first.ended) == pytest.approx((0, 0.002, 0.1))
    assert first.pieces == pytest.approx((0.012, 0.017, 0.037))
    assert (first.input_tokens, first.output_tokens, first.tokens_told) == (6, 20, True)
    assert first.counts == DraftCounts(5, 20, 12, (2, 0, 0, 0, 3))
    assert (second.prompt, second.category) == ("second", "y")
    assert (failed.error, failed.problem, failed.turn) == ("rejected", "prompt is 1032 tokens", 1)
    assert block.seconds == pytest.approx(0.11)
    # The last conversation began at 1 ms, and the first to end after that did at 50 ms.
    assert block.full_until == pytest.approx(0.05)
    assert made(records, PROMPTS, OfferedLoad("streams", 2)).full_until == block.seconds


def test_prompts_that_are_asked_again_are_conversations_of_their_own() -> None:
    """A workload with fewer prompts than a block has them several times, by the same names."""
    records = [record("0", 0, 0, 40), record("1", 0, 1, 50), record("2", 0, 41, 60), record("3", 0, 51, 90)]
    block = made(records, [Prompt("same", ("a",))] * 4, OfferedLoad("streams", 2))
    assert block.full_until == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "type": "x"}, "refused"),
        ({"code": 500, "type": "x"}, "failed"),
        ({"code": None, "type": "RequestTimeout"}, "timed_out"),
        ({"code": None, "type": "ClientConnectorError"}, "unreachable"),
    ],
)
def test_errors_have_the_kinds_of_ours(error: dict[str, Any], kind: str) -> None:
    (sample,) = made([record("1", 0, 0, 5, error=error)], PROMPTS, OfferedLoad("streams", 1)).samples
    assert sample.error == kind


class Anyone:
    """A server that is not asked."""

    url, model, plain_per_request = "http://host:9000/v1", "tiny", True
    api: Api = "openai"

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        raise NotImplementedError

    async def close(self) -> None: ...


STAND_IN = """#!{python}
import json, sys
words = sys.argv[1:]
options = {{words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}}
print("said something")
lines = [json.loads(line) for line in open(options["--input-file"])]
import os
out = options["--output-artifact-dir"]
os.makedirs(out)
json.dump({{"words": words, "lines": lines}}, open("{seen}", "w"))
if "broken" in words: sys.exit("12:00 ERROR the tokenizer cannot be read")
records = json.load(open("{records}"))
open(out + "/profile_export.jsonl", "w").writelines(json.dumps(each) + "\\n" for each in records)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `aiperf` that keeps what it was asked in `seen`, and writes records."""
    program = tmp_path / "bin" / "aiperf"
    program.parent.mkdir()
    seen, records = tmp_path / "seen", tmp_path / "records"
    program.write_text(STAND_IN.format(python=sys.executable, seen=seen, records=records))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    records.write_text(json.dumps([record("0", 0, 0, 100), record("1", 0, 0, 50)]))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return seen


def asked(traffic: AiperfTraffic, load: OfferedLoad, heard: list[RequestSample]) -> Any:
    def hear(sample: RequestSample, question: EndpointRequest, text: str) -> None:
        heard.append(sample)

    manner = Manner(32, 0.5, 1, True, 0, None, hear)
    return asyncio.run(traffic.block(Anyone(), PROMPTS, load, [0.0, 1.0], manner))


def test_aiperf_is_asked_for_a_block(stand_in: Path) -> None:
    heard: list[RequestSample] = []
    traffic = AiperfTraffic("name/model", chat=True, burstiness=1.0, timeout_s=9.0)
    block = asked(traffic, OfferedLoad("streams", 4), heard)
    assert (
        [sample.prompt for sample in heard] == ["first", "second"] == [each.prompt for each in block.samples]
    )
    seen = json.loads(stand_in.read_text())
    words = seen["words"]
    assert words[0] == "profile"
    options = {words[i]: words[i + 1] for i in range(len(words) - 1)}
    assert options["--url"] == "http://host:9000"
    assert options["--endpoint-type"] == "chat"
    assert options["--concurrency"] == "4"
    assert options["--num-sessions"] == "2"
    assert json.loads(options["--extra-inputs"]) == {
        "temperature": 0.5,
        "num_draft_tokens": 0,
        "ignore_eos": True,
    }
    assert seen["lines"] == [
        {
            "session_id": "0",
            "turns": [{"text": "a", "output_length": 32}, {"text": "b", "output_length": 32}],
        },
        {"session_id": "1", "turns": [{"text": "c", "output_length": 7}]},
    ]
    asked(AiperfTraffic("m", chat=False, burstiness=4.0, timeout_s=9.0), OfferedLoad("rate", 2.5), heard)
    words = json.loads(stand_in.read_text())["words"]
    place = words.index("--request-rate")
    assert words[place : place + 6] == [
        "--request-rate", "2.5", "--arrival-pattern", "gamma", "--arrival-smoothness", "0.25",
    ]  # fmt: skip


def test_the_error_of_a_failed_aiperf_run_is_passed_on(stand_in: Path) -> None:
    with pytest.raises(MeasureError, match="ended with status 1: 12:00 ERROR the tokenizer cannot be read"):
        asked(
            AiperfTraffic("broken", chat=True, burstiness=1.0, timeout_s=9.0), OfferedLoad("streams", 1), []
        )


def test_without_aiperf_the_repair_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="is not installed"):
        AiperfTraffic("m", chat=True, burstiness=1.0, timeout_s=9.0)
