"""Sends the prompts of a block by NVIDIA's AIPerf, and reads its records as samples.

The facts are those of AIPerf 0.13: `aiperf profile --help`, and its file `profile_export.jsonl`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtspec.base.errors import MeasureError, UnavailableError
from trtspec.client.endpoint import ChatMessage, DraftCounts, Endpoint
from trtspec.client.finding import shown
from trtspec.measure.bench.result import OfferedLoad
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.bench.traffic import Manner
from trtspec.measure.workloads.workload import Prompt

_COMMAND = "aiperf"
_RECORDS = "profile_export.jsonl"
_NS, _MS = 1e-9, 1e-3
_LINES = 8
_FIXED = (
    "--streaming",
    "--use-server-token-count",
    "--custom-dataset-type",
    "multi-turn",
    "--dataset-sampling-strategy",
    "sequential",
    "--export-level",
    "records",
    "--no-gpu-telemetry",
    "--no-server-metrics",
    "--ui",
    "none",
)


class AiperfTraffic:
    """Runs AIPerf once for each block; `tokenizer` is the model's, a folder or a name of the Hub.

    AIPerf does not pass answers on, so they cannot be kept. Raises `UnavailableError` if it is not installed.
    """

    name = _COMMAND

    def __init__(self, tokenizer: str, *, chat: bool, burstiness: float, timeout_s: float) -> None:
        executable = shutil.which(_COMMAND)
        if executable is None:
            repair = "install aiperf with pip in an environment of its own, and put its bin on PATH"
            raise UnavailableError(_COMMAND, "is not installed", repair)
        kind = "chat" if chat else "completions"
        if Path(tokenizer).is_dir():
            tokenizer = str(Path(tokenizer).resolve())
        self._line = [executable, "profile", "--endpoint-type", kind, "--tokenizer", tokenizer]
        self._line += _FIXED
        self._line += ["--request-timeout-seconds", str(timeout_s)]
        self._burstiness = burstiness

    async def block(
        self,
        endpoint: Endpoint,
        prompts: Sequence[Prompt],
        load: OfferedLoad,
        times: Sequence[float],
        manner: Manner,
    ) -> Block:
        """Returns the block of a load; arrivals are AIPerf's own, at the load's rate."""
        if endpoint.api != "openai":
            repair = "name the base URL that ends in /v1"
            raise MeasureError(shown(endpoint.url), "is Triton's API, but AIPerf needs OpenAI's", repair)
        with tempfile.TemporaryDirectory(prefix="trtspec-aiperf-") as name:
            folder = Path(name)
            sessions = [session(number, prompt, manner) for number, prompt in enumerate(prompts)]
            (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in sessions))
            await self._run(folder, endpoint, len(prompts), load, manner)
            records = read_records(folder / "out" / _RECORDS)
        block = made(records, prompts, load)
        for sample in block.samples:
            manner.heard(sample, manner.question(prompts[0], [ChatMessage("user", "")], 0), "")
        return block

    async def _run(
        self, folder: Path, endpoint: Endpoint, prompts: int, load: OfferedLoad, manner: Manner
    ) -> None:
        line = [*self._line, "--model", endpoint.model, "--url", endpoint.url.removesuffix("/v1")]
        line += ["--input-file", str(folder / "prompts.jsonl"), "--num-sessions", str(prompts)]
        line += ["--output-artifact-dir", str(folder / "out")]
        line += ["--extra-inputs", json.dumps(extra_inputs(endpoint, manner))]
        if load.kind == "streams":
            line += ["--concurrency", f"{load.value:.0f}"]
        else:
            line += ["--request-rate", str(load.value), *self._pattern()]
        process = await asyncio.create_subprocess_exec(
            *line,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
        try:
            said, _ = await process.communicate()
        finally:
            # AIPerf starts processes, which must not outlive it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if not (folder / "out" / _RECORDS).is_file():
            lines = said.decode(errors="replace").splitlines()
            why = next((line for line in lines if "ERROR" in line), " ".join(lines[-_LINES:]))
            raise MeasureError(_COMMAND, f"ended with status {process.returncode}: {why.strip()[:300]}")

    def _pattern(self) -> list[str]:
        if self._burstiness == 0:
            return ["--arrival-pattern", "constant"]
        if self._burstiness == 1:
            return ["--arrival-pattern", "poisson"]
        # AIPerf's smoothness is the shape of the gamma distribution, as vLLM's burstiness is.
        return ["--arrival-pattern", "gamma", "--arrival-smoothness", str(1 / self._burstiness)]


def session(number: int, prompt: Prompt, manner: Manner) -> dict[str, Any]:
    """Returns a prompt as a line of AIPerf's `multi_turn` files."""
    length = prompt.max_tokens or manner.max_tokens
    turns = [{"text": turn, "output_length": length} for turn in prompt.turns]
    return {"session_id": str(number), "turns": turns}


