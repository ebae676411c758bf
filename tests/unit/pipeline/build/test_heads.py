"""A recipe whose draft is a head, from `check` to rounds, on the torch backend.

The heads' folders are as their own tools write them, with random weights; transformers and PyTorch are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.fakes.gpu_machine import H200, GpuMachine
from tests.fakes.heads import write_head_for
from tests.support.command_line import trtspec
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.triton.engines import load

FORMS = {"speculators": "eagle3", "eagle": "eagle", "medusa": "medusa"}
STEPS = [
    "check head", "copy tokenizer", "convert target", "verify target", "build target", "build draft",
    "write repository", "write manifest",
]  # fmt: skip


class Bench:
    """A recipe on a machine without a GPU, or with one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.machine = folder, GpuMachine(folder / "machine")

    def write(
        self,
        method: str,
        engine: str = "backend: torch",
        gpu: str = "none",
        more: str = "",
        head: str = "head",
    ) -> None:
        (self.folder / "recipe.yaml").write_text(
            f"name: head\ntarget: {{model: ./target, dtype: float32}}\ndraft: {{model: ./{head}}}\n"
            f"speculation: {{method: {method}, max_draft_len: 3}}\n{more}"
            f"engine: {{{engine}, max_batch_size: 2, max_seq_len: 96}}\nhardware: {{gpu: {gpu}}}\n"
        )

    def run(self, *words: str, status: int = 0) -> tuple[str, str]:
        result = trtspec(*words, folder=self.folder, environment=self.machine.environment)
        assert result.returncode == status, result.stderr
        return result.stdout, result.stderr

    def ran(self, *words: str) -> list[str]:
        content = json.loads(self.run("build", "recipe.yaml", "--output", "out", "--json", *words)[0])
        found: list[str] = content["ran"]
        return found

    def said(self, num_draft_tokens: int) -> tuple[list[int], int]:
        """Returns the tokens of an answer, and how many were drafted for it."""
        model = self.folder / "out/model_repository/speculative_llm"
        config = text_format.Parse((model / "config.pbtxt").read_text(), pb.ModelConfig())
        parameters = {key: value.string_value for key, value in config.parameters.items()}

        async def main() -> tuple[list[int], int]:
            pair = load(parameters, model)
            try:
                request = CompletionRequest(
                    prompt="one two", max_tokens=24, end_id=NO_END, num_draft_tokens=num_draft_tokens
                )
                delta = await pair.coordinator().complete(request)
                assert delta.completion is not None
                return delta.token_ids, delta.completion.speculation.num_draft_tokens
            finally:
                pair.shutdown()

        return asyncio.run(asyncio.wait_for(main(), 300))


