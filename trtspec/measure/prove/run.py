"""Asks both servers of a proof: for their texts, for right answers, and for their speed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from yarl import URL

from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.progress import Advance
from trtspec.client.finding import shown
from trtspec.client.scrape import Scrape, parse, read
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import BenchedModel, BenchedServer, BenchResult, DraftAcceptance
from trtspec.measure.bench.server_metrics import Meanwhile
from trtspec.measure.bench.session import BenchTargets, Watcher, begun
from trtspec.measure.bench.session import run as measure
from trtspec.measure.bench.traffic import OwnTraffic
from trtspec.measure.html.sections import together
from trtspec.measure.prove.proof import Accuracy, Proof, Wanted, counted, merged
from trtspec.measure.prove.servers import ProvedServer, ServedSide, ServerTurns, begin
from trtspec.measure.verify.opening import deployed, on_server
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.sides import Sides, VerificationSettings, VerifyRequest
from trtspec.measure.verify.verification import num_requests, verify
from trtspec.measure.workloads.workload import Prompt


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """The questions to both servers."""

    bench: BenchPlan
    settings: VerificationSettings
    prompts: Sequence[VerifyPrompt]
    vocabulary: Vocabulary
    questions: Sequence[Prompt]
    """Those with a right answer."""
    wanted: Wanted
    in_turns: bool
    """True runs one of the two servers at a time."""
    folder: Path
    command: str


@dataclass(frozen=True, slots=True)
class ProofTalk:
    """Says what a proof does while it runs."""

    say: Callable[[str], None]
    progress: Callable[[str, int, str], AbstractContextManager[Advance]]
    watcher: Callable[[BenchResult, BenchPlan], Watcher]


async def prove(old: ProvedServer, new: ProvedServer, plan: ProofPlan, talk: ProofTalk) -> Proof:
    """Returns the comparison of two servers, or of one server with drafts and without.

    If both are the same object, that one server is asked for plain decoding. Raises `UnavailableError` for a
    server that does not answer, and `ServerError` for one that does not become ready.
    """
    proof = _Proof(old, new, plan, talk)
    async with AsyncExitStack() as stack:
        if plan.in_turns:
            return await proof.in_turns(stack)
        return await proof.at_once(stack)


class _Proof:
    def __init__(self, old: ProvedServer, new: ProvedServer, plan: ProofPlan, talk: ProofTalk) -> None:
        self._old, self._new, self._plan, self._talk = old, new, plan, talk

    async def at_once(self, stack: AsyncExitStack) -> Proof:
        """Runs both servers beside each other; blocks of requests alternate between them."""
        old, new = self._old, self._new
        for server in dict.fromkeys((old, new)):
            if server.start:
                await begin(server.start, stack, self._talk.say)
        sides, left_out = None, ""
        try:
            sides = await self._sides(stack)
        except UnavailableError as error:
            if old is new:
                raise
            left_out = f"{error.subject} {error.problem}"
        texts, accuracy = await self._asked(sides) if sides else (None, None)
        folder, is_one = self._plan.folder / "bench", old is new
        targets = replace(self._targets(new, folder), as_deployed=not is_one)
        if not is_one:
            address = old.address
            targets = replace(
                targets, baseline=address.url, baseline_key=address.key, baseline_model=address.model
            )
        before = [await _scrape(server) for server in (old, new)]
        bench = await self._measured(targets, texts)
        found = [
            await _acceptance(bench, arm, server, seen)
            for arm, server, seen in zip(("plain", "speculative"), (old, new), before, strict=True)
        ]
        # One server's metrics count both arms.
        return self._made(bench, (None if is_one else found[0], found[1]), texts, accuracy, left_out)

    async def in_turns(self, stack: AsyncExitStack) -> Proof:
        """Runs one server at a time, for a machine that has room for no more."""
        turns = ServerTurns(self._plan.vocabulary.end_ids, self._talk.say)
        stack.push_async_callback(turns.end)
        assert self._old.start is not None
        assert self._new.start is not None
        old, new = ServedSide(self._old.start, turns), ServedSide(self._new.start, turns)
        await turns.reach(old)
        texts, accuracy = await self._asked(Sides(old, new, plain_k=None))
        arms = ("old", old, self._old), ("new", new, self._new)
        results = {
            name: self._unmeasured(self._targets(server, self._plan.folder / name))
            for name, _, server in arms
        }
        acceptance = dict[str, DraftAcceptance | None].fromkeys(results)
        # A start takes minutes: the server that runs already is measured first.
        for name, side, server in arms if turns.turn is old else reversed(arms):
            await turns.reach(side)
            targets = replace(self._targets(server, self._plan.folder / name), as_deployed=True)
            before = await _scrape(server)
            results[name] = await self._measured(targets, texts)
            acceptance[name] = await _acceptance(results[name], "speculative", server, before)
            if results[name].is_partial:
                break
        bench = merged(results["old"], results["new"])
        return self._made(bench, (acceptance["old"], acceptance["new"]), texts, accuracy, "")

    async def _measured(self, targets: BenchTargets, texts: VerifyResult | None) -> BenchResult:
        """Returns the speed; nothing of a server that a case has ended, which refutes it."""
        try:
            return (await measure(self._plan.bench, targets, self._talk.watcher, OwnTraffic()))[0]
        except UnavailableError as error:
            if texts is None or not texts.faults:
                raise
            self._talk.say(f"the speed is not measured: {error}")
            return self._unmeasured(targets)

    def _unmeasured(self, targets: BenchTargets) -> BenchResult:
        server = BenchedServer(shown(targets.url), "openai", "none")
        return begun(self._plan.bench, server, BenchedModel(""), OwnTraffic().name, targets.command)

    def _made(
        self,
        bench: BenchResult,
        acceptance: tuple[DraftAcceptance | None, DraftAcceptance | None],
        texts: VerifyResult | None,
        accuracy: Accuracy | None,
        left_out: str,
    ) -> Proof:
        plan, is_one = self._plan, self._old is self._new
        names = (f"{self._old.name}, plain decoding" if is_one else self._old.name), self._new.name
        return Proof(*names, plan.wanted, texts, left_out, bench, acceptance, accuracy, plan.command)

    async def _sides(self, stack: AsyncExitStack) -> Sides:
        if self._old is self._new:
            return await stack.enter_async_context(on_server(self._new.address, self._plan.vocabulary))
        ends = self._plan.vocabulary.end_ids
        speculative, _ = await deployed(self._new.address, ends)
        stack.push_async_callback(speculative.close)
        plain, _ = await deployed(self._old.address, ends)
        stack.push_async_callback(plain.close)
        # Each is compared as it is deployed.
        return Sides(plain, speculative, plain_k=None)

    async def _asked(self, sides: Sides) -> tuple[VerifyResult, Accuracy | None]:
        plan, talk = self._plan, self._talk
        asked = plan.settings
        old = await self._right(sides, is_old=True)
        with talk.progress("texts", num_requests(asked, len(plan.prompts)), "requests") as advance:
            texts = await verify(sides, plan.vocabulary, plan.prompts, asked, advance, plan.command)
        new = await self._right(sides, is_old=False)
        return texts, counted(list(zip(old, new, strict=True)))

    async def _right(self, sides: Sides, *, is_old: bool) -> list[bool]:
        """Returns for each question whether the answer contains the right one."""
        side, length = (sides.plain, sides.plain_k) if is_old else (sides.speculative, None)
        gate, most = asyncio.Semaphore(self._plan.settings.concurrency), self._plan.settings.max_tokens

        async def one(prompt: Prompt) -> bool:
            async with gate:
                said = await side.ask(VerifyRequest(prompt.text, prompt.max_tokens or most, length))
            return contains(said.text, prompt.answer)

        return list(await asyncio.gather(*map(one, self._plan.questions)))

    def _targets(self, server: ProvedServer, folder: Path) -> BenchTargets:
        return BenchTargets(
            url=server.address.url,
            model_name=server.address.model,
            baseline=None,
            metrics_url=None,
            timeout_s=600,
            folder=folder,
            as_csv=False,
            keeps_answers=False,
            key=server.address.key,
            command=self._plan.command,
        )


def contains(text: str, answer: str) -> bool:
    """Says whether a text has an answer in it, as a word or a number of its own."""
    return bool(re.search(rf"(?<![\w.]){re.escape(_plain(answer))}(?!\w|\.\d)", _plain(text)))


def _plain(text: str) -> str:
    """Returns a text for comparison: lower case, with single blanks and no commas in numbers."""
    return " ".join(text.replace(",", "").lower().split())


async def _scrape(server: ProvedServer) -> Scrape | None:
    """Returns the metrics beside OpenAI's API; None if there are none."""
    url = URL(server.address.url)
    if not url.path.rstrip("/").endswith("/v1"):
        return None
    try:
        text = await asyncio.to_thread(read, str(url.parent / "metrics"))
    except TrtspecError:
        return None
    return parse(text, perf_counter())


async def _acceptance(
    result: BenchResult, arm: str, server: ProvedServer, before: Scrape | None
) -> DraftAcceptance | None:
    """Returns the drafts of an arm at all loads, by its answers, or else by its server's metrics."""
    figures: list[Any] = [getattr(level.arms, arm) for level in result.levels]
    told = [one.drafts.acceptance for one in figures if one and one.drafts]
    if told:
        return together(told)
    after = await _scrape(server)
    drafts = Meanwhile(before, after).drafts if before and after else None
    return drafts.acceptance if drafts else None
