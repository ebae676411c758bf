"""What only a shell would know is one word, and arrays are the words that the script fills them with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trtspec.backends.importing import Imported, recipe_of
from trtspec.backends.table import loads
from trtspec.base.errors import TrtspecError
from trtspec.recipe.migration.command import split
from trtspec.recipe.migration.script import read_script
from trtspec.recipe.schema import Recipe

HERE = Path("recipe.yaml")
SPEC = (
    """--speculative-config '{"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}'"""
)


def recipe(found: Imported) -> Recipe:
    return loads(found.text.encode(), HERE).recipe


@pytest.mark.parametrize(
    ("count", "flag"),
    [
        ("$(nvidia-smi -L | wc -l)", "--tensor-parallel-size"),
        ('"$(nvidia-smi -L | wc -l)"', "--tensor-parallel-size"),
        ("`nvidia-smi -L | wc -l`", "--tensor-parallel-size"),
        ("$(nvidia-smi -L | grep -c '(UUID'; true)", "-tp"),
        ("$(($(nvidia-smi -L | wc -l) / 2))", "-tp"),
        ("$N", "-tp"),
    ],
)
def test_a_substitution_is_a_word_and_the_draft_stays(count: str, flag: str) -> None:
    found = recipe_of(f"N=$(ls | wc -l)\nvllm serve org/big {flag} {count} {SPEC} | tee log", HERE)
    read = recipe(found)
    assert read.draft
    assert (read.draft.model, read.speculation.max_draft_len) == ("org/small", 4)
    fate = {note.subject: note.fate for note in found.notes}[flag]
    assert "only a shell knows" in fate
    assert "write its value as target.parallel.tensor" in fate


@pytest.mark.parametrize("word", ["$(cat model)", "`cat model`", "--model $(cat model)"])
def test_a_model_that_only_a_shell_knows_is_asked_for(word: str) -> None:
    with pytest.raises(TrtspecError, match=r"cat model.*write|cat model.*does not run here"):
        recipe_of(f"vllm serve {word} {SPEC}", HERE)


def test_a_flag_that_is_passed_on_has_no_substitution() -> None:
    found = recipe_of(
        f"vllm serve org/big --seed `date +%s` --swap-space $(echo 4) --block-size 16 {SPEC}", HERE
    )
    assert recipe(found).engine.extra_args == ["--block-size", "16"]
    assert {"--seed", "--swap-space"} <= {note.subject for note in found.notes}


TEXTS = (
    """serve a "$(x | y; z)" b""",
    """serve "a $(x "b c" | y) d" e""",
    """serve 'no $(x' `x | "y"` "don't # $(x)" # don't $(x""",
    """serve \\$\\(x $((1 + (2))) '"' $(x ')' | y)""",
    """serve "${A:-b}" a#b 'c'"d"$(x)`y`""",
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash says how many words there are")
@pytest.mark.parametrize("text", TEXTS)
def test_bash_has_as_many_words(text: str) -> None:
    """Each substitution prints one word there, so that the words are as many."""
    names = "x() { echo w; }; y() { echo w; }; z() { echo w; }; serve() { printf '%s\\0' serve \"$@\"; }; "
    told = subprocess.run(["bash", "-c", names + text], capture_output=True, text=True, check=True).stdout
    (words,) = split(text)
    assert len(words) == told.count("\0"), (words, told)


@pytest.mark.parametrize("text", ["vllm serve $(x", "A=(--x", 'vllm serve "$(x"'])
def test_an_open_substitution_is_refused(text: str) -> None:
    with pytest.raises(TrtspecError, match="is no command line"):
        recipe_of(text, HERE)


SCRIPT = f"""
MODEL=org/big
SPEC=({SPEC})
declare -a COMMON_ARGS=(
  --max-model-len 4096   # it's enough (for us)
  --dtype "bfloat16"
)
COMMON_ARGS+=(--max-num-seqs 8)
vllm serve "$MODEL" "${{COMMON_ARGS[@]}}" "${{SPEC[@]}}"
"""


def test_arrays_are_the_words_that_fill_them() -> None:
    read = recipe(recipe_of(SCRIPT, HERE))
    assert (read.target.model, read.target.dtype) == ("org/big", "bfloat16")
    assert (read.engine.max_seq_len, read.engine.max_batch_size) == (4096, 8)
    assert read.draft
    assert read.draft.model == "org/small"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash says what the words are")
def test_words_of_arrays_are_those_of_bash() -> None:
    script = 'A=(--a "b c")\nALL=("${A[@]}" --d e)\nserve "${ALL[@]}" f'
    told = subprocess.run(
        ["bash", "-c", "serve() { printf '%s\\0' serve \"$@\"; }\n" + script], capture_output=True, check=True
    )
    assert read_script(script).commands == [told.stdout.decode().split("\0")[:-1]]


@pytest.mark.parametrize(
    "fill",
    [
        "",
        "if true; then\n  A+=(--enforce-eager)\nfi",
        "if true; then\n  A=(--x)\nelse\n  A=(--y)\nfi",
        'A=("${A[@]}" --more)',
    ],
)
def test_an_array_that_is_not_surely_known_is_asked_for(fill: str) -> None:
    begin = "A=(--x)\n" if fill.startswith(("if true; then\n  A+", "A=")) else ""
    with pytest.raises(TrtspecError, match="is an array of a shell"):
        recipe_of(f'{begin}{fill}\nvllm serve org/big "${{A[@]}}"', HERE)


def test_an_inner_shell_knows_what_its_own_lines_say() -> None:
    script = """bash -c 'TP=2; A=(--max-model-len 64); vllm serve org/big -tp ${TP:-1} "${A[@]}"'"""
    read = recipe(recipe_of(script, HERE))
    assert (read.target.parallel.tensor, read.engine.max_seq_len) == (2, 64)