@pytest.fixture
def bench(tmp_path: Path, llama_folder: Callable[..., Path]) -> Bench:
    llama_folder("target", hidden_size=16, intermediate_size=32, num_hidden_layers=4, initializer_range=0.3)
    return Bench(tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_head_is_checked_planned_built_and_decodes(bench: Bench, form: str) -> None:
    write_head_for(bench.folder / "target", bench.folder / "head", form)
    bench.write(FORMS[form])
    assert "the recipe is valid" in bench.run("check", "recipe.yaml")[0]
    assert json.loads(bench.run("plan", "recipe.yaml", "--json")[0])
    assert bench.ran() == STEPS
    assert bench.ran() == []
    manifest = json.loads((bench.folder / "out/manifest.json").read_text())
    assert "config.json" in manifest["models"]["draft"]["files"]
    with_drafts, drafted = bench.said(3)
    assert bench.said(0) == (with_drafts, 0)
    assert drafted > 0


def test_heads_of_medusa_say_to_vllm_what_their_repository_leaves_out(bench: Bench) -> None:
    head = write_head_for(bench.folder / "target", bench.folder / "head", "medusa")
    bench.write("medusa", "backend: vllm, release: 0.32.0")
    assert bench.ran() == ["check head", "copy tokenizer", "write head", "write launch", "write manifest"]
    assert bench.ran() == []
    made = bench.folder / "out/draft/model"
    said = {path.name: json.loads((path / "config.json").read_text()) for path in (head, made)}
    assert said["model"] == {
        **said["head"],
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": 16,
        "vocab_size": 264,
        "medusa_fc_bias": True,
    }
    weights = "medusa_lm_head.safetensors"
    assert (made / weights).read_bytes() == (head / weights).read_bytes()
    launch = json.loads((bench.folder / "out/launch.json").read_text())
    assert launch["models"] == [str(bench.folder / "target"), str(made)]

    made.rename(bench.folder / "whole")
    bench.write("medusa", "backend: vllm, release: 0.32.0", head="whole")
    assert "write head" not in bench.ran()
    launch = json.loads((bench.folder / "out/launch.json").read_text())
    assert launch["models"][1] == str(bench.folder / "whole")


def test_a_store_has_a_head_as_any_other_engine(bench: Bench) -> None:
    write_head_for(bench.folder / "target", bench.folder / "head", "speculators")
    bench.write("eagle3")
    assert "build draft" in bench.ran("--store", "store")
    (bench.folder / "out").rename(bench.folder / "first")
    assert {"pull target", "pull draft"} <= set(bench.ran("--store", "store"))
    made = [bench.folder / name / "draft/engine/config.json" for name in ("first", "out")]
    assert made[0].read_bytes() == made[1].read_bytes()


def test_a_head_of_another_target_is_refused(bench: Bench, llama_folder: Callable[..., Path]) -> None:
    write_head_for(bench.folder / "target", bench.folder / "head", "speculators")
    llama_folder("target", hidden_size=32, num_hidden_layers=4)
    bench.write("eagle3")
    said = bench.run("build", "recipe.yaml", status=1)[1]
    assert (
        "do not fit: hidden size: the head reads states of width 16, but the target's have width 32" in said
    )
    assert not (bench.folder / "build/head/target/engine").exists()


def test_a_target_without_a_tokenizer_is_refused_before_it_is_converted(bench: Bench) -> None:
    write_head_for(bench.folder / "target", bench.folder / "head", "medusa")
    bench.write("medusa")
    (bench.folder / "target/tokenizer.json").unlink()
    assert "has no tokenizer.json" in bench.run("build", "recipe.yaml", status=1)[1]
    assert not (bench.folder / "build/head/target").exists()


@pytest.mark.parametrize(
    ("method", "engine", "more", "said"),
    [
        ("eagle3", "backend: tensorrt_llm", "", "tensorrt_llm does not run eagle3: "),
        ("eagle3", "backend: torch", "serving: {layout: bls}\n", "a head reads its target's states"),
    ],
)
def test_where_heads_do_not_run_is_said_at_once(
    bench: Bench, method: str, engine: str, more: str, said: str
) -> None:
    bench.machine.gpus(H200)
    write_head_for(bench.folder / "target", bench.folder / "head", "speculators")
    bench.write(method, engine, "h200", more)
    assert said in bench.run("plan", "recipe.yaml", status=1)[1]


def test_a_head_has_nothing_of_its_own(bench: Bench) -> None:
    bench.write("eagle3")
    text = (bench.folder / "recipe.yaml").read_text()
    (bench.folder / "recipe.yaml").write_text(text.replace("./head", "./head, device: cpu, dtype: float32"))
    said = bench.run("plan", "recipe.yaml", status=1)[1]
    for key in ("device", "dtype"):
        assert f"draft.{key}: a head runs in its target's engine, as the target does" in said


def test_tune_refuses_a_head_that_reads_its_targets_states(bench: Bench) -> None:
    write_head_for(bench.folder / "target", bench.folder / "head", "speculators")
    (bench.folder / "texts.txt").write_text("one\ntwo\n")
    bench.write("eagle3")
    said = bench.run("tune", "recipe.yaml", "--workload", "texts.txt", status=1)[1]
    assert "speculation.method: a head reads its target's states, so tune cannot measure it alone" in said
