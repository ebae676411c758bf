"""Command lines as text: bash itself says what their words are, argparse what their flags and values."""

from __future__ import annotations

import argparse
import shutil
import subprocess

import pytest

from trtspec.base.errors import TrtspecError
from trtspec.recipe.migration.command import Option, Syntax, options, split

TEXTS = (
    "vllm serve a --x 1",
    'vllm serve a \\\n  --x \'{"k": 1, "l": "m n"}\' \\\n  -tp 2',
    "A=1 vllm serve 'a b' \"c d\" e\\ f",
    "one --x=1  # don't\ntwo; three && four",
    "server --x 1 > /dev/null 2>&1 &",
    "server --x a b &> /dev/null",
    "server --x a b &>> /dev/null --y",
    "a --model [ngram] --y *",
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash says what the words are")
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_those_of_a_shell(text: str) -> None:
    """Each command is made a function's arguments, with `set -f` against patterns, and no program runs."""
    commands = split(text)
    names = {words[0] for words in commands if "=" not in words[0]} | {"vllm"}
    functions = "".join(
        f'{name}() {{ printf "%s\\0" {name} "$@" >&3; printf "\\1\\0" >&3; }}; ' for name in names
    )
    script = f"set -f; exec 3>&1; {functions}{text}"
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    wanted = [line.split("\0")[:-1] for line in told.removesuffix("\1\0").split("\1\0")]
    assert [[word for word in words if word != "A=1"] for words in commands] == wanted


@pytest.mark.parametrize("pipe", ["|", "|&", "||", ";", "&"])
def test_a_pipe_of_any_kind_ends_a_command(pipe: str) -> None:
    assert split(f"vllm serve a {pipe} tee log") == [["vllm", "serve", "a"], ["tee", "log"]]


@pytest.mark.parametrize("text", ["vllm serve 'a", 'vllm "', "vllm \\"])
def test_a_command_that_no_shell_can_parse_is_refused(text: str) -> None:
    with pytest.raises(TrtspecError, match="is no command line"):
        split(text)


def test_flags_and_values_are_those_of_argparse() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tensor-size", "-tp", type=int)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--offset", type=int)
    syntax = Syntax({"-tp": "--tensor-size"}, frozenset(("--eager",)), frozenset(("--names",)))
    words = ["--eager", "the-model", "-tp", "2", "--names", "a", "b", "--offset", "-1"]
    wanted = parser.parse_args(words)
    read = list(options(words, syntax))
    assert [item for item in read if isinstance(item, str)] == [wanted.model]
    assert [item for item in read if isinstance(item, Option)] == [
        Option("--eager", "--eager"),
        Option("-tp", "--tensor-size", str(wanted.tensor_size)),
        Option("--names", "--names", " ".join(wanted.names)),
        Option("--offset", "--offset", str(wanted.offset)),
    ]


def test_a_key_behind_a_dot_stays_as_it_is() -> None:
    syntax = Syntax({"-sc": "--speculative-config"}, folds=True)
    words = ["--speculative_config.prompt_lookup_max=4", "-sc.method", "ngram"]
    assert [item.name for item in options(words, syntax) if isinstance(item, Option)] == [
        "--speculative-config.prompt_lookup_max",
        "--speculative-config.method",
    ]
