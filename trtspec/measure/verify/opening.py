"""Opens the sides of a verification: engines in this process, or a server.

Servers are asked for tokens: trtspec's model behind Triton's HTTP port, or a model behind OpenAI's API.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from yarl import URL

from trtspec.base.errors import EngineError, ServerError, UnavailableError
from trtspec.base.roles import Role
from trtspec.client.endpoint import AskError, DraftCounts
from trtspec.client.finding import FoundServer, find, shown
from trtspec.client.http import Streams, problem_of
from trtspec.client.openai import COUNTING, SGLANG, TRTSPEC, counts_of
from trtspec.deployment.build import DeployedBuild, find_build
from trtspec.measure.verify.prompts import Vocabulary
from trtspec.measure.verify.sides import (
    END,
    PROBED,
    ChatAnswer,
    Row,
    Side,
    Sides,
    VerifyAnswer,
    VerifyRequest,
)
from trtspec.pipeline.engine.directory import read_engine
from trtspec.serving.completion import NO_END, CompletionRequest, EndReason
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import ServingError
from trtspec.serving.executor import MAX_TOP_LOG_PROBS, Guide, GuideType, Limits
from trtspec.serving.triton.engines import EnginePair, load

_NEEDED = ("input_ids", "return_output_ids")
_WANTED = ("stream", "return_output_ids", "return_num_input_tokens", "return_perf_metrics")
_MOST_TOP = 5
"""The largest number of likeliest tokens that OpenAI's completions report."""
_NAME = "token_id:"
_TELLING: Mapping[str | None, Mapping[str, Any]] = {
    SGLANG: {"return_token_ids": True, **COUNTING[SGLANG]},
    "tensorrt_llm": {"detokenize": False},
}
"""By a model's owner, the field that makes a server report token ids if log-probabilities have none.

SGLang 0.5.23, `entrypoints/openai/serving_completions.py`; TensorRT-LLM 1.2, `serve/postprocess_handlers.py`.
"""