def extra_inputs(endpoint: Endpoint, manner: Manner) -> dict[str, Any]:
    """Returns the extra fields of each request."""
    values: dict[str, Any] = {"temperature": manner.temperature}
    if manner.num_draft_tokens is not None and endpoint.plain_per_request:
        values["num_draft_tokens"] = manner.num_draft_tokens
    if manner.ignore_eos:
        values["ignore_eos"] = True
    return values


def read_records(file: Path) -> list[dict[str, Any]]:
    # JSON may hold other ends of lines as they are.
    lines = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def made(records: Sequence[Mapping[str, Any]], prompts: Sequence[Prompt], load: OfferedLoad) -> Block:
    """Returns a block of AIPerf's records; its time begins with the first request that was due."""
    profiled = [record for record in records if record["metadata"]["benchmark_phase"] == "profiling"]
    if not profiled:
        return Block((), 0.0, 0.0)
    begin = min(record["metadata"]["credit_issued_ns"] for record in profiled)
    samples = tuple(_sample(record, prompts, begin) for record in profiled)
    seconds = max(sample.ended for sample in samples)
    last = max(sample.intended for sample in samples if sample.turn == 0)
    if load.kind == "rate":
        return Block(samples, seconds, last)
    if len(prompts) < 2 * load.value:
        return Block(samples, seconds, seconds)
    # The first stream that finishes a conversation after the last one has started finds none left.
    ends: dict[str, float] = {}
    for record, sample in zip(profiled, samples, strict=True):
        conversation = record["metadata"]["conversation_id"]
        ends[conversation] = max(sample.ended, ends.get(conversation, 0.0))
    return Block(samples, seconds, min((end for end in ends.values() if end >= last), default=seconds))


def _sample(record: Mapping[str, Any], prompts: Sequence[Prompt], begin: int) -> RequestSample:
    about, metrics, error = record["metadata"], record.get("metrics") or {}, record.get("error")
    prompt = prompts[int(about["conversation_id"])]
    sent = (about["request_start_ns"] - begin) * _NS
    counted = _value(metrics, "usage_completion_tokens")
    pieces = _pieces(metrics, sent)
    return RequestSample(
        prompt=prompt.name,
        category=prompt.category,
        turn=about["turn_index"],
        intended=(about["credit_issued_ns"] - begin) * _NS,
        sent=sent,
        ended=(about["request_end_ns"] - begin) * _NS,
        pieces=pieces,
        input_tokens=int(_value(metrics, "usage_prompt_tokens") or 0),
        output_tokens=len(pieces) if counted is None else int(counted),
        tokens_told=counted is not None,
        counts=_counts(record.get("spec_decode_acceptance")),
        error=_kind(error) if error else None,
        problem=" ".join(str(error.get("message", "")).split())[:300] if error else "",
    )


def _pieces(metrics: Mapping[str, Any], sent: float) -> tuple[float, ...]:
    first = _value(metrics, "time_to_first_token")
    if first is None:
        return ()
    times = [sent + first * _MS]
    for gap in _value(metrics, "inter_chunk_latency") or ():
        times.append(times[-1] + gap * _MS)
    return tuple(times)


def _value(metrics: Mapping[str, Any], name: str) -> Any:
    return metrics[name]["value"] if name in metrics else None


def _counts(values: Mapping[str, Any] | None) -> DraftCounts | None:
    """Reads what AIPerf found in `metrics.speculative_decoding`; the keys of its histogram are texts."""
    if not values:
        return None
    histogram = values["acceptance_histogram"]
    exactly = {int(key): number for key, number in histogram.items()}
    longest = max([*exactly, values.get("num_spec_tokens") or 0])
    return DraftCounts(
        values["num_spec_steps"],
        values["num_draft_tokens"],
        values["num_accepted_draft_tokens"],
        tuple(exactly.get(number, 0) for number in range(longest + 1)),
    )


def _kind(error: Mapping[str, Any]) -> str:
    """Returns the kind of an error as `AskError` has it."""
    code, name = error.get("code") or 0, str(error.get("type", "")).lower()
    if code in (429, 503):
        return "refused"
    if "timeout" in name:
        return "timed_out"
    if 400 <= code < 500:
        return "rejected"
    return "unreachable" if "connect" in name else "failed"
