"""Recorded answers of a model and its draft, answered again in virtual time by each method.

    python -m tests.perf.replay RECORDS --model FOLDER --draft FOLDER    # records, minutes
    python -m tests.perf.replay RECORDS [--kinds short random other] [--times 4]

`methods.py` measures the same by the clock. Here the policy, the drafters and the coordinator are the
product's own, what the models say is read, and what steps take is a formula. So a busy machine changes
nothing, and a policy is judged in seconds. The draft is right as often as a good one in greedy answers, since
it is told them, and says its own where tokens are drawn. Kinds follow one another. JSON on stdout: tokens
per second over those of plain decoding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.fakes.simulated_device import Cost, Device, Running, SimulatedEngine
from tests.fakes.virtual_time import run_virtually
from tests.perf.coordinator import byte_tokenizer
from tests.perf.dictation import dictate
from tests.perf.methods import HYBRID, LONGEST, RIGHT, built_of
from tests.perf.workloads import KINDS, Questions, of_chat
from trtspec.serving.assembly import assemble
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting
from trtspec.serving.executor import FinishReason, Request, Response, SamplingConfig
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.state import at_token
from trtspec.serving.text import common_prefix
from trtspec.serving.tokenizer import Tokenizer

TARGET, DRAFT = Cost(0.0174, 0.0, 0.0026), Cost(0.0053, 0.0, 0.0007)
"""SmolLM2-135M and a draft of 6 of its 30 layers: 20 ms a token, 41 to verify 8 more, 0.30 for the draft."""
NOISE, MOST_ROWS, VOCAB_SIZE = 0.05, 256, 1 << 20
END = VOCAB_SIZE - 1
WRONG = VOCAB_SIZE - 2
WAYS: dict[str, tuple[Drafting | None, int | None]] = {
    "plain": (None, 0),
    "draft": (DRAFT_MODEL, None),
    "hybrid": (HYBRID, None),
}


@dataclass(frozen=True)
class Record:
    """An answer, which ends with `END` if the model ended it, and the token of the draft at each place."""

    kind: str
    name: str
    temperature: float | None
    prompt: list[int]
    said: list[int]
    drafted: list[int]


class Reader(SimulatedEngine):
    """Says what is recorded: the answer, or with `drafts` the draft's tokens, nonsense behind a wrong one."""

    def __init__(self, device: Device, cost: Cost, *, drafts: bool) -> None:
        super().__init__(device, cost, LONGEST, 4)
        self.limits = replace(self.limits, vocab_size=VOCAB_SIZE)
        self.record: Record | None = None
        self._drafts = drafts

    def _said(self, each: Running) -> Response | None:
        assert self.record is not None
        begin, draft = len(self.record.prompt), list(each.request.draft_token_ids)
        text = [*each.request.input_token_ids[begin : each.end], *each.said]
        new: list[int] = []
        while len(new) <= len(draft) and new == draft[: len(new)]:
            new.append(self._token(self.record, [*text, *new]))
        ended = new[-1] == END
        each.done -= len(draft) - common_prefix(draft, new, min(len(draft), len(new)))
        each.said += new[:-1] if ended else new
        if is_over := bool(draft) or ended or len(each.said) >= each.request.max_tokens:
            self.running.remove(each)
            self._cached[id(each.request.input_token_ids)] = each.request.input_token_ids, each.done
        elif not each.request.streaming:
            return None
        reason = FinishReason.LENGTH if is_over else FinishReason.NOT_FINISHED
        told = new[: len(new) - ended] if each.request.streaming else list(each.said)
        return Response(
            each.request_id,
            told,
            is_over,
            FinishReason.END_ID if ended else reason,
            num_verified=len(draft) or None,
        )

    def _token(self, record: Record, text: list[int]) -> int:
        if len(text) >= len(record.said):
            return END
        if not self._drafts:
            return record.said[len(text)]
        return record.drafted[len(text)] if text == record.said[: len(text)] else WRONG