class _ServerSide:
    """Streams the answers of one model of a server."""

    def __init__(
        self, url: str, model: str, streams: Streams, top_log_probs: int, longest: int | None = None
    ) -> None:
        self.name, self._streams, self.top_log_probs = f"{model} at {shown(url)}", streams, top_log_probs
        self.longest = longest
        self.software: str | None = None

    async def _events(self, address: URL, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the events of an answer; raises `ServerError`."""
        try:
            async with aclosing(self._streams.post(address, body, perf_counter())) as events:
                async for said, _ in events:
                    if said.get("error") is not None:
                        raise ServerError(self.name, problem_of(str(said["error"])))
                    yield said
        except AskError as error:
            raise ServerError(self.name, error.problem) from error

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Turns what reading an event of another form raises into a `ServerError`."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"an event is none of this API: {type(error).__name__}: {error}"
            raise ServerError(self.name, problem) from error

    async def close(self) -> None:
        await self._streams.close()


class TritonSide(_ServerSide):
    """trtspec's model behind Triton's HTTP port."""

    def __init__(self, url: str, model: str, streams: Streams) -> None:
        super().__init__(url, model, streams, MAX_TOP_LOG_PROBS)
        self._model = URL(url) / "v2/models" / model

    async def probe(self) -> None:
        """Finds out whether the server reports log-probabilities; raises `UnavailableError` if it reports no
        tokens."""
        try:
            model = await self._streams.get(self._model)
        except AskError as error:
            raise ServerError(self.name, error.problem) from error
        inputs = {tensor["name"] for tensor in (model or {}).get("inputs", ())}
        if missing := [name for name in _NEEDED if name not in inputs]:
            problem = f"has no input {missing[0]}, so its answers cannot be compared token by token"
            raise UnavailableError(self.name, problem, "build the model repository with this trtspec")
        try:
            answer = await self.ask(VerifyRequest(PROBED, 1, top_log_probs=1, ignores_end=True))
            has_rows = bool(answer.rows)
        except ServerError as error:
            if "log_probs" not in error.problem:
                raise
            has_rows = False
        self.top_log_probs = MAX_TOP_LOG_PROBS if has_rows else 0

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        tokens: list[int] = []
        rows: list[Row] = []
        text, last = "", dict[str, Any]()
        asked = self._events(self._model / "generate_stream", self._body(question))
        with self._understood():
            async with aclosing(asked) as events:
                async for said in events:
                    text += said.get("text_output", "")
                    new = _many(said.get("output_ids"))
                    tokens += new
                    rows += _rows(said, len(new))
                    last = said
        if "finish_reason" not in last:
            raise ServerError(self.name, "the stream ended before the answer")
        return VerifyAnswer(
            (*tokens, *((END,) if last["finish_reason"] == "stop" else ())),
            text,
            tuple(rows),
            last.get("num_input_tokens"),
            last.get("total_draft_tokens"),
            last.get("total_accepted_draft_tokens"),
        )

    def _body(self, question: VerifyRequest) -> dict[str, Any]:
        sampling, bias = question.sampling, question.bias
        prompt = "text_input" if isinstance(question.prompt, str) else "input_ids"
        values = {
            prompt: question.prompt,
            "max_tokens": question.max_tokens,
            "num_draft_tokens": question.num_draft_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "end_id": NO_END if question.ignores_end else None,
            "embedding_bias_ids": list(bias) or None,
            "embedding_bias_weights": list(bias.values()) or None,
            "top_k": sampling.top_k,
            "stop_words": list(question.stop) or None,
            "guided_decoding_guide_type": GuideType.JSON_SCHEMA.value if question.json_schema else None,
            "guided_decoding_guide": question.json_schema or None,
            "return_log_probs": question.top_log_probs > 0 or None,
            "top_log_probs": question.top_log_probs or None,
        }
        given = {name: value for name, value in values.items() if value is not None}
        return given | dict.fromkeys(_WANTED, True)


def _many(value: Any) -> list[Any]:
    """Returns a tensor's values; Triton writes a tensor of one value without brackets."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _rows(said: dict[str, Any], count: int) -> Sequence[Row]:
    tokens, values = _many(said.get("output_top_ids")), _many(said.get("output_top_log_probs"))
    if not tokens:
        return ()
    width = len(tokens) // count
    pairs = list(zip(tokens, values, strict=True))
    return [dict(pairs[first : first + width]) for first in range(0, len(pairs), width)]


class OpenAiSide(_ServerSide):
    """A model of `owner` behind OpenAI's API.

    The log-probabilities of vLLM and trtspec name tokens by ids. SGLang and trtllm-serve report no
    log-probabilities by id. trtllm-serve also reports no text where it reports ids.
    """

    def __init__(self, found: FoundServer, streams: Streams, end_ids: Collection[int]) -> None:
        url, model = found.endpoint.url, found.endpoint.model
        self._is_ours, self._telling = found.owner == TRTSPEC, _TELLING.get(found.owner)
        super().__init__(url, model, streams, 0 if self._telling else _MOST_TOP, found.longest)
        self._model, self._url, self._end_ids = model, URL(url), end_ids
        self._fewest_likeliest = 1

    async def probe(self) -> None:
        """Finds out whether the server reports log-probabilities; raises `UnavailableError` if it reports no
        tokens.

        An engine that knows no likeliest tokens still names those of the text, with their log-probabilities.
        """
        asked = VerifyRequest(PROBED, 1, top_log_probs=1, ignores_end=True)
        try:
            answer = await self.ask(asked)
        except ServerError as first:
            self._fewest_likeliest = 0
            try:
                answer = await self.ask(replace(asked, top_log_probs=0))
            except ServerError:
                problem = f"does not report its tokens, so answers cannot be compared: {first}"
                raise UnavailableError(self.name, problem) from first
        if not answer.rows:
            self.top_log_probs = 0

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        if question.num_draft_tokens and not self._is_ours:
            problem = "takes K at its start only, not in a request"
            raise ServerError(self.name, problem, "leave --num-draft-tokens out")
        tokens: list[int] = []
        rows: list[Row] = []
        text, reason, usage = "", "", dict[str, Any]()
        counts = DraftCounts(0, 0, 0, ()) if self._is_ours else None
        asked = self._events(self._url / "completions", self._body(question))
        with self._understood():
            async with aclosing(asked) as events:
                async for said in events:
                    for choice in said.get("choices") or ():
                        text += choice.get("text") or ""
                        tokens += choice.get("token_ids") or ()
                        reason = choice.get("finish_reason") or reason
                        if said_of := choice.get("logprobs"):
                            tokens += map(_token_id, said_of["tokens"])
                            for row in said_of.get("top_logprobs") or ():
                                rows.append({_token_id(name): value for name, value in row.items()})
                    usage = said.get("usage") or usage
                    counts = counts_of(said) or counts
        if not reason:
            raise ServerError(self.name, "the stream ended without a finish_reason")
        if not tokens and text:
            raise ServerError(self.name, "the answer has text and no token ids")
        ended = reason == "stop"
        if ended and tokens and tokens[-1] in self._end_ids:  # vLLM also reports the end token.
            tokens, rows = tokens[:-1], rows[: len(tokens) - 1]
        return VerifyAnswer(
            (*tokens, *((END,) if ended else ())),
            text,
            tuple(rows) if question.top_log_probs else (),
            usage.get("prompt_tokens"),
            counts.drafted if counts else None,
            counts.accepted if counts else None,
        )

    async def chat(self, body: Mapping[str, Any], num_draft_tokens: int | None) -> ChatAnswer:
        own = {"num_draft_tokens": num_draft_tokens} if self._is_ours and num_draft_tokens is not None else {}
        text, reasoning, calls = "", "", dict[int, list[str]]()
        asked = {"model": self._model, "temperature": 0.0, "stream": True, **own, **body}
        reason = ""
        with self._understood():
            async with aclosing(self._events(self._url / "chat/completions", asked)) as events:
                async for said in events:
                    for choice in said.get("choices") or ():
                        delta = choice.get("delta") or {}
                        reason = choice.get("finish_reason") or reason
                        text += delta.get("content") or ""
                        reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
                        for call in delta.get("tool_calls") or ():
                            known = calls.setdefault(call.get("index") or 0, ["", ""])
                            function = call.get("function") or {}
                            known[0] += function.get("name") or ""
                            known[1] += function.get("arguments") or ""
        made = tuple((name, arguments) for name, arguments in calls.values())
        return ChatAnswer(text, reasoning, made, is_cut=reason == "length")

    def _body(self, question: VerifyRequest) -> dict[str, Any]:
        sampling = question.sampling
        top = min(max(question.top_log_probs, self._fewest_likeliest), _MOST_TOP)
        values: dict[str, Any] = {
            "model": self._model,
            "prompt": question.prompt,
            "max_tokens": question.max_tokens,
            "temperature": sampling.temperature or 0.0,
            "seed": sampling.seed,
            "num_draft_tokens": question.num_draft_tokens if self._is_ours else None,
            **(self._telling or {"logprobs": top, "return_tokens_as_token_ids": True}),
            "logit_bias": {str(token): bias for token, bias in question.bias.items()} or None,
            "top_k": sampling.top_k,
            "stop": list(question.stop) or None,
            "response_format": _json_format(question.json_schema) if question.json_schema else None,
            "ignore_eos": True if question.ignores_end else None,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {name: value for name, value in values.items() if value is not None}


def _json_format(schema: str) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}}


