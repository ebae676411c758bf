"""Checkpoints with drafts inside, and the lines that build their engines, judged by NVIDIA's own Python.

Its converters of examples/ write the same models, byte for byte where they can; its `trtllm-build` reads our
command lines, loads both checkpoints into its model classes and decides on the sizes of the engine. What
differs is named here, with who is right.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.fakes import trtllm_build
from tests.fakes.eagle_heads import write_eagle_for
from tests.fakes.engine_dir import tiny_model
from tests.fakes.heads import write_head_for
from tests.fakes.vocabularies import byte_level
from tests.sources.checkout import MARKS, ask
from tests.unit.checkpoint.fp8_folders import AUTO_FP8, quantize
from trtspec.cli.app import app
from trtspec.pipeline.build.plan import make_plan

pytestmark = MARKS

SIZES: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
MAX_SEQ_LEN, MAX_BATCH_SIZE = 96, 2
NODES, DEPTH, NON_LEAVES = 63, 4, 15
WINDOW = 15
"""The tokens that lookahead drafts at most, by its usual sizes."""
CLASSES = {"eagle": "EagleForCausalLM", "medusa": "MedusaForCausalLm", "lookahead": "LLaMAForCausalLM"}


@dataclass(frozen=True)
class Case:
    method: str
    family: str = "llama"
    dtype: str = "float16"
    tp_size: int = 1
    fp8: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes the models and their recipe."""
        sizes = {**SIZES, "vocab_size": 264, "head_dim": 8, **self.config}
        model = tiny_model(self.family, dtype=getattr(torch, self.dtype), **sizes)
        model.save_pretrained(folder / "target")
        byte_level([]).save(str(folder / "target/tokenizer.json"))
        if self.fp8:
            quantize(folder / "target", AUTO_FP8)
        if self.method == "eagle":
            write_eagle_for(folder / "target", folder / "head")
        elif self.method == "medusa":
            write_head_for(folder / "target", folder / "head", "medusa")
        precision = "quantization: {weights: fp8, kv_cache: fp8}, " if self.fp8 else ""
        (folder / "recipe.yaml").write_text(
            f"name: inside\ntarget: {{model: ./target, {precision}parallel: {{tensor: {self.tp_size}}}}}\n"
            + ("" if self.method == "lookahead" else "draft: {model: ./head}\n")
            + f"speculation: {{method: {self.method}}}\n"
            f"engine: {{max_batch_size: {MAX_BATCH_SIZE}, max_seq_len: {MAX_SEQ_LEN}}}\n"
            f"hardware: {{gpu: h200, count: {self.tp_size}}}\n"
        )

    def converter(self, folder: Path) -> list[str]:
        """NVIDIA's command for the same checkpoint."""
        own = {
            "eagle": f"--eagle_model_dir {folder}/head --max_non_leaves_per_layer {NON_LEAVES}",
            "medusa": f"--medusa_model_dir {folder}/head --num_medusa_heads 3",
            "lookahead": "",
        }[self.method]
        places = {"lookahead": "models/core/llama"}
        script = f"examples/{places.get(self.method, self.method)}/convert_checkpoint.py"
        shared = f"--model_dir {folder}/target --output_dir {folder}/theirs/target/checkpoint"
        ranks = f"--tp_size {self.tp_size}" + (" --use_parallel_embedding" if self.tp_size > 1 else "")
        return f"{script} {shared} --dtype {self.dtype} {ranks} {own}".split()


def of_each(method: str, **cases: dict[str, Any]) -> dict[str, Case]:
    return {f"{method}_{name}": Case(method, **case) for name, case in cases.items()}


