"""Commands become recipes that load; each of their flags is in the recipe or said to be lost."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.backends.importing import Imported, recipe_of
from trtspec.backends.sglang import flags as sglang
from trtspec.backends.table import loads, runner_of
from trtspec.backends.tensorrt_llm_pytorch import flags as trtllm_serve
from trtspec.backends.vllm import flags as vllm
from trtspec.base.errors import TrtspecError
from trtspec.recipe.build_options import FIXED, OPTIONS, Flag
from trtspec.recipe.schema import Draft, Recipe

HERE = Path("recipe.yaml")
PAIR = "vllm serve org/big --spec-model org/small --spec-tokens 4"
NUMBERS = ("2", "8", "4096", "70", "0", "1k", "-1", "auto")
WORDS = ("org/model", "float16", "half", "fp8", "awq", "int4", "enable", "disable", "", "[ngram]", "x y")
VALUES = st.sampled_from((*NUMBERS, *WORDS))
MODELS = st.sampled_from(("org/model", "org/EAGLE3-head", "./folder"))
SWITCHES = {
    "vllm": vllm.FLAGS.syntax.switches,
    "sglang": sglang.FLAGS.syntax.switches,
    "trtllm-serve": trtllm_serve.FLAGS.syntax.switches,
    "trtllm-build": frozenset(f"--{name}" for name, kind in OPTIONS.items() if isinstance(kind, Flag)),
}
BEGINNINGS = {
    "vllm": ("vllm serve org/big", [*vllm.FLAGS.sets, *vllm.FLAGS.lost, *vllm.FLAGS.syntax.switches]),
    "sglang": (
        "python -m sglang.launch_server --model org/big",
        [*sglang.FLAGS.sets, *sglang.FLAGS.lost, *sglang.FLAGS.syntax.switches],
    ),
    # A file that is named must be there, and has tests of its own.
    "trtllm-serve": (
        "trtllm-serve org/big",
        [*(flag for flag in trtllm_serve.FLAGS.sets if flag != trtllm_serve._FILE), *trtllm_serve.FLAGS.lost],
    ),
    "trtllm-build": (
        "trtllm-build --checkpoint_dir org/big",
        [*(f"--{name}" for name in (*OPTIONS, *FIXED)), "--speculative_decoding_mode", "--max_draft_len"],
    ),
}
ALGORITHMS = st.sampled_from(("STANDALONE", "NGRAM", "EAGLE3", "NEXTN", "ngram", "draft_tokens_external"))


def recipe(found: Imported) -> Recipe:
    return loads(found.text.encode(), HERE).recipe


def told(found: Imported) -> dict[str, str]:
    return {line.subject: line.fate for line in found.notes}


@st.composite
def commands(draw: st.DrawFn, tool: str) -> tuple[str, list[str]]:
    """A command of a tool with some of its flags, and one that it does not have."""
    begin, flags = BEGINNINGS[tool]
    chosen = draw(st.lists(st.sampled_from([*flags, "--no-such-flag"]), unique=True, max_size=12))
    words = []
    for flag in chosen:
        is_method = flag.endswith(("algorithm", "_mode", "method"))
        values = ALGORITHMS if is_method else MODELS if "model" in flag else VALUES
        words += [flag] if flag in SWITCHES[tool] else [flag, draw(values)]
    return f"{begin} {shlex.join(words)}", chosen


def is_accounted_for(found: Imported, flags: list[str]) -> list[str]:
    """The flags that are neither in a comment of the recipe, nor passed on, nor told."""
    passed = recipe(found).engine.extra_args
    kept = [line.partition("  # ")[2] for line in found.text.splitlines()]
    return [flag for flag in flags if flag not in (*kept, *passed) and flag not in told(found)]


@pytest.mark.parametrize("tool", BEGINNINGS)
def test_every_flag_is_in_the_recipe_or_told(tool: str) -> None:
    @settings(max_examples=60, deadline=None, database=None)
    @given(commands(tool))
    def holds(case: tuple[str, list[str]]) -> None:
        command, flags = case
        found = recipe_of(command, HERE)
        assert recipe(found)
        assert is_accounted_for(found, flags) == [], (command, found)

    holds()


@pytest.mark.parametrize(
    ("command", "gpu", "theirs"),
    [
        ("vllm serve org/big", "h100", None),
        ("vllm serve org/big", "a100", "2,048"),
        ("vllm serve org/big", "l40s", "2,048"),
        ("vllm serve org/big", "b200", "16,384"),
        ("vllm serve org/big", "none", None),
        ("vllm serve org/big --max-num-batched-tokens 2048", "a100", None),
        ("sglang serve --model-path org/big", "b200", "16,384"),
        ("sglang serve --model-path org/big", "h200", None),
        ("sglang serve --model-path org/big", "l40s", "4,096"),
        ("sglang serve --model-path org/big", "l4", "4,096"),
        ("trtllm-serve org/big", "l4", None),
    ],
)
def test_another_default_of_the_tokens_of_an_iteration_is_told(
    command: str, gpu: str, theirs: str | None
) -> None:
    fate = told(recipe_of(command, HERE, gpu=gpu)).get("engine.max_num_tokens")
    assert bool(fate) is bool(theirs)
    assert theirs is None or (fate and f"has {theirs}, a recipe 8,192" in fate)


def test_a_secret_is_nowhere_in_what_is_said() -> None:
    command = (
        "HF_TOKEN=hf_secret docker run -e KEY=sk-secret vllm/vllm-openai --api-key sk-secret --model a/b"
    )
    found = recipe_of(command, HERE)
    assert "secret" not in found.text + json.dumps(told(found))
    assert told(found)["--api-key"].startswith("left out: ")


@pytest.mark.parametrize(
    "command",
    [
        "docker run --env=HF_TOKEN=hf_secret --env=NCCL_DEBUG=INFO vllm/vllm-openai --model org/big",
        "docker run --name trtllm-serve -e NCCL_DEBUG=INFO image:1 trtllm-serve org/big",
        "NCCL_DEBUG=INFO vllm serve -O3 org/big",
    ],
)
def test_the_model_and_the_environment_are_the_commands_own(command: str) -> None:
    found = recipe_of(command, HERE)
    assert recipe(found).target.model == "org/big"
    assert recipe(found).engine.environment == {"NCCL_DEBUG": "INFO"}
    assert "secret" not in found.text + json.dumps(told(found))


def test_a_list_of_modules_is_one_value() -> None:
    command = "trtllm-build --checkpoint_dir org/big --lora_target_modules attn_q attn_k --lora_plugin auto"
    build = recipe(recipe_of(command, HERE)).target.build
    assert build == {"lora_target_modules": "attn_q attn_k", "lora_plugin": "auto"}


def test_import_passes_flags_without_a_key_on_to_the_engine_but_no_secrets() -> None:
    found = recipe_of(
        "export NCCL_DEBUG=INFO HF_TOKEN=hf_secret\nVLLM_USE_V1=1 vllm serve a/b --port 1 --reasoning-parser "
        "qwen3 --enable-auto-tool-choice --cudagraph-capture-sizes 1 2 --ssl-keyfile-password secret",
        HERE,
    )
    engine = recipe(found).engine
    words = "--reasoning-parser qwen3 --enable-auto-tool-choice --cudagraph-capture-sizes 1 2"
    assert engine.extra_args == words.split()
    assert engine.environment == {"NCCL_DEBUG": "INFO", "VLLM_USE_V1": "1"}
    assert {"HF_TOKEN", "--port", "--ssl-keyfile-password"} <= told(found).keys()
    assert "secret" not in found.text


@pytest.mark.parametrize(
    ("command", "variable", "override"),
    [
        ("{}=1 vllm serve a/b --max-model-len 8k", vllm.LONGER.variable, "--hf-overrides"),
        ("export {}=True\nvllm serve a/b --max-model-len 8k", vllm.LONGER.variable, "--hf-overrides"),
        ("docker run -e {}=1 vllm/vllm-openai --model a/b --max-model-len 8k", vllm.LONGER.variable, None),
        ("{}=yes vllm serve a/b --max-model-len 8k", vllm.LONGER.variable, ""),
        ("{}=1 vllm serve a/b", vllm.LONGER.variable, ""),
        ("{}=Y sglang serve --model a/b --context-length 8000", sglang.LONGER.variable, None),
        ("{}=yes sglang serve --model a/b --context-length 8000", sglang.LONGER.variable, "--json-model-"),
        ("{}=0 sglang serve --model a/b --context-length 8000", sglang.LONGER.variable, ""),
    ],
)
def test_a_variable_that_allows_longer_texts_is_told(
    command: str, variable: str, override: str | None
) -> None:
    """As the server reads its value, and only beside a length; `""` stands for no note."""
    found = recipe_of(command.format(variable), HERE)
    assert variable in recipe(found).engine.environment
    assert recipe(found).engine.max_seq_len in (None, 8000)
    assert not found.missing
    fate = told(found).get(variable)
    assert (fate is None) is (override == "")
    assert fate is None or ("keeps to the model's own length" in fate and (override or "--") in fate)


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve $MODEL",
        "docker run -v $MODEL:/models vllm/vllm-openai --model /models/big",
    ],
)
def test_a_variable_of_a_shell_is_asked_for(command: str) -> None:
    with pytest.raises(TrtspecError, match=r"MODEL.*is a variable of a shell"):
        recipe_of(command, HERE)


def test_nothing_of_a_command_runs(tmp_path: Path) -> None:
    recipe_of(
        f'vllm serve a/b --seed "$(touch {tmp_path}/x)" --uds `touch {tmp_path}/y` ; touch {tmp_path}/z', HERE
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("llama-server -m model.gguf", "is no command of .*vLLM"),
        ("vllm serve --port 8000", "names no model"),
        ("vllm serve a/b & vllm serve c/d", "is two servers"),
        ("trtllm-serve a/b --config missing.yaml", "cannot be read"),
    ],
)
def test_import_refuses_commands_that_make_no_recipe(command: str, problem: str) -> None:
    with pytest.raises(TrtspecError, match=problem):
        recipe_of(command, HERE)


def test_the_gpu_is_assumed_or_named() -> None:
    assert recipe(recipe_of(PAIR, HERE)).hardware.gpu == "h100"
    found = recipe_of(PAIR, HERE, gpu="h200")
    assert recipe(found).hardware.gpu == "h200"
    assert "hardware.gpu" not in told(found)


def test_a_draft_that_no_command_names() -> None:
    assert recipe(recipe_of("vllm serve org/big", HERE)).speculation.method.kind == "ngram"
    named = recipe(recipe_of("vllm serve org/big", HERE, draft="org/small"))
    assert named.draft == Draft(model="org/small")
    assert named.speculation.method.kind == "draft_model"


def test_another_backend_is_a_move_from_the_commands_own() -> None:
    found = recipe_of(f"{PAIR} --kv-cache-dtype fp8", HERE, backend="tensorrt_llm")
    read = recipe(found)
    assert (read.backend, read.speculation.max_draft_len) == ("tensorrt_llm", 4)
    assert "needs fp8 weights" in told(found)["--kv-cache-dtype"]


@pytest.mark.parametrize(
    ("command", "names", "fate"),
    [
        ("vllm serve org/big", ("org/big", []), None),
        ("vllm serve org/big --served-model-name big org/b c", ("big", ["org/b", "c"]), None),
        ("python -m sglang.launch_server --model org/big --served-model-name big", ("big", []), None),
        ("trtllm-serve org/big", ("org/big", []), None),
        ("docker run -v /data:/models x trtllm-serve /models/big", ("big", []), None),
        (
            "docker run -v /data:/models vllm/vllm-openai --model /models/big",
            ("/data/big", []),
            "clients call the model /data/big, where the command's server has /models/big",
        ),
        (
            "vllm serve org/big --served-model-name a:b",
            ("org/big", []),
            "clients call the model org/big, where the command's server has a:b",
        ),
    ],
)
def test_clients_call_the_model_as_the_commands_server_has_it(
    command: str, names: tuple[str, list[str]], fate: str | None
) -> None:
    found = recipe_of(command, HERE)
    loaded = loads(found.text.encode(), HERE)
    assert (runner_of(loaded.recipe).served_name(loaded), loaded.recipe.serving.aliases) == names
    assert told(found).get("serving.model_name") == fate


def test_the_longest_draft_that_a_recipe_has() -> None:
    found = recipe_of(PAIR.replace("tokens 4", "tokens 70"), HERE)
    assert recipe(found).speculation.max_draft_len is None
    assert told(found)["--spec-tokens"].startswith("left out: ")


def test_a_method_that_gives_way_leaves_its_options_to_the_next_one() -> None:
    config = '{"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_max": 5}'
    found = recipe_of(f"vllm serve org/big -sc '{config}'", HERE, backend="sglang")
    assert recipe(found).speculation.method.kind == "ngram"
    assert recipe(found).speculation.method.options["prompt_lookup_max"] == 5
    assert [note.subject for note in found.missing] == ["-sc method"]
    assert "# -sc method" not in found.text


def test_a_head_goes_with_its_method() -> None:
    command = "vllm serve org/big --spec-method eagle3 --spec-model org/head --spec-tokens 3"
    found = recipe_of(command, HERE, backend="tensorrt_llm")
    read = recipe(found)
    assert (read.speculation.method.kind, read.draft) == ("ngram", None)
    assert "--spec-method" not in found.text
    assert told(found)["--spec-method"].startswith("left out: ")
    assert told(found)["--spec-model"].startswith("left out: ")


def test_heads_of_medusa_are_served_by_the_newest_release_that_has_them() -> None:
    config = '{"method": "medusa", "model": "org/heads", "num_speculative_tokens": 3}'
    found = recipe_of(f"vllm serve org/big --speculative-config '{config}'", HERE)
    read = recipe(found)
    assert (read.speculation.method.kind, read.engine.release) == ("medusa", "0.32.0")
    assert told(found)["engine.release"].startswith("0.32.0, since vllm 0.33.0 does not run medusa: ")


@pytest.mark.parametrize(
    ("flags", "method"), [("--backend tensorrt ", "lookahead"), ("", "ngram")], ids=["engine", "PyTorch"]
)
def test_lookahead_of_an_engine_keeps_its_sizes(tmp_path: Path, flags: str, method: str) -> None:
    file = tmp_path / "extra.yaml"
    sizes = {"max_window_size": 7, "max_ngram_size": 6, "max_verification_set_size": 5}
    file.write_text(json.dumps({"speculative_config": {"decoding_type": "Lookahead", **sizes}}))
    found = recipe_of(f"trtllm-serve org/big {flags}--extra_llm_api_options {file}", HERE)
    read = recipe(found).speculation.method
    assert read.kind == method
    if method == "lookahead":
        assert read.options == {"window_size": 7, "ngram_size": 6, "verification_set_size": 5}
    assert bool(found.missing) == (method != "lookahead")


@pytest.mark.parametrize(
    ("config", "method", "longest"),
    [
        ({"method": "ngram"}, {"prompt_lookup_min": 5, "prompt_lookup_max": 5}, 3),
        ({"method": "ngram_gpu"}, {"prompt_lookup_min": 5, "prompt_lookup_max": 5}, 3),
        (
            {"method": "ngram", "prompt_lookup_max": 4},
            {"prompt_lookup_min": 4, "prompt_lookup_max": 4},
            3,
        ),
        (
            {"method": "ngram", "prompt_lookup_min": 3},
            {"prompt_lookup_min": 3, "prompt_lookup_max": 3},
            3,
        ),
        ({"method": "suffix"}, {}, 24),
        (
            {
                "method": "suffix",
                "suffix_decoding_max_tree_depth": 12,
                "suffix_decoding_max_spec_factor": 2.5,
            },
            {"suffix_decoding_max_tree_depth": 12, "suffix_decoding_max_spec_factor": 2.5},
            12,
        ),
        (
            {"method": "suffix", "suffix_decoding_max_cached_requests": 7, "num_speculative_tokens": 9},
            {"suffix_decoding_max_cached_requests": 7},
            9,
        ),
        (
            {"method": "suffix", "suffix_decoding_min_token_prob": 0},
            {"suffix_decoding_min_token_prob": 0},
            24,
        ),
        (
            {"method": "draft_model", "model": "org/small", "use_heterogeneous_vocab": True},
            {"use_heterogeneous_vocab": True},
            3,
        ),
    ],
)
def test_drafts_of_vllm_are_those_of_the_recipe(
    config: dict[str, object], method: dict[str, object], longest: int
) -> None:
    """Also where the command leaves an option to vLLM (0.32, `vllm/config/speculative.py`)."""
    if config["method"] != "suffix":
        config = {**config, "num_speculative_tokens": 3}
    found = recipe_of(f"vllm serve org/big -sc '{json.dumps(config)}'", HERE)
    speculation = recipe(found).speculation
    assert speculation.method.kind == config["method"]
    assert speculation.method.model_dump(exclude={"kind"}, exclude_unset=True) == method
    assert speculation.max_draft_len == longest
    assert not found.missing


@pytest.mark.parametrize(
    "flag",
    [
        "--max-model-len infk",
        f"--speculative-config '{'[' * 20_000}'",
        """--speculative-config '{"method": "ngram", "num_speculative_tokens": "²"}'""",
        f"--num-speculative-tokens {'9' * 5000} --speculative-model [ngram]",
    ],
)
def test_a_value_that_is_no_number_is_told(flag: str) -> None:
    found = recipe_of(f"vllm serve a/b {flag}", HERE)
    assert any(told.subject.startswith(flag.split()[0]) for told in found.notes)
