"""Opens both sides of a verification: engines in this process, a server, or two."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from trtspec.base.errors import EngineError, UnavailableError
from trtspec.client.finding import find
from trtspec.client.http import Streams
from trtspec.measure.verify.prompts import Vocabulary
from trtspec.measure.verify.server_subjects import OpenAiSubject, TritonSubject
from trtspec.measure.verify.subject import END, Sides, Subject, SubjectAnswer, SubjectRequest
from trtspec.serving.completion import NO_END, CompletionRequest, EndReason
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import ServingError
from trtspec.serving.executor import Limits
from trtspec.serving.triton.engines import EnginePair, load

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
    with told(str(build)):
        return load(check_build(build, model_name), build / "model_repository" / model_name)


@contextmanager
def told(name: str) -> Iterator[None]:
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

    async def ask(self, question: SubjectRequest) -> SubjectAnswer:
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
        )
        with told(self.name):
            delta = await self._coordinator.complete(request)
        completion = delta.completion
        assert completion is not None
        end = (END,) if completion.end_reason is EndReason.END_ID else ()
        return SubjectAnswer(
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
    subject = InProcess(f"{build}, in this process", load_build(build, model_name))
    try:
        yield Sides(subject, subject)
    finally:
        await subject.close()


@asynccontextmanager
async def on_servers(
    server: ServerAddress, baseline: ServerAddress | None, vocabulary: Vocabulary
) -> AsyncIterator[Sides]:
    """Yields a server, and with it one without drafts if it cannot decode plainly on request.

    Raises `UnavailableError` if no server answers, or if none can decode plainly.
    """
    async with AsyncExitStack() as stack:

        async def reach(address: ServerAddress) -> tuple[Subject, bool]:
            subject, decodes_plainly = await deployed(address, vocabulary.end_ids)
            stack.push_async_callback(subject.close)
            return subject, decodes_plainly

        speculative, decodes_plainly = await reach(server)
        if baseline is not None:
            plain, is_told = await reach(baseline)
            yield Sides(plain, speculative, 0 if is_told else None)
        elif decodes_plainly:
            yield Sides(speculative, speculative)
        else:
            repair = "name a server of the same model without drafts: --baseline URL"
            raise UnavailableError(speculative.name, "cannot decode plainly on request", repair)


async def deployed(server: ServerAddress, end_ids: Collection[int]) -> tuple[Subject, bool]:
    """Returns the server at an address, and whether it decodes plainly on request.

    Raises `UnavailableError` if no server answers, or if it does not report its tokens.
    """
    found = await find(server.url, server.model, chat=False, timeout_s=_TIMEOUT_S, key=server.key)
    endpoint = found.endpoint
    await endpoint.close()
    streams = Streams(_TIMEOUT_S, server.key)
    subject: TritonSubject | OpenAiSubject
    if endpoint.api == "triton":
        subject = TritonSubject(endpoint.url, endpoint.model, streams)
    else:
        subject = OpenAiSubject(endpoint.url, endpoint.model, streams, end_ids, owner=found.owner)
    try:
        await subject.probe()
    except BaseException:
        await streams.close()
        raise
    return subject, endpoint.plain_per_request
