"""A beginning of a flag is that flag, as argparse reads it, in commands and in `engine.extra_args`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from trtspec.backends.importing import Imported, recipe_of
from trtspec.backends.sglang.flags import FLAGS as SGLANG
from trtspec.backends.table import loads
from trtspec.backends.vllm.flags import FLAGS as VLLM
from trtspec.base.errors import RecipeError, TrtspecError
from trtspec.recipe.migration.command import Option, OwnFlags, Syntax, options
from trtspec.recipe.migration.reading import FlagTable
from trtspec.recipe.schema import Recipe

HERE = Path("recipe.yaml")
SPEC = '{"model": "org/small", "num_speculative_tokens": 4}'


def recipe(found: Imported) -> Recipe:
    return loads(found.text.encode(), HERE).recipe


class Strict(argparse.ArgumentParser):
    """Raises its own error of two flags that a beginning may be."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(message)


def parser_of(table: FlagTable) -> argparse.ArgumentParser:
    """A parser of argparse with the flags of today, each with its other names."""
    names: dict[str, list[str]] = {}
    for flag in table.syntax.begun[0]:
        if flag.startswith("--"):
            names.setdefault(table.syntax.aliases.get(flag, flag), []).append(flag)
    parser = Strict(add_help=False)
    for name, flags in names.items():
        parser.add_argument(*sorted({*flags}), dest=name)
    return parser