def main() -> None:
    options = parse()
    if options.model:
        with tempfile.TemporaryDirectory() as folder:
            build = built_of(Path(folder), options.model, options.draft)
            asked = of_chat(options.model, options.number, options.tokens)
            lines = [json.dumps(asdict(each)) for each in asyncio.run(recorded(build, asked, options.tokens))]
        options.records.write_text("\n".join(lines))
    records = [Record(**json.loads(line)) for line in options.records.read_text().splitlines()]
    seconds = {way: taken(records, options.kinds, way, options.times) for way in WAYS}
    json.dump({kind: of_kind(seconds, kind) for kind in options.kinds}, sys.stdout, indent=2)
    print()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path)
    parser.add_argument("--model", type=Path, help="a chat model, whose answers are recorded first")
    parser.add_argument("--draft", type=Path, help="its draft")
    parser.add_argument("--number", type=int, default=6, help="the most questions of each kind to record")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--times", type=int, default=4, help="how often all is done, with other noise")
    return parser.parse_args()


async def recorded(build: Path, asked: Questions, tokens: int) -> list[Record]:
    thread, found = DeviceThread(), list[Record]()
    engines = [TorchExecutor(build / role / "engine", device_thread=thread) for role in ("target", "draft")]
    told, (target, draft) = dictate(engines[1]), map(AsyncExecutor, engines)
    told.right, (end, *_) = RIGHT, Tokenizer.load(build / "tokenizer").end_ids

    async def say(engine: AsyncExecutor, text: list[int], count: int, sampling: SamplingConfig) -> list[int]:
        request = Request(text, count, end_id=end, sampling=sampling)
        answer = await engine.answer(request, math.inf)
        return answer.token_ids + [END] * (answer.finish_reason is FinishReason.END_ID)

    for kind, questions in asked.items():
        for question in questions:
            prompt, sampling = list(question.request.prompt_token_ids or ()), question.request.sampling
            said = await say(target, prompt, tokens, sampling)
            told.text = [*prompt, *(token for token in said if token != END)] if sampling.is_greedy else ()
            drafted = [
                (await say(draft, [*prompt, *said[:place]], 1, at_token(sampling, place)))[0]
                for place in range(len(said))
            ]
            found.append(Record(kind, question.name, sampling.temperature, prompt, said, drafted))
    for each in engines:
        each.shutdown()
    return found


def taken(records: Sequence[Record], kinds: Sequence[str], way: str, times: int) -> dict[str, float]:
    """Returns the seconds of all answers by kind; the first of each kind is given once before, uncounted."""
    by_kind = {kind: [record for record in records if record.kind == kind] for kind in kinds}
    seconds, most = dict.fromkeys(kinds, 0.0), max(len(record.said) for record in records)

    async def run(seed: int) -> None:
        device, (drafting, length) = Device(seed, NOISE, MOST_ROWS), WAYS[way]
        draft = Reader(device, DRAFT, drafts=True) if drafting else None
        target = Reader(device, TARGET, drafts=False)
        coordinator = assemble(
            target,
            draft,
            byte_tokenizer(),
            drafting=drafting,
            policy="adaptive" if length is None else "fixed",
        )

        async def answer(record: Record) -> float:
            for engine in (target, draft):
                if engine:
                    engine.record = record
            begin, said = asyncio.get_running_loop().time(), list[int]()
            request = CompletionRequest(
                prompt_token_ids=record.prompt,
                max_tokens=most,
                num_draft_tokens=length,
                end_id=END,
                sampling=SamplingConfig(temperature=record.temperature),
            )
            async with aclosing(coordinator.stream(request)) as deltas:
                async for delta in deltas:
                    said += delta.token_ids
            assert said == [token for token in record.said if token != END], record.name
            return asyncio.get_running_loop().time() - begin

        for own in by_kind.values():
            await answer(own[0])
        for place in range(max(map(len, by_kind.values()))):
            for kind, own in by_kind.items():
                for record in own[place : place + 1]:
                    seconds[kind] += await answer(record)
        await asyncio.sleep(1)

    for seed in range(times):
        run_virtually(run(seed))
    return seconds


def of_kind(seconds: dict[str, dict[str, float]], kind: str) -> dict[str, float]:
    plain, draft, hybrid = (seconds[way][kind] for way in WAYS)
    return {
        "draft / plain": round(plain / draft, 3),
        "hybrid / plain": round(plain / hybrid, 3),
        "hybrid / better of plain and draft": round(min(plain, draft) / hybrid, 3),
    }


if __name__ == "__main__":
    main()