USUAL: dict[str, dict[str, Any]] = {"plain": {}, "scaled": {"config": {"rope_scaling": LLAMA3}}}
FEW_KV_HEADS: dict[str, dict[str, Any]] = {
    "fewer_kv_heads_than_ranks": {"tp_size": 4, "config": {"num_key_value_heads": 2}}
}
UNEVEN: dict[str, dict[str, Any]] = {
    "uneven": {"dtype": "bfloat16", "tp_size": 2, "config": {"vocab_size": 263}}
}
TIED: dict[str, dict[str, Any]] = {"tied": {"config": {"tie_word_embeddings": True}}}
OF_MEDUSA: dict[str, dict[str, Any]] = {
    "two_ranks": {"dtype": "bfloat16", "tp_size": 2},
    "mistral": {"family": "mistral"},
}
CONVERTED = {
    **of_each("eagle", **USUAL, **FEW_KV_HEADS, **UNEVEN, **TIED),
    **of_each("medusa", **USUAL, **FEW_KV_HEADS, **OF_MEDUSA),
    **of_each("lookahead", **USUAL, **UNEVEN),
}
"""What NVIDIA's converter and ours both write."""
FAILING = {
    # Neither the target's `lm_head` nor those of the heads are padded to what its own model has.
    "medusa_uneven": "not the same shape as the original. Updated: (131, 64), original: (132, 64)",
    "medusa_tied": "KeyError: 'lm_head.weight'",
    "medusa_qwen2": "'QWenConfig' object has no attribute 'seq_length'",
}
"""What NVIDIA's converter cannot write, or not as its own model takes it, and the failure of either."""
FP8 = {"medusa_fp8": Case("medusa", fp8=True)}
"""Of this NVIDIA's converter reads another form: the target and its heads in one folder of ModelOpt's."""
OURS_ALONE = FP8 | of_each("medusa", **UNEVEN, **TIED, qwen2={"family": "qwen2"})
CASES = CONVERTED | OURS_ALONE
RECOMPUTED = {"rotary_inv_freq", "embed_positions", "embed_positions_for_gpt_attention"}
"""The tensors of NVIDIA's that its own model does not read: it computes them."""


@dataclass(frozen=True)
class Judged:
    folder: Path
    arguments: list[str]
    """Those of `trtllm-build`."""
    ours: dict[str, Any]
    theirs: dict[str, Any]
    """What the builder made of our checkpoint, and of NVIDIA's; its `error` is there for the converter's."""


def made(folder: Path, case: Case) -> list[str]:
    """Converts a case as trtspec does; returns the arguments of its `trtllm-build`."""
    case.write(folder)
    recipe, output = folder / "recipe.yaml", folder / "ours"
    result = CliRunner().invoke(app, ["convert", str(recipe), "--output", str(output)])
    assert result.exit_code == 0, result.output
    steps = make_plan(recipe, output=output, to_run=True).own_steps
    (build,) = (step for step in steps if step.name == "build target")
    assert build.portable
    return list(build.portable[1:])


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    folders = {name: tmp_path_factory.mktemp(name) for name in CASES}
    arguments = {name: made(folders[name], case) for name, case in CASES.items()}
    failures = ask("ask_converter", [case.converter(folders[name]) for name, case in CASES.items()])
    found: dict[str, list[dict[str, Any]]] = {}
    for side in ("ours", "theirs"):
        commands = [command(folder / side, arguments[name]) for name, folder in folders.items()]
        found[side] = ask("ask_build", commands)
    sides = zip(CASES, found["ours"], found["theirs"], failures, strict=True)
    return {
        name: Judged(folders[name], arguments[name], ours, {"error": failure} if failure else theirs)
        for name, ours, theirs, failure in sides
    }


def command(folder: Path, arguments: list[str]) -> dict[str, Any]:
    return {"folder": str(folder), "arguments": arguments}


@pytest.mark.parametrize("name", CONVERTED)
def test_tensors_are_nvidias_byte_for_byte(judged: dict[str, Judged], name: str) -> None:
    for rank in range(CONVERTED[name].tp_size):
        ours, theirs = (
            load_file(judged[name].folder / side / f"target/checkpoint/rank{rank}.safetensors")
            for side in ("ours", "theirs")
        )
        assert theirs.keys() - RECOMPUTED == ours.keys()
        for key, tensor in ours.items():
            assert (tensor.dtype, tensor.shape) == (theirs[key].dtype, theirs[key].shape), key
            assert torch.equal(tensor.view(torch.uint8), theirs[key].view(torch.uint8)), key


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The keys with other values, each with ours; None stands for a key that is not there, too."""
    found = dict[str, Any]()
    for key in ours.keys() | theirs.keys():
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, dict) and isinstance(other, dict) and key != "rotary_scaling":
            found |= differences(mine, other, f"{before}{key}.")
        elif mine != other:
            found[before + key] = mine
    return found


@pytest.mark.parametrize("name", CONVERTED)
def test_configurations_as_nvidias_class_reads_them(judged: dict[str, Judged], name: str) -> None:
    """NVIDIA's converters of heads keep only the name of a scaled rotation, that of Llama keeps all of it."""
    case, found = CONVERTED[name], judged[name]
    assert "error" not in found.theirs, found.theirs["error"]
    ours, theirs = (read["ranks"][0]["config"] for read in (found.ours, found.theirs))
    expected: dict[str, Any] = {}
    if case.method == "lookahead":
        expected["moe.normalization_mode"] = 1  # Of no experts: the default of the class.
    else:
        # Nothing reads it there: the weights are in the checkpoint twice.
        expected["tie_word_embeddings"] = case.config.get("tie_word_embeddings", False)
        if "rope_scaling" in case.config:
            nets = ("", "eagle_net_config.") if case.method == "eagle" else ("",)
            expected |= {f"{net}rotary_scaling": LLAMA3 for net in nets}
        if case.family == "mistral":
            expected["sliding_window"] = (
                4096  # Longer than any text here, and nothing of this class reads it.
            )
    assert differences(ours, theirs) == expected