@pytest.mark.parametrize("table", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_beginnings_are_those_of_argparse(table: FlagTable) -> None:
    parser, syntax = parser_of(table), table.syntax
    flags = [flag for flag in table.sets if flag.startswith("--") and flag in syntax.begun[0]]
    beginnings = {flag[:end] for flag in flags for end in range(4, len(flag) + 1)}
    unique = 0
    for word in sorted(beginnings):
        try:
            wanted = {name for name, value in vars(parser.parse_args([word, "x"])).items() if value}
        except ValueError as error:
            named = str(error).partition("could match ")[2].split(", ")
            # argparse calls two names of one flag ambiguous too.
            assert set(syntax.meant(word)) == {syntax.aliases.get(flag, flag) for flag in named}
            continue
        assert {syntax.name(word)} == wanted, word
        unique += 1
    assert unique > 100


@pytest.mark.parametrize(
    "command",
    [
        f"vllm serve org/big --tensor-parallel 2 --speculative-conf '{SPEC}'",
        f"vllm serve org/big --tensor=2 --speculative_c='{SPEC}'",
        "vllm serve org/big --tensor 2 --spec-model org/small --spec-t 4",
        "vllm serve org/big --tens 2 --speculative.model org/small --speculative.num_speculative_tokens 4",
        "vllm serve org/big --ten 2 --speculative-model org/small --num-spec 4",
        "python -m sglang.launch_server --model-pa org/big --tensor-p 2 --speculative-algo EAGLE3 "
        "--speculative-draft-model-p org/small --speculative-num-st 4",
    ],
)
def test_no_shortened_flag_loses_what_it_says(command: str) -> None:
    read = recipe(recipe_of(command, HERE))
    assert (read.target.model, read.target.parallel.tensor) == ("org/big", 2)
    assert read.draft
    assert (read.draft.model, read.speculation.max_draft_len) == ("org/small", 4)


def test_a_flag_that_others_begin_with_is_itself() -> None:
    words = ["--tokenizer", "org/other", "--enable-prefix", "--seed", "1", "--gpu-mem", "0.8"]
    found = recipe_of(f"vllm serve {' '.join(words[:3])} org/big {' '.join(words[3:])}", HERE)
    assert recipe(found).target.model == "org/big"
    assert recipe(found).engine.extra_args == words


@pytest.mark.parametrize(
    ("command", "candidates"),
    [
        ("vllm serve org/big --max-num 4", ("--max-num-batched-tokens", "--max-num-seqs")),
        ("vllm serve org/big --spec-m org/small", ("--spec-method", "--spec-model")),
        ("vllm serve org/big --quant fp8", ("--quantization", "--quantization-config")),
        (
            "python -m sglang.launch_server --model org/big --speculative-num 4",
            ("--speculative-num-draft-tokens", "--speculative-num-steps"),
        ),
    ],
)
def test_an_ambiguous_beginning_is_refused_with_what_it_may_be(
    command: str, candidates: tuple[str, ...]
) -> None:
    with pytest.raises(TrtspecError, match="may be ") as refused:
        recipe_of(command, HERE)
    assert all(flag in refused.value.problem for flag in candidates)


RECIPE = """
name: pair
target: {{model: org/big}}
hardware: {{gpu: h100, count: {count}}}
speculation: {{method: ngram}}
engine: {{backend: {backend}, extra_args: [{words}]}}
"""


@pytest.mark.parametrize(
    ("backend", "words", "problem"),
    [
        ("vllm", "--tensor-parallel, '2'", "--tensor-parallel-size is not passed on"),
        ("vllm", "'--speculative_conf={}'", "--speculative-config is not passed on"),
        ("vllm", "--max-num, '4'", "--max-num may be --max-num-batched-tokens, "),
        ("sglang", "--context, '64'", "--context may be --context-bucket, --context-length"),
        ("sglang", "--speculative-algo, NGRAM", "--speculative-algorithm is not passed on"),
        ("vllm", "--data-parallel-size, '2'", "--data-parallel-size 2 makes 2 ranks, one GPU each, not 1"),
        ("sglang", "--dp, '2'", "--dp-size 2 makes 2 ranks, one GPU each, not 1"),
    ],
)
def test_a_recipe_passes_no_shortened_flag_of_its_own_keys_on(backend: str, words: str, problem: str) -> None:
    with pytest.raises(RecipeError) as refused:
        loads(RECIPE.format(backend=backend, words=words, count=1).encode(), HERE)
    assert any(problem in finding.problem for finding in refused.value.findings), refused.value.findings


def test_where_the_server_is_installed_its_own_flags_decide() -> None:
    own: OwnFlags = {"--tensor-ranks": ("--tensor-ranks", None), "--tensor-parallel-size": ("-x", None)}
    flags = VLLM.of_parser(own)
    assert flags.syntax.meant("--tensor") == ["--tensor-parallel-size", "--tensor-ranks"]
    assert Syntax().of_parser(own, ()).meant("--tensor") == []


def test_a_parser_without_beginnings_has_none() -> None:
    (option,) = options(["--tensor_parallel", "2"], Syntax(dash="_"))
    assert option == Option("--tensor_parallel", "--tensor_parallel", "2")
    found = recipe_of("trtllm-serve org/big --tp_size 2 --max_batch 4", HERE)
    assert recipe(found).engine.extra_args == ["--max_batch", "4"]


@pytest.mark.parametrize(
    ("command", "count", "words"),
    [
        (
            "vllm serve org/moe -dp 8 --enable-expert-parallel",
            8,
            ["-dp", "8", "--enable-expert-parallel"],
        ),
        ("vllm serve org/moe --data-parallel-si=4 -tp 2", 8, ["--data-parallel-si", "4"]),
        (
            "python -m sglang.launch_server --model org/moe --tp 8 --dp 8 --enable-dp-attention",
            8,
            ["--dp", "8", "--enable-dp-attention"],
        ),
        ("python -m sglang.launch_server --model org/moe --tp 2 --dp-size 4", 8, ["--dp-size", "4"]),
        (
            "python -m sglang.launch_server --model org/moe --tp 8 --attn-dp-size 8",
            8,
            ["--attn-dp-size", "8"],
        ),
    ],
)
def test_ranks_of_data_parallelism_are_passed_on_and_counted(
    command: str, count: int, words: list[str]
) -> None:
    read = recipe(recipe_of(command, HERE))
    assert read.hardware.count == count
    assert read.engine.extra_args == words


def test_the_converter_of_gemma_is_the_beginning_of_a_build() -> None:
    command = (
        "python3 examples/models/core/gemma/convert_checkpoint.py --ckpt-type hf --model-dir org/gemma "
        "--dtype bfloat16 --world-size 2 --output-model-dir ./ckpt --use-int8-weight-only-embedding\n"
        "trtllm-build --checkpoint_dir ckpt --max_batch_size 8 --output_dir engine"
    )
    found = recipe_of(command, HERE)
    read = recipe(found)
    assert (read.backend, read.target.model, read.target.dtype) == ("tensorrt_llm", "org/gemma", "bfloat16")
    assert (read.target.parallel.tensor, read.hardware.count, read.engine.max_batch_size) == (2, 2, 8)
    assert "a word that belongs to no option" not in {note.fate for note in found.notes}
