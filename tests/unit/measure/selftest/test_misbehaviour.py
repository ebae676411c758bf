"""Each check tells an executor that misbehaves in its one point.

Those that behave are in `tests/contract/test_rules.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.conftest import Torch, _continue
from tests.fakes.around import Around
from tests.fakes.bindings import stand_in
from tests.fakes.external_drafts import ExternalDrafts
from tests.fakes.guided import END, text_of
from trtspec.measure.selftest import bls, chain, engines
from trtspec.measure.selftest.engines import TrialJob
from trtspec.measure.selftest.names import names
from trtspec.measure.selftest.rules import RULES
from trtspec.measure.selftest.trial import Differs, Outcome, Question, Rule, Ruling, Trial, expect
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.executor import (
    Executor,
    FinishReason,
    KvReuse,
    Listener,
    Request,
    Response,
    SamplingConfig,
)
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.triton.engines import EnginePair

PROMPTS = ([5, 17, 33, 60], [8, 40, 2, 71, 30], [1])
K = 6
CHECKS = {check.name: check for check in RULES}


class Misbehaving(Around):
    """Asks for something else than it is asked for, or says something else than it hears."""

    def asks(self, request: Request) -> Request:
        return request

    def says(self, request: Request, said: Response) -> Response:
        return said

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        return super().enqueue_request(self.asks(request), lambda said: listener(self.says(request, said)))


def asking(change: Callable[[Request], dict[str, Any]], *, of_drafts: bool) -> type[Misbehaving]:
    """Changes these fields of requests, with a draft or without."""

    class Asking(Misbehaving):
        def asks(self, request: Request) -> Request:
            is_meant = bool(request.draft_token_ids) is of_drafts
            return replace(request, **change(request)) if is_meant else request

    return Asking


def saying(change: Callable[[Request, list[int]], list[int]], *, of_drafts: bool) -> type[Misbehaving]:
    """Changes the tokens of answers, to requests with a draft or without."""

    class Saying(Misbehaving):
        def says(self, request: Request, said: Response) -> Response:
            is_meant = bool(request.draft_token_ids) is of_drafts
            return replace(said, token_ids=change(request, said.token_ids)) if is_meant else said

    return Saying


class SaysTheEnd(Misbehaving):
    """Has the end token in the text."""

    def says(self, request: Request, said: Response) -> Response:
        is_end = said.finish_reason is FinishReason.END_ID and request.end_id is not None
        return replace(said, token_ids=[*said.token_ids, request.end_id or 0]) if is_end else said


class Muddled(Misbehaving):
    """Says wrong tokens where several are at work."""

    at_work = 0

    def asks(self, request: Request) -> Request:
        self.at_work += 1
        return request

    def says(self, request: Request, said: Response) -> Response:
        self.at_work -= 1
        return replace(said, token_ids=[7] * len(said.token_ids)) if self.at_work > 1 else said


class GoesOn(Misbehaving):
    """Says that a request is cancelled, and works on."""

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self._heard: dict[int, Listener] = {}

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        number = super().enqueue_request(request, lambda said: self._tell(said))
        self._heard[number] = listener
        return number

    def _tell(self, said: Response) -> None:
        if said.request_id in self._heard:
            self._heard[said.request_id](said)

    def cancel_request(self, request_id: int) -> None:
        listener = self._heard.pop(request_id, None)
        if listener is None:
            return
        said = Response(request_id, [], is_final=True, finish_reason=FinishReason.CANCELLED)
        asyncio.get_running_loop().call_soon(listener, said)


class FindsNothing(Misbehaving):
    @property
    def kv_reuse(self) -> KvReuse | None:
        return replace(found, found=0) if (found := super().kv_reuse) else None


class SaysNotHowMuch(Misbehaving):
    def says(self, request: Request, said: Response) -> Response:
        return replace(said, num_verified=None)


class CutsAndIsSilent(Misbehaving):
    """Discards the end of drafts, and tells their whole length."""

    def asks(self, request: Request) -> Request:
        return replace(request, draft_token_ids=request.draft_token_ids[:2])

    def says(self, request: Request, said: Response) -> Response:
        return replace(said, num_verified=len(request.draft_token_ids) or None)


class ForgetsItsCache(Misbehaving):
    """Is wrong behind a text that it has computed a part of before (TensorRT-LLM #2217)."""

    seen: Sequence[int] = ()

    def says(self, request: Request, said: Response) -> Response:
        begun, self.seen = self.seen, list(request.input_token_ids)
        is_next = begun and len(self.seen) > len(begun) and self.seen[: len(begun)] == begun
        return replace(said, token_ids=[95, *said.token_ids[1:]]) if is_next else said


class LosesItsSlot(Misbehaving):
    """Draws for greedy requests too, once a sampled one was there."""

    warm = SamplingConfig()

    def asks(self, request: Request) -> Request:
        if not request.sampling.is_greedy:
            self.warm = request.sampling
        return replace(request, sampling=self.warm)


class DrawsAgain(Misbehaving):
    """Verifies sampled drafts as NVIDIA's kernel does without draft logits."""

    def __init__(self, inner: Executor) -> None:
        assert isinstance(inner, TorchExecutor)
        super().__init__(ExternalDrafts(inner))


class CutsAndDrawsAgain(DrawsAgain):
    """Cuts drafts, and verifies what is left as NVIDIA's kernel does without draft logits."""

    def asks(self, request: Request) -> Request:
        return replace(request, draft_token_ids=request.draft_token_ids[:2])


def corrected_to_the_draft(request: Request, tokens: list[int]) -> list[int]:
    at = len(tokens) - 1
    return [*tokens[:at], request.draft_token_ids[at]] if 0 <= at < len(request.draft_token_ids) else tokens


WRONG: Mapping[str, type[Misbehaving]] = {
    "plain decoding": asking(lambda asked: {"max_tokens": max(1, asked.max_tokens - 1)}, of_drafts=False),
    "streaming": saying(lambda asked, said: said * 2 if asked.streaming else said, of_drafts=False),
    "end of a plain text": SaysTheEnd,
    "end by max_tokens": saying(lambda _, said: [*said, *[7] * (-len(said) % 3)], of_drafts=False),
    "many at once": Muddled,
    "cancellation": GoesOn,
    "block reuse": FindsNothing,
    "bans and bias": asking(lambda asked: {"bad_words": ()}, of_drafts=True),
    "guides": asking(lambda asked: {"guide": None}, of_drafts=False),
    "accepted and one more": saying(lambda asked, said: said[: len(asked.draft_token_ids)], of_drafts=True),
    "nothing after a mismatch": saying(
        lambda asked, said: [*said, *asked.draft_token_ids[len(said) :]], of_drafts=True
    ),
    "one step": asking(
        lambda asked: {"draft_token_ids": ()} if asked.max_tokens > len(asked.draft_token_ids) + 1 else {},
        of_drafts=True,
    ),
    "max_tokens": asking(lambda asked: {"max_tokens": len(asked.draft_token_ids) + 1}, of_drafts=True),
    "end token": SaysTheEnd,
    "where a text ends": saying(corrected_to_the_draft, of_drafts=True),
    "tokens verified": SaysNotHowMuch,
    "rounds": ForgetsItsCache,
    "trimmed drafts": CutsAndIsSilent,
    "sampled drafts": DrawsAgain,
    "sampled drafts that are cut": CutsAndDrawsAgain,
    "greedy beside sampled": LosesItsSlot,
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Torch:
    return Torch(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def tried(engine: Torch) -> Iterator[Callable[[Rule, type[Misbehaving]], Outcome]]:
    async def likely(text: Sequence[int], count: int) -> Mapping[int, float]:
        found = engine.logits(text)[-1].double().softmax(-1).topk(count)
        total = float(found.values.sum())
        return {int(token): float(p) / total for token, p in zip(found.indices, found.values, strict=True)}

    def try_(check: Rule, kind: type[Misbehaving]) -> Outcome:
        asked = [Question(tuple(prompt), tuple(_continue(engine, prompt, 24))) for prompt in PROMPTS]

        async def main() -> Outcome:
            executor = kind(engine.untrimmed())
            return await check.outcome(
                Trial(executor, asked, likely, K, (END,), lambda said: text_of(list(said)))
            )

        return asyncio.run(main())

    yield try_
    engine.close()


@pytest.mark.parametrize("name", CHECKS)
def test_each_self_test_check_finds_the_executor_that_breaks_its_rule(
    name: str, tried: Callable[[Rule, type[Misbehaving]], Outcome]
) -> None:
    found = tried(CHECKS[name], WRONG[name])
    assert found.state is Ruling.DIFFERS, found.found
    assert "Error" not in found.found
    assert found.words.endswith(f"; so {CHECKS[name].means}")


def test_a_difference_names_the_first_token_that_differs() -> None:
    with pytest.raises(Differs, match="number 3 is the first that differs"):
        expect([5, 6, 8, 9], [5, 6, 7, 9], "text")
    with pytest.raises(Differs, match="number 2 is the first that differs"):
        expect([5], [5, 6], "text")


def test_guides_are_followed(tried: Callable[[Rule, type[Misbehaving]], Outcome]) -> None:
    """Nobody else tries them here: the contract's executors are loaded without."""
    assert tried(CHECKS["guides"], Misbehaving).state is Ruling.OK


class TestTheBindings:
    @pytest.fixture
    def trtllm(self) -> Iterator[Any]:
        with stand_in() as module:
            yield SimpleNamespace(**vars(module))

    def found(self, trtllm: Any) -> dict[str, Ruling]:
        return {one.check: one.state for one in names(trtllm, "1.2.1", "bf16")}

    def test_are_as_they_should_be(self, trtllm: Any) -> None:
        assert set(self.found(trtllm).values()) == {Ruling.OK}

    def test_the_self_test_finds_bindings_of_another_release(self, trtllm: Any) -> None:
        trtllm.__version__ = "1.3.0"
        assert self.found(trtllm)["release"] is Ruling.DIFFERS

    def test_accept_an_image_whose_wheel_is_a_candidate_of_the_release(self, trtllm: Any) -> None:
        trtllm.__version__ = "1.2.1rc8"
        assert self.found(trtllm)["release"] is Ruling.OK

    def test_without_an_argument(self, trtllm: Any) -> None:
        trtllm.OutputConfig = lambda exclude_input_from_output: None
        assert self.found(trtllm)["requests"] is Ruling.DIFFERS

    @pytest.mark.parametrize("name", ["KvCacheConfig", "DecodingMode", "GuidedDecodingConfig"])
    def test_without_a_class(self, trtllm: Any, name: str) -> None:
        delattr(trtllm, name)
        assert self.found(trtllm)["configuration"] is Ruling.DIFFERS

    @pytest.mark.parametrize("name", ["Executor", "Result", "FinishReason"])
    def test_without_an_attribute(self, trtllm: Any, name: str) -> None:
        setattr(trtllm, name, type(name, (), {}))
        assert self.found(trtllm)["responses"] is Ruling.DIFFERS


class TestThePair:
    """What is tried of both engines together, and of the memory that they take."""

    @pytest.fixture
    def pair_checks(
        self, engine: Torch, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[..., dict[str, Outcome]]]:
        gib = 2**30

        def run(target: type[Misbehaving], draft: type[Misbehaving], taken: float) -> dict[str, Outcome]:
            monkeypatch.setattr(engines, "free_memory", lambda device: int((80 - taken) * gib))
            planned = {"engines": 4.0 * gib, "draft_cache": 0.0, "fraction": 0.9}
            job = TrialJob("bf16", {}, "", "", (), "1.2.1", planned, "")
            asked = [Question(tuple(prompt), tuple(_continue(engine, prompt, 24))) for prompt in PROMPTS]

            async def main() -> dict[str, Outcome]:
                loaded = engine.untrimmed(), engine.untrimmed()
                tokenizer: Any = SimpleNamespace(end_ids=())
                pair = EnginePair(target(loaded[0]), draft(loaded[1]), tokenizer)
                trial = Trial(pair.target, asked, None, K)  # type: ignore[arg-type]
                checks = (*engines._of_pair(pair, ""), *engines._last(job, pair, 80 * gib)[:1])
                return {check.name: await check.outcome(trial) for check in checks}

            return asyncio.run(main())

        yield run
        engine.close()

    def test_is_as_it_should_be(self, pair_checks: Callable[..., dict[str, Outcome]]) -> None:
        found = pair_checks(Misbehaving, Misbehaving, 72.0)
        assert [one.state for one in found.values()] == [Ruling.OK, Ruling.OK]

    def test_takes_more_than_planned(self, pair_checks: Callable[..., dict[str, Outcome]]) -> None:
        assert pair_checks(Misbehaving, Misbehaving, 73.0)["memory as planned"].state is Ruling.DIFFERS

    @pytest.mark.parametrize("role", [0, 1])
    def test_is_muddled(self, pair_checks: Callable[..., dict[str, Outcome]], role: int) -> None:
        kinds = [Misbehaving, Misbehaving]
        kinds[role] = Muddled if role == 0 else Drifting
        found = pair_checks(*kinds, 72.0)["two engines"]
        assert (found.state, "while the" in found.found) == (Ruling.DIFFERS, True)


@pytest.mark.parametrize(("wrong", "state"), [(None, Ruling.OK), (0, Ruling.DIFFERS), (4, Ruling.DIFFERS)])
def test_a_coordinator_whose_text_is_not_the_targets_is_found(wrong: int | None, state: Ruling) -> None:
    """With drafts, or without."""
    text = tuple(range(1, 33))

    async def complete(asked: CompletionRequest) -> Any:
        said = text if asked.num_draft_tokens != wrong else (9, *text[1:])
        accepted = SimpleNamespace(num_accepted_draft_tokens=8)
        return SimpleNamespace(token_ids=said, completion=SimpleNamespace(speculation=accepted))

    pair: Any = SimpleNamespace(coordinator=lambda: SimpleNamespace(complete=complete))
    job = TrialJob("bf16", {}, "", "", (), "1.2.1", {}, "")
    trial = Trial(None, [Question((5,), text)], None, K)  # type: ignore[arg-type]
    found = asyncio.run(engines._last(job, pair, 0)[1].outcome(trial))
    assert (found.check, found.state) == ("a round's cost", state), found.found
    assert "Error" not in found.found


@pytest.mark.parametrize("lacking", ["draft_input_ids", "total_draft_tokens"])
def test_a_model_of_tritons_that_lacks_a_tensor_is_found_before_a_rule_is_tried(lacking: str) -> None:
    model: Any = SimpleNamespace(tensors=lambda: ({*bls._SENT} - {lacking}, {*bls._READ} - {lacking}))
    found = asyncio.run(bls._tensors(model).outcome(Trial(None, (), None, 0)))  # type: ignore[arg-type]
    assert (found.state, found.found) == (Ruling.DIFFERS, f"it has no {lacking}")


class InPairs(Misbehaving):
    """Says two tokens in a step, as an engine whose draft was accepted."""

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        held: list[int] = []

        def hear(said: Response) -> None:
            held.extend(said.token_ids)
            if said.is_final or len(held) > 1:
                listener(replace(said, token_ids=list(held)))
                held.clear()

        return super().enqueue_request(request, hear)


@pytest.mark.parametrize(("kind", "state"), [(InPairs, Ruling.OK), (Misbehaving, Ruling.DIFFERS)])
def test_an_engine_that_drafts_by_itself_saves_steps(
    engine: Torch, kind: type[Misbehaving], state: Ruling
) -> None:
    asked = [Question(tuple(prompt), tuple(_continue(engine, prompt, 24))) for prompt in PROMPTS]

    async def main() -> Outcome:
        loaded, tokenizer = kind(engine.untrimmed()), SimpleNamespace(end_ids=())
        (rule,) = engines._of_pair(EnginePair(loaded, None, tokenizer), "")  # type: ignore[arg-type]
        return await rule.outcome(Trial(loaded, asked, None, 0))  # type: ignore[arg-type]

    found = asyncio.run(main())
    engine.close()
    assert (found.check, found.state) == ("drafts inside", state), found.found
    assert "Error" not in found.found


class Drifting(Misbehaving):
    """Says something else each time."""

    times = 0

    def says(self, request: Request, said: Response) -> Response:
        self.times += 1
        return replace(said, token_ids=[self.times, *said.token_ids[1:]])


PAGE = Path(__file__).parents[4] / "docs" / "reference" / "selftest.md"


@pytest.mark.parametrize("check", RULES, ids=lambda check: check.name)
def test_every_check_is_told_on_its_page_with_its_rule(check: Rule) -> None:
    row = f"- {check.name}: {check.rule}"
    assert row in PAGE.read_text(encoding="utf-8").splitlines()


def test_every_check_has_one_that_misbehaves() -> None:
    assert WRONG.keys() == CHECKS.keys()


def test_the_pages_that_a_rule_names_are_there() -> None:
    pages = [source for _, source in chain.RULES.values() if source.startswith("docs/")]
    assert pages
    assert [page for page in pages if not (PAGE.parents[2] / page).is_file()] == []
