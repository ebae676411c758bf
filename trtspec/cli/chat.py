"""`trtspec chat`: a conversation with a running model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer

import trtspec
from trtspec.base.errors import ServerError
from trtspec.cli.generate import summary
from trtspec.cli.terminal.options import (
    AnswerTimeoutOption,
    ApiKeyEnvOption,
    ApiKeyFileOption,
    RunningUrlOption,
    ServedModelOption,
    TemperatureOption,
    WaitOption,
    read_key,
)
from trtspec.cli.terminal.output import out
from trtspec.client.client import Client
from trtspec.client.endpoint import ChatMessage

EXAMPLES = (
    "trtspec chat",
    "trtspec chat --system 'Answer in one sentence.'",
    "trtspec chat --url host:9000",
)
_COMMANDS = {
    "/help": "shows these commands",
    "/reset": "begins a new conversation; the system prompt stays",
    "/exit": "leaves, as /quit and Ctrl-D do",
}
_LEAVES = ("/exit", "/quit")


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options of `trtspec chat`."""

    url: RunningUrlOption = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 512
    temperature: TemperatureOption = None
    model_name: ServedModelOption = None
    api_key_file: ApiKeyFileOption = None
    api_key_env: ApiKeyEnvOption = None
    wait: WaitOption = 0
    timeout: AnswerTimeoutOption = 600


def chat(options: ChatOptions) -> None:
    """Talk to a running model; acceptance and speed on stderr.

    Each line is a question, and the conversation so far goes with it. Ctrl-C ends an answer. /reset begins a
    new conversation, /help shows all commands, and /exit or Ctrl-D leaves. If stdin is not a terminal, chat
    asks each of its lines.
    """
    key = read_key(options.api_key_file, options.api_key_env)
    client = trtspec.Client(
        options.url, options.model_name, api_key=key, wait_s=options.wait, timeout_s=options.timeout
    )
    opening = [ChatMessage("system", options.system)] if options.system else []
    said = list(opening)
    if sys.stdin.isatty():
        out.status("Ctrl-C ends an answer; /help shows the commands; /exit or Ctrl-D leaves")
    is_answered = False
    for question in _questions():
        if question == "/reset":
            said = list(opening)
            continue
        said.append(ChatMessage("user", question))
        try:
            said.append(ChatMessage("assistant", _answer(client, said, options)))
        except ServerError as error:
            if not is_answered:
                raise
            # What was said before this question stands.
            said.pop()
            out.error(str(error))
            if len(said) > len(opening):
                out.hint("if the conversation is too long, /reset begins a new one")
        is_answered = True


def _questions() -> Iterator[str]:
    """Yields each question, and `/reset`, until the end of input; readline lets the user edit a line."""
    with suppress(ImportError):
        import readline  # noqa: F401
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            if prompt:
                out.status("")
            return
        except KeyboardInterrupt:
            out.status("")
            continue
        if line in _LEAVES:
            return
        if line == "/help":
            for command, effect in _COMMANDS.items():
                out.status(f"{command:7} {effect}")
        elif line:
            yield line


def _answer(client: Client, said: list[ChatMessage], options: ChatOptions) -> str:
    """Prints an answer as it comes, and returns it. Ctrl-C ends it; then it returns the part that came."""
    heard: list[str] = []

    def hear(piece: str) -> None:
        heard.append(piece)
        out.data(piece)

    try:
        answer = client.generate(
            said, max_tokens=options.max_tokens, temperature=options.temperature, hear=hear
        )
    except KeyboardInterrupt:
        out.data("\n")
        out.status("ended")
    else:
        out.data("\n")
        out.status(summary(answer))
    return "".join(heard)
