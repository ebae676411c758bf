"""`trtspec generate`: one completion from a running server."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import trtspec
from trtspec.cli.terminal.options import (
    AnswerTimeoutOption,
    ApiKeyEnvOption,
    ApiKeyFileOption,
    JsonOption,
    RunningUrlOption,
    ServedModelOption,
    TemperatureOption,
    WaitOption,
    read_key,
)
from trtspec.cli.terminal.output import out
from trtspec.client.endpoint import ChatMessage, TimedAnswer, unheard

# The largest values that the tensors can hold.
_INT32, _UINT64 = 2**31 - 1, 2**64 - 1

EXAMPLES = (
    "trtspec generate 'def fib('",
    "trtspec generate --max-tokens 200 --temperature 0.7 --seed 1 'class Stack:'",
    "trtspec generate --chat 'Why is the sky blue?'",
    "trtspec generate - < prompt.txt",
    "trtspec generate --num-draft-tokens 0 'def fib('    # the target alone",
    "trtspec generate --url host:8000 'def fib('    # any server: what it speaks is found by asking",
)


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """The options of `trtspec generate`."""

    prompt: Annotated[
        str, typer.Argument(help="The text to continue; - reads it from stdin.", show_default=False)
    ]
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt through the model's chat template, as a question.")
    ] = False
    stream: Annotated[bool, typer.Option(help="Print the text as it comes, or at the end.")] = True
    max_tokens: Annotated[int, typer.Option(min=1, max=_INT32, help="The most tokens to generate.")] = 128
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_INT32,
            help="Draft tokens for each verification; 0 is the target alone.",
            show_default="engine's",
        ),
    ] = None
    temperature: TemperatureOption = None
    top_k: Annotated[
        int | None, typer.Option(min=0, max=_INT32, help="Sample from the K likeliest tokens.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Sample from the likeliest tokens that have this probability together."
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=_UINT64, help="The seed of sampling: the same seed gives the same text."),
    ] = None
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; may be repeated.")] = None
    url: RunningUrlOption = None
    model_name: ServedModelOption = None
    api_key_file: ApiKeyFileOption = None
    api_key_env: ApiKeyEnvOption = None
    wait: WaitOption = 0
    timeout: AnswerTimeoutOption = 600
    json: JsonOption = False


def generate(options: GenerateOptions) -> None:
    """Complete a prompt; acceptance and speed on stderr."""
    key = read_key(options.api_key_file, options.api_key_env)
    client = trtspec.Client(
        options.url, options.model_name, api_key=key, wait_s=options.wait, timeout_s=options.timeout
    )
    is_shown = options.stream and not options.json
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    completion = client.generate(
        [ChatMessage("user", prompt)] if options.chat else prompt,
        max_tokens=options.max_tokens,
        num_draft_tokens=options.num_draft_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        stop=options.stop or (),
        stream=options.stream,
        hear=out.data if is_shown else unheard,
    )
    out.show(ShownCompletion(completion, is_shown), as_json=options.json)


@dataclass(frozen=True, slots=True)
class ShownCompletion:
    """The completion of a prompt."""

    completion: TimedAnswer
    is_streamed: bool
    """True if its text was printed as it came."""

    def tell(self) -> None:
        out.data("\n" if self.is_streamed else f"{self.completion.text}\n")
        out.status(summary(self.completion))

    def as_json(self) -> dict[str, Any]:
        completion, drafts = self.completion, self.completion.drafts
        outputs = completion.tensors or {
            "num_input_tokens": completion.num_input_tokens,
            "num_output_tokens": completion.num_output_tokens,
            "finish_reason": completion.finish_reason,
        }
        counts = {}
        if drafts and not completion.tensors:
            counts = {"total_draft_tokens": drafts.drafted, "total_accepted_draft_tokens": drafts.accepted}
        return {
            "text": completion.text,
            **outputs,
            "first_text_s": completion.first_text_s,
            "seconds": completion.seconds,
            "tokens_per_second": completion.tokens_per_second,
            **counts,
        }


def summary(completion: TimedAnswer) -> str:
    """Returns the speed of the completion, and the acceptance of its drafts."""
    number, drafts = completion.num_output_tokens, completion.drafts
    speed = f"{completion.seconds:.1f} s"
    if number:
        speed = f"{number} tokens, {completion.tokens_per_second:.0f} tokens/s"
    if drafts is None:
        return f"{speed}; this server does not report drafts"
    if not drafts.drafted:
        return f"{speed}, nothing drafted{': ' * bool(drafts.undrafted)}{drafts.undrafted}"
    share = drafts.accepted / drafts.drafted
    return f"{speed}, {drafts.accepted} of {drafts.drafted} draft tokens accepted ({share:.0%})"
