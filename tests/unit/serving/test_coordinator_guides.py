"""Guides from request to text, on engines that resume them and on engines that do not."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from jsonschema import validate

from tests.fakes.clock import Clock, until
from tests.fakes.engine_dir import tiny_llama, write_engine
from tests.fakes.languages import TARGET, Run
from tests.fakes.scripted_executor import ScriptedExecutor, echo
from tests.support.draft_failures import draft_failures
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.errors import Busy, RequestError, TimedOut
from trtspec.serving.executor import Executor, Guide, GuideType, SamplingConfig
from trtspec.serving.executors.torch.torch_executor import TorchExecutor, load_engines
from trtspec.serving.guides import guides as guides_module
from trtspec.serving.guides.compiler import Grammar, GuideCompiler
from trtspec.serving.guides.guides import Guides
from trtspec.serving.thread_pool import BoundedCalls
from trtspec.serving.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["hello", "wé"]}}},
    "required": ["id", "tags"],
    "additionalProperties": False,
}
GUIDES = {
    "json_schema": Guide(GuideType.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": Guide(GuideType.REGEX, r"(hello|w[0-9é]{2,5}!){2,9}"),
}
# A random model seldom ends anything, and so needs a push.
PUSH = (*((letter, 6.0) for letter in '",]}!'), ("<|end|>", 9.0))
LOOKUP = Drafting("ngram", {"prompt_lookup_min": 1, "prompt_lookup_max": 4})


@dataclass
class Engines:
    """A target and a draft of a padded vocabulary, as the torch backend loads them."""

    folders: list[Path]
    guides: Guides

    def load(self) -> Sequence[Executor]:
        return load_engines(self.folders, guides=self.guides)


@pytest.fixture(scope="module")
def engines(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    folder = tmp_path_factory.mktemp("guided")
    sizes = {"target": 288, "draft": 304}
    folders = [
        write_engine(folder / role, tiny_llama(seed=3, vocab_size=size), max_batch_size=8, max_seq_len=256)
        for role, size in sizes.items()
    ]
    guides = Guides(tokenizer.vocabulary, max(sizes.values()))
    yield Engines(folders, guides)
    guides.close()


async def complete(
    engines: Engines, tokenizer: Tokenizer, *requests: CompletionRequest, drafting: Drafting | None = None
) -> list[Delta]:
    target, draft = engines.load()
    try:
        coordinator = assemble(target, draft, tokenizer, drafting=drafting, guides=engines.guides)
        return list(await asyncio.gather(*map(coordinator.complete, requests)))
    finally:
        draft.shutdown()
        target.shutdown()


@pytest.mark.parametrize("drafting", [None, LOOKUP], ids=["draft_model", "ngram"])
@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), SamplingConfig(temperature=0.8, seed=5)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("name", GUIDES)
def test_drafts_change_nothing_and_are_not_turned_off(
    run: Run,
    engines: Engines,
    tokenizer: Tokenizer,
    name: str,
    sampling: SamplingConfig,
    drafting: Drafting | None,
) -> None:
    request = CompletionRequest(
        "hello",
        max_tokens=120,
        sampling=sampling,
        embedding_bias=PUSH,
        guide=GUIDES[name],
        num_draft_tokens=0,
    )
    several = [replace(request, num_draft_tokens=k) for k in (0, 1, 3, 6)]
    alone, *drafted = run(complete(engines, tokenizer, *several, drafting=drafting))
    assert alone.completion.end_reason is EndReason.END_ID
    if name == "regex":
        assert re.fullmatch(GUIDES[name].guide, alone.text)
    else:
        validate(json.loads(alone.text), SCHEMA)
    for delta in drafted:
        assert (delta.text, delta.token_ids) == (alone.text, alone.token_ids)
        assert delta.completion.undrafted_for == ()
        assert delta.completion.speculation.num_draft_tokens > 0
    if drafting is None:
        assert drafted[-1].completion.speculation.num_accepted_draft_tokens > 0


def test_a_draft_with_the_guide_is_accepted_more_often(
    run: Run, engines: Engines, tokenizer: Tokenizer
) -> None:
    request = CompletionRequest("hello", max_tokens=150, num_draft_tokens=6, guide=GUIDES["regex"])

    async def accepted(with_guide: bool) -> float:
        target, draft = engines.load()
        if not with_guide:
            draft.shutdown()
            draft = TorchExecutor(engines.folders[1])
        try:
            coordinator = assemble(target, draft, tokenizer, guides=engines.guides)
            delta = await coordinator.complete(request)
            assert delta.completion is not None
            return delta.completion.speculation.draft_acceptance_rate
        finally:
            draft.shutdown()
            target.shutdown()

    assert run(accepted(with_guide=True)) > run(accepted(with_guide=False))


def test_min_tokens_and_other_ends_with_a_guide(run: Run, engines: Engines, tokenizer: Tokenizer) -> None:
    """A text that is complete ends where nothing may follow, with `min_tokens` and without end tokens too."""
    request = CompletionRequest("hello", max_tokens=40, guide=Guide(GuideType.REGEX, "hello{2,12}"))
    early, late, endless = run(
        complete(
            engines,
            tokenizer,
            replace(request, embedding_bias=(("<|turn|>", 99.0),)),
            replace(request, embedding_bias=(("<|turn|>", 99.0),), sampling=SamplingConfig(min_tokens=6)),
            replace(request, end_id=-1, sampling=SamplingConfig(min_tokens=30)),
        )
    )
    assert early.text == "helloo"
    assert len(late.token_ids) == 6
    assert endless.text == "hell" + "o" * 12
    for delta in (early, late, endless):
        assert delta.completion.end_reason is EndReason.END_ID


@pytest.mark.parametrize(
    ("guide", "found"),
    [
        (Guide(GuideType.JSON_SCHEMA, "{"), "not JSON"),
        (Guide(GuideType.JSON_SCHEMA, '{"type": "word"}'), 'Unsupported type "word"'),
        (Guide(GuideType.REGEX, "(((("), "parenthesis is not closed"),
        (Guide(GuideType.REGEX, "a" * 10**6), "1000000 characters"),
    ],
)
def test_a_guide_that_cannot_be_read_is_refused_before_anything_runs(
    run: Run, tokenizer: Tokenizer, engines: Engines, guide: Guide, found: str
) -> None:
    limits = replace(TARGET, guide_types=frozenset(GuideType), resumes_guides=True)
    target = ScriptedExecutor(limits, echo([], 0))

    async def main() -> None:
        coordinator = assemble(target, None, tokenizer, guides=engines.guides)
        with pytest.raises(RequestError, match=re.escape(found)) as caught:
            await coordinator.complete(CompletionRequest("hello", guide=guide))
        assert caught.value.field == "guide"

    run(main())
    assert target.requests == []


def test_a_guide_that_takes_long_to_read_holds_up_nobody(
    run: Run, tokenizer: Tokenizer, engines: Engines, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, compile_ = Event(), GuideCompiler.compile
    asked: list[str] = []

    def slow(compiler: GuideCompiler, guide: Guide) -> Grammar:
        asked.append(guide.guide)
        if guide.guide.startswith("slow"):
            released.wait(300)
        return compile_(compiler, guide)

    monkeypatch.setattr(guides_module, "COMPILE_S", 20.0)
    monkeypatch.setattr(GuideCompiler, "compile", slow)

    def ask(expression: str, **values: Any) -> CompletionRequest:
        return CompletionRequest("hello", guide=Guide(GuideType.REGEX, expression), **values)

    async def time_passes(expression: str) -> None:
        """Its time ends once a thread has begun with it, or if there is none."""
        await until(lambda: expression in asked or engines.guides._threads.is_lost)
        for _ in range(10):
            await asyncio.sleep(0)
        clock.seconds += guides_module.COMPILE_S

    async def main() -> None:
        target, draft = engines.load()

        async def asked_too_long(expression: str) -> None:
            refused = asyncio.ensure_future(coordinator.complete(ask(expression)))
            await time_passes(expression)
            await refused

        try:
            coordinator = assemble(target, draft, tokenizer, guides=engines.guides)
            await coordinator.complete(ask("a"))  # xgrammar is loaded now.
            refused = asyncio.ensure_future(coordinator.complete(ask("slow")))
            for _ in range(3):
                await coordinator.complete(CompletionRequest("hello", max_tokens=2))
                assert not refused.done()
            await time_passes("slow")
            with pytest.raises(RequestError, match="takes longer"):
                await refused
            read = list(asked)
            with pytest.raises(RequestError, match="takes longer"):  # It is remembered, and not read again.
                await coordinator.complete(ask("slow"))
            assert asked == read
            with pytest.raises(TimedOut):
                await coordinator.complete(ask("slow too", timeout_s=0.1))
            await coordinator.complete(ask("[0-9]{3}"))

            # Threads are lost to guides that never end; then nobody else is told that his own guide is slow.
            for number in range(4):
                with pytest.raises((RequestError, Busy)):
                    await asked_too_long(f"slow{number}")
            with pytest.raises(Busy, match="other grammars"):
                await asked_too_long("[0-9]{4}")
            released.set()
            await coordinator.complete(ask("[0-9]{4}"))
        finally:
            released.set()
            draft.shutdown()
            target.shutdown()

    run(main())


@pytest.mark.parametrize(("kind", "name"), [(Guides, "grammar"), (BoundedCalls, "make")])
def test_a_guide_that_an_engine_has_no_time_for_is_not_refused(
    kind: type, name: str, run: Run, engines: Engines, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any) -> None:
        raise Busy("others take their time")

    monkeypatch.setattr(kind, name, busy)
    asked = CompletionRequest("hello", guide=Guide(GuideType.REGEX, f"{name}[0-9]{{3}}"))

    async def main() -> None:
        target, draft = engines.load()
        try:
            await assemble(target, draft, tokenizer).complete(asked)
        finally:
            draft.shutdown()
            target.shutdown()

    with pytest.raises(Busy, match=r"other.*; try again later$"):
        run(main())


def test_an_engine_that_begins_anew_decodes_alone_and_the_answer_says_so(
    run: Run, tokenizer: Tokenizer
) -> None:
    """As TensorRT-LLM does: one request from the first token to the last, without drafts."""
    limits = replace(TARGET, guide_types=frozenset({GuideType.JSON}))
    target = ScriptedExecutor(limits, echo([60, 61, 62], tokenizer.end_ids[0]))
    draft = ScriptedExecutor(replace(TARGET, max_draft_len=0), target.next_token)
    guide = Guide(GuideType.JSON)

    async def main() -> None:
        coordinator = assemble(target, draft, tokenizer)
        delta = await coordinator.complete(CompletionRequest(prompt_token_ids=[1], max_tokens=9, guide=guide))
        assert delta.token_ids == [60, 61, 62]
        assert delta.completion is not None
        assert delta.completion.undrafted_for == ("guided_decoding_guide_type",)
        other = CompletionRequest("hello", guide=Guide(GuideType.REGEX, "a"))
        with pytest.raises(RequestError, match="guide_type is regex; allowed: one of json"):
            await coordinator.complete(other)

    run(main())
    [request] = target.requests
    assert request.guide == replace(guide, end_ids=tokenizer.end_ids)
    assert (request.max_tokens, request.draft_token_ids, request.num_guided) == (9, (), 0)
    assert draft.requests == []


def test_an_engine_without_guides_refuses_them(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        coordinator = assemble(ScriptedExecutor(TARGET, echo([], 0)), None, tokenizer)
        with pytest.raises(RequestError, match="the target engine follows no guide"):
            await coordinator.complete(CompletionRequest("hello", guide=Guide(GuideType.JSON)))

    run(main())


def test_a_guide_that_leaves_no_token_does_not_put_the_draft_at_rest(
    run: Run, engines: Engines, tokenizer: Tokenizer
) -> None:
    bad = CompletionRequest("hello", bad_words=("0",), guide=Guide(GuideType.REGEX, "0"))

    async def main() -> None:
        target, draft = engines.load()
        try:
            coordinator = assemble(target, draft, tokenizer, guides=engines.guides)
            for _ in range(5):
                with pytest.raises(RequestError, match="together leave no token"):
                    await coordinator.complete(bad)
            good = CompletionRequest("hello", max_tokens=40, num_draft_tokens=4)
            delta = await coordinator.complete(good)
            assert delta.completion is not None
            assert delta.completion.speculation.num_draft_tokens > 0
            assert (coordinator.stats.draft_available, draft_failures(coordinator.stats)) == (True, 0)
            assert coordinator.failure is None
        finally:
            draft.shutdown()
            target.shutdown()

    run(main())