def _token_id(name: str) -> int:
    if not name.startswith(_NAME):
        raise ValueError(f"a token is named {name!r}, and not by its id")
    return int(name.removeprefix(_NAME))


_TIMEOUT_S = 300.0


def check_build(build: Path, model_name: str) -> dict[str, str]:
    """Returns the parameters of a build's model; raises `UnavailableError` if the build cannot run here."""
    file = build / "model_repository" / model_name / "config.pbtxt"
    if not file.is_file():
        raise UnavailableError(build, "there is no finished build here", "trtspec build RECIPE")
    config = pb.ModelConfig()
    text_format.Parse(file.read_text(encoding="utf-8"), config)
    values = {key: parameter.string_value for key, parameter in config.parameters.items()}
    if values.get("engine_backend") == "bls":
        repair = "serve it with `trtspec deploy`, and verify it there: --url http://127.0.0.1:8000"
        raise UnavailableError(build, "its engines are models of Triton's own (serving.layout: bls)", repair)
    return values


def load_build(build: Path, model_name: str) -> EnginePair:
    """Loads the engines of a build as its model repository says, on the loop that they will use.

    Raises as `check_build` does, and `EngineError` for what cannot be loaded.
    """
    with explained(str(build)):
        return load(check_build(build, model_name), build / "model_repository" / model_name)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns errors of the serving side into `EngineError`, which is shown to people."""
    try:
        yield
    except ServingError as error:
        raise EngineError(name, str(error)) from error


class InProcess:
    """Asks the coordinator of a pair that runs in this process."""

    def __init__(self, name: str, pair: EnginePair, coordinator: Coordinator | None = None) -> None:
        self.name, self._pair = name, pair
        self._coordinator = coordinator or pair.coordinator()
        limits: Limits = pair.target.limits
        self.top_log_probs = limits.max_top_log_probs if limits.returns_log_probs else 0
        self.longest: int | None = limits.max_seq_len
        self.software: str | None = "this trtspec"

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        said = question.prompt
        request = CompletionRequest(
            prompt=said if isinstance(said, str) else None,
            prompt_token_ids=None if isinstance(said, str) else said,
            max_tokens=question.max_tokens,
            num_draft_tokens=question.num_draft_tokens,
            sampling=question.sampling,
            end_id=NO_END if question.ignores_end else None,
            embedding_bias=tuple(question.bias.items()),
            return_log_probs=question.top_log_probs > 0,
            top_log_probs=question.top_log_probs,
            stop=question.stop,
            guide=Guide(GuideType.JSON_SCHEMA, question.json_schema) if question.json_schema else None,
        )
        with explained(self.name):
            delta = await self._coordinator.complete(request)
        completion = delta.completion
        assert completion is not None
        end = (END,) if completion.end_reason is EndReason.END_ID else ()
        return VerifyAnswer(
            (*delta.token_ids, *end),
            delta.text,
            tuple(dict(place.top) for place in delta.log_probs or ()),
            completion.num_input_tokens,
            completion.speculation.num_draft_tokens,
            completion.speculation.num_accepted_draft_tokens,
        )

    async def close(self) -> None:
        self._pair.shutdown()


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server."""

    url: str
    model: str | None
    """The model's name; None for the usual model, or the only one."""
    key: str | None = None