@pytest.mark.parametrize("name", CASES)
def test_the_builder_takes_the_line_and_the_checkpoint(judged: dict[str, Judged], name: str) -> None:
    case, found = CASES[name], judged[name]
    assert "error" not in found.ours, found.ours["error"]
    assert not [said for said in found.ours["warnings"] if said.startswith("Provided but not required")]
    overridden = {said for said in found.ours["warnings"] if said.startswith("Overriding ")}
    assert overridden == {"Overriding paged_state to False"}, "which it says of every model but Mamba"
    assert len(found.ours["ranks"]) == case.tp_size
    drafted = WINDOW if case.method == "lookahead" else NODES
    for rank in found.ours["ranks"]:
        inputs = rank["inputs"]
        assert rank["class"] == CLASSES[case.method]
        assert inputs["max_draft_len"] == drafted
        assert inputs["max_seq_len"] == MAX_SEQ_LEN + drafted + (DEPTH if case.method == "eagle" else 0)
        assert inputs["max_num_tokens"] >= MAX_BATCH_SIZE * (drafted + 1)
        assert rank["plugins"]["use_paged_context_fmha"]
        assert rank["plugins"]["remove_input_padding"]
        assert rank["plugins"]["paged_kv_cache"]


@pytest.mark.parametrize(("name", "failure"), FAILING.items())
def test_where_only_ours_is_right(judged: dict[str, Judged], name: str, failure: str) -> None:
    assert failure in judged[name].theirs["error"]


@pytest.mark.parametrize("name", ["eagle_plain", "medusa_two_ranks", "medusa_fp8", "lookahead_plain"])
def test_the_stand_in_for_the_builder_decides_as_it_does(judged: dict[str, Judged], name: str) -> None:
    found = judged[name]
    words = [sys.executable, trtllm_build.__file__, *found.arguments]
    subprocess.run(words, cwd=found.folder / "ours", check=True, stdout=subprocess.DEVNULL)
    build = json.loads((found.folder / "ours/target/engine/config.json").read_text())["build_config"]
    (rank, *_) = found.ours["ranks"]
    sizes = ("max_batch_size", "max_seq_len", "max_beam_width", "max_num_tokens", "max_draft_len")
    assert {key: build[key] for key in sizes} == {key: rank["inputs"][key] for key in sizes}
    assert build["speculative_decoding_mode"] == rank["mode"]
    assert {key: rank["plugins"][key] for key in build["plugin_config"]} == build["plugin_config"]


def test_trtllm_build_refuses_a_missing_or_misshapen_tensor_and_an_unknown_option(
    judged: dict[str, Judged], tmp_path: Path
) -> None:
    found = judged["eagle_plain"]
    for name in ("missing", "misshapen"):
        shutil.copytree(found.folder / "ours", tmp_path / name)
    bias = "eagle_nets.3.drafter.fc.bias"
    for name, value in (("missing", None), ("misshapen", torch.zeros(65, dtype=torch.float16))):
        path = tmp_path / name / "target/checkpoint/rank0.safetensors"
        tensors = load_file(path)
        del tensors[bias]
        save_file(tensors if value is None else {**tensors, bias: value}, path)
    commands = [command(tmp_path / name, found.arguments) for name in ("missing", "misshapen")]
    commands.append(command(tmp_path / "missing", [*found.arguments, "--num_eagle_layers", "4"]))
    missing, misshapen, unknown = (result["error"] for result in ask("ask_build", commands))
    assert f"Required but not provided tensors:{{'{bias}'}}" in missing
    assert (
        f"not the same shape as the original. Updated: (65,), original: (64,)' for parameter '{bias}'"
        in misshapen
    )
    assert unknown == "SystemExit: 2"
