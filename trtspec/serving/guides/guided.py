"""Requests with a guide, which is compiled before they get a slot."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from trtspec.serving.awaiting import within
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.coordinator import CompletionCall, Coordinator, Deltas, Feature, Stream
from trtspec.serving.errors import GuideError, RequestError, TimedOut
from trtspec.serving.executor import GuideType
from trtspec.serving.guides.guides import Guides

ALLOWED_GUIDES = {
    GuideType.JSON: "left out for the type json",
    GuideType.JSON_SCHEMA: "a JSON schema that xgrammar can read",
    GuideType.REGEX: "a regular expression that xgrammar can read",
    GuideType.EBNF_GRAMMAR: "a grammar in EBNF with a rule named root",
    GuideType.STRUCTURAL_TAG: "a structural tag of xgrammar, in JSON",
}


class GuidedRequests(Feature):
    """Refuses a guide that cannot be followed, before anything runs if it has `guides`."""

    def __init__(self, guides: Guides | None) -> None:
        self._guides = guides

    def concerns(self, request: CompletionRequest) -> bool:
        return request.guide is not None

    async def around(self, coordinator: Coordinator, stream: Stream, call: CompletionCall) -> Deltas:
        assert call.request.guide is not None
        try:
            if self._guides is not None:
                with coordinator.present():
                    await self._compile(self._guides, coordinator, call)
            async with aclosing(stream(call)) as deltas:
                async for delta in deltas:
                    yield delta
        except GuideError as error:
            allowed = ALLOWED_GUIDES[call.request.guide.guide_type]
            raise RequestError("guide", f"refused ({error})", allowed) from None

    async def _compile(self, guides: Guides, coordinator: Coordinator, call: CompletionCall) -> None:
        state = await coordinator.begin(call)
        assert state.guide is not None
        left_s = max(call.deadline - asyncio.get_running_loop().time(), 0.0)
        try:
            await within(left_s, guides.grammar(state.guide))
        except asyncio.TimeoutError:
            raise TimedOut(f"at token 0 of {state.max_tokens}") from None