@asynccontextmanager
async def in_this_process(build: Path, model_name: str) -> AsyncIterator[Sides]:
    """Yields the engines of a build, loaded here; raises as `load_build` does."""
    side = InProcess(f"{build}, in this process", load_build(build, model_name))
    try:
        yield Sides(side, side)
    finally:
        await side.close()


@asynccontextmanager
async def on_server(server: ServerAddress, vocabulary: Vocabulary) -> AsyncIterator[Sides]:
    """Yields a server that decodes plainly on request; raises `UnavailableError` for another one."""
    side, decodes_plainly = await deployed(server, vocabulary.end_ids)
    try:
        if not decodes_plainly:
            repair = "name two servers, the first without drafts: trtspec prove OLD NEW"
            raise UnavailableError(side.name, "cannot decode plainly on request", repair)
        yield Sides(side, side)
    finally:
        await side.close()


async def deployed(server: ServerAddress, end_ids: Collection[int]) -> tuple[Side, bool]:
    """Returns the server at an address, and whether it decodes plainly on request.

    Raises `UnavailableError` if no server answers, or if it does not report its tokens.
    """
    found = await find(server.url, server.model, chat=False, timeout_s=_TIMEOUT_S, key=server.key)
    endpoint = found.endpoint
    await endpoint.close()
    streams = Streams(_TIMEOUT_S, server.key)
    side: TritonSide | OpenAiSide
    if endpoint.api == "triton":
        side = TritonSide(endpoint.url, endpoint.model, streams)
    else:
        side = OpenAiSide(found, streams, end_ids)
    side.software = found.software
    try:
        await side.probe()
    except BaseException:
        await streams.close()
        raise
    return side, endpoint.plain_per_request


@dataclass(frozen=True, slots=True)
class BuiltTarget:
    """Facts about a built recipe's target."""

    model_name: str
    model: str
    revision: str | None
    dtype: str
    numbers: str
    """The dtype in which the target computes."""
    longest_draft: int | None
    """The largest K of a request; None if no request can set K: on another vendor's server, and if the engine
    itself drafts.
    """
    build: DeployedBuild
    has_engine_draft: bool = False
    """True if the engine itself drafts."""


def built_target(recipe: Path, output: str | None) -> BuiltTarget:
    """Returns the facts about a recipe's build; raises as `find_build` does."""
    build = find_build(recipe, output)
    loaded = build.loaded
    target = loaded.recipe.models[Role.TARGET]
    model, revision = str(loaded.locations[Role.TARGET]), target.revision
    if launch := build.launch:
        options = dict(zip(launch.arguments, launch.arguments[1:], strict=False))
        dtype = options.get("--dtype", "bfloat16")
        numbers = "fp8" if target.quantization.weights == "fp8" else dtype
        return BuiltTarget(launch.served_model_name, model, revision, dtype, numbers, None, build)
    engine = read_engine(build.folder / "target/engine")
    return BuiltTarget(
        loaded.recipe.serving.triton_name,
        model,
        revision,
        engine.dtype,
        "fp8" if engine.quant_algo else engine.dtype,
        None if engine.has_engine_draft else engine.max_draft_len,
        build,
        has_engine_draft=engine.has_engine_draft,
    )
