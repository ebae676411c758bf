"""A build for TensorRT-LLM, with a stand-in for `trtllm-build` on PATH."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub.utils._http import reset_sessions

from tests.fakes.gpu_machine import H200, GpuMachine
from tests.support.command_line import trtspec
from tests.support.processes import naming
from trtspec.base.errors import StepError
from trtspec.base.progress import no_progress
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.run.runner import run
from trtspec.pipeline.steps.write_repository import vocabulary_path

MANIFEST = "write manifest"
TRTSPEC = Path(sys.executable).with_name("trtspec")


@pytest.fixture
def machine(machine: GpuMachine) -> GpuMachine:
    """NVIDIA's image on a server with one H200."""
    machine.tensorrt_llm()
    return machine


def build(
    recipe: Path, machine: GpuMachine, *more: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = ("build", recipe.name, "--output", "out", *more)
    return trtspec(*command, folder=recipe.parent, environment=machine.environment | variables)


def config(recipe: Path, role: str) -> dict[str, dict[str, object]]:
    content: dict[str, dict[str, object]] = json.loads(
        (recipe.parent / "out" / role / "engine/config.json").read_text()
    )
    return content


def test_nvidias_backend_gets_the_vocabulary_of_a_tokenizer_that_changed(
    recipe: Path, machine: GpuMachine
) -> None:
    recipe.write_text(recipe.read_text() + "serving: {layout: bls}\n")
    assert build(recipe, machine).returncode == 0
    place = recipe.parent / "out" / vocabulary_path("tensorrt_llm")
    before = json.loads(place.read_text())["encoded_vocab"]
    for role in ("target", "draft"):
        file = recipe.parent / role / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        words = tokenizer["model"]["vocab"]
        (a, first), (b, second) = list(words.items())[40:42]
        words |= {a: second, b: first}
        file.write_text(json.dumps(tokenizer))

    result = build(recipe, machine)
    assert result.returncode == 0, result.stderr
    after = json.loads(place.read_text())["encoded_vocab"]
    assert (after[first], after[second]) == (before[second], before[first]) != (before[first], before[second])


def test_both_engines_are_built_by_the_command_that_the_plan_shows(recipe: Path, machine: GpuMachine) -> None:
    result = build(recipe, machine)
    assert result.returncode == 0, result.stderr
    out = recipe.parent / "out"
    assert config(recipe, "target")["build_config"]["speculative_decoding_mode"] == 2
    assert config(recipe, "draft")["build_config"]["speculative_decoding_mode"] == 1
    assert "tensorrt_llm" in (out / "model_repository/speculative_llm/config.pbtxt").read_text()
    assert "Total time of building" in (out / ".trtspec/logs/build-target.log").read_text()
    manifest = json.loads((out / "manifest.json").read_text())
    command = manifest["commands"]["build target"]
    expected = ["trtllm-build", "--checkpoint_dir", "target/checkpoint", "--output_dir", "target/engine"]
    assert command[:5] == expected
    assert manifest["tools"]["tensorrt_llm"] == "1.2.1"
    assert manifest["gpu"] == {"name": "NVIDIA H200", "sm": 90, "driver": "590.44.01"}
    assert str(recipe.parent) not in (out / "manifest.json").read_text()
    assert "nothing to do" in build(recipe, machine).stderr


def test_an_engine_that_comes_out_different_is_in_a_new_manifest(recipe: Path, machine: GpuMachine) -> None:
    build(recipe, machine)
    engine = recipe.parent / "out/draft/engine/rank0.engine"
    engine.unlink()
    result = build(recipe, machine, "--json")
    assert json.loads(result.stdout)["ran"] == ["build draft", "write manifest"]
    manifest = json.loads((recipe.parent / "out/manifest.json").read_text())
    digest = subprocess.check_output(["sha256sum", engine], text=True).split()[0]
    assert manifest["outputs"]["draft/engine/rank0.engine"] == digest


def test_timing_caches_of_one_build_are_loaded_by_the_next(recipe: Path, machine: GpuMachine) -> None:
    build(recipe, machine)
    (recipe.parent / "out/target/engine/rank0.engine").unlink()
    assert build(recipe, machine).returncode == 0
    log = (recipe.parent / "out/.trtspec/logs/build-target.log").read_text()
    assert "Loaded 7 bytes of timing cache" in log
    folder = Path(machine.environment["TRTSPEC_CACHE"], "timing/1.2.1-h200")
    assert {file.name for file in folder.iterdir()} == {
        "64x80-bfloat16-tp1.cache",
        "32x80-float16-tp1.cache",
    }


def test_the_folder_of_an_adapter_is_relative_to_the_recipe(recipe: Path, machine: GpuMachine) -> None:
    text = recipe.read_text()
    lora = "{model: ./target, build: {lora_plugin: auto, lora_dir: adapter}}"
    recipe.write_text(text.replace("{model: ./target}", lora))
    assert "adapter is not a folder" in build(recipe, machine).stderr
    adapter = recipe.with_name("adapter")
    adapter.mkdir()
    steps = json.loads(build(recipe, machine, "--dry-run", "--json").stdout)["steps"]
    (command,) = (step["command"] for step in steps if step["name"] == "build target")
    assert command[command.index("--lora_dir") + 1] == str(adapter)
    result = build(recipe, machine)
    assert result.returncode == 0, result.stderr
    manifest = (recipe.parent / "out/manifest.json").read_text()
    words = json.loads(manifest)["commands"]["build target"]
    assert words[words.index("--lora_dir") + 1] == "adapter"
    assert str(recipe.parent) not in manifest


def test_an_adapter_that_was_trained_again_is_built_again(recipe: Path, machine: GpuMachine) -> None:
    lora = "{model: ./target, build: {lora_plugin: auto, lora_dir: adapter}}"
    recipe.write_text(recipe.read_text().replace("{model: ./target}", lora))
    weights = recipe.with_name("adapter") / "adapter_model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"first")
    assert build(recipe, machine).returncode == 0
    assert "nothing to do" in build(recipe, machine).stderr
    # An engine that is there needs no trtllm-build.
    assert json.loads(build(recipe, machine, "--json", PATH="/usr/bin:/bin").stdout)["ran"] == [MANIFEST]

    weights.write_bytes(b"again")
    assert json.loads(build(recipe, machine, "--json").stdout)["ran"] == ["build target", MANIFEST]


class TestRefusedBeforeAnythingIsConverted:
    def refused(self, recipe: Path, machine: GpuMachine, **variables: str) -> str:
        result = build(recipe, machine, **variables)
        assert result.returncode == 1
        assert not (recipe.parent / "out/target").exists()
        return result.stderr

    def test_a_missing_trtllm_build_is_refused_before_conversion(
        self, recipe: Path, machine: GpuMachine
    ) -> None:
        said = self.refused(recipe, machine, PATH="/usr/bin:/bin")
        assert "error: trtllm-build: is not on PATH" in said
        assert "nvcr.io/nvidia/tritonserver:26.06-trtllm-python-py3" in said
        assert "--backend torch" in said

    def test_another_release_of_trtllm_build_is_refused_before_conversion(
        self, recipe: Path, machine: GpuMachine
    ) -> None:
        recipe.write_text(recipe.read_text().replace("1.2.1", "1.1.0"))
        said = self.refused(recipe, machine)
        assert "is of TensorRT-LLM 1.2.1, but the recipe's release is 1.1.0" in said
        assert "run inside nvcr.io/nvidia/tritonserver:26.02-trtllm-python-py3" in said
        assert "or write release: 1.2.1" in said

    @pytest.mark.parametrize(
        ("gpu", "problem", "repair"),
        [
            ("NVIDIA L40S, 8.9, 590, Default, Disabled, 46068, 46000", "has SM 89", "change hardware.gpu"),
            (H200.replace("Default", "Exclusive_Process"), "compute mode Exclusive_Process", "-c DEFAULT"),
            (H200.replace("Disabled", "Enabled"), "is divided (MIG)", "nvidia-smi -i 0 -mig 0"),
        ],
    )
    def test_an_unusable_gpu_is_refused_before_conversion(
        self, recipe: Path, machine: GpuMachine, gpu: str, problem: str, repair: str
    ) -> None:
        machine.gpus(gpu)
        said = self.refused(recipe, machine)
        assert problem in said
        assert repair in said

    def test_no_gpu(self, recipe: Path, machine: GpuMachine) -> None:
        machine.gpus()
        assert "GPU: no GPU is visible here; the recipe is for NVIDIA H200" in self.refused(recipe, machine)
        machine.gpus(H200)
        assert "no GPU is visible here" in self.refused(recipe, machine, CUDA_VISIBLE_DEVICES="")


class TestRefusedBeforeAnythingIsDownloaded:
    """The Hub is not asked: nothing listens there."""

    @pytest.fixture(autouse=True)
    def hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        reset_sessions()  # One that an offline test has made would stay offline.

    def refused(self, recipe: Path, machine: GpuMachine, *more: str, **variables: str) -> str:
        text = recipe.read_text().replace("model: ./", "model: nobody/")
        assert "nobody/" in text
        recipe.write_text(text)
        result = build(recipe, machine, *more, **variables)
        assert result.returncode == 1
        return result.stderr

    def test_a_missing_trtllm_build_is_refused_before_the_download(
        self, recipe: Path, machine: GpuMachine
    ) -> None:
        assert "trtllm-build: is not on PATH" in self.refused(recipe, machine, PATH="/usr/bin:/bin")

    def test_a_gpu_other_than_the_recipes_is_refused_before_the_download(
        self, recipe: Path, machine: GpuMachine
    ) -> None:
        machine.gpus("NVIDIA L40S, 8.9, 590, Default, Disabled, 46068, 46000")
        assert "has SM 89, but the recipe's h200 has SM 90" in self.refused(recipe, machine)

    def test_a_missing_docker_is_refused_before_the_download(self, recipe: Path, machine: GpuMachine) -> None:
        said = self.refused(recipe, machine, "--container", PATH=str(machine.folder / "bin"))
        assert "docker: is not on PATH" in said

    def test_a_build_by_torch_or_with_a_store_needs_no_gpu_before_the_download(
        self, recipe: Path, machine: GpuMachine
    ) -> None:
        machine.gpus()
        for more in (("--backend", "torch"), ("--store", str(recipe.parent / "store"))):
            assert "the Hub cannot be reached" in self.refused(recipe, machine, *more)


class TestFailures:
    def test_options_of_another_release(self, recipe: Path, machine: GpuMachine) -> None:
        """The package says 1.2.1 and the command does not know its options."""
        machine.command(
            "trtllm-build", "echo 'error: unrecognized arguments: --reduce_fusion enable'; exit 2"
        )
        result = build(recipe, machine)
        assert result.returncode == 1
        assert "error: trtllm-build: failed with status 2: it does not know --reduce_fusion" in result.stderr
        assert "out/.trtspec/logs/build-target.log" in result.stderr

    def test_a_failed_engine_build_is_explained_by_the_full_gpu_memory(
        self, recipe: Path, machine: GpuMachine
    ) -> None:
        result = build(recipe, machine, FAKE_FAILURE="gpu memory")
        assert result.returncode == 1
        assert "failed with status 1: the GPU has too little free memory" in result.stderr
        assert "hint: end what else uses the GPU (nvidia-smi)" in result.stderr
        assert "AssertionError: Engine building failed" in result.stderr  # of the last lines
        assert not (recipe.parent / "out/target/engine").exists()

    def test_a_killed_engine_build_is_explained_by_the_full_host_memory(
        self, recipe: Path, machine: GpuMachine
    ) -> None:
        result = build(recipe, machine, FAKE_FAILURE="host memory")
        assert result.returncode == 1
        assert "was killed by SIGKILL: the system kills processes when its memory is full" in result.stderr
        assert "workers: 1" in result.stderr

    def test_an_engine_of_another_release_is_not_kept(self, recipe: Path, machine: GpuMachine) -> None:
        result = build(recipe, machine, FAKE_RELEASE="1.1.0")
        assert result.returncode == 1
        assert "was built by TensorRT-LLM 1.1.0, but the recipe's release is 1.2.1" in result.stderr
        assert not (recipe.parent / "out/target/engine").exists()

    def test_an_engine_that_would_not_load_is_not_kept(self, recipe: Path, machine: GpuMachine) -> None:
        result = build(recipe, machine, FAKE_FAILURE="no paged context")
        assert result.returncode == 1
        assert "built without use_paged_context_fmha" in result.stderr
        assert not (recipe.parent / "out/target/engine").exists()


class TestTwoRanks:
    """The engine alone: how several ranks are served is no matter of its build."""

    @pytest.fixture
    def engine(self, recipe: Path, machine: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> Path:
        text = recipe.read_text().replace("gpu: h200", "gpu: h200, count: 2")
        recipe.write_text(text.replace("model: ./target", "model: ./target, parallel: {tensor: 2}"))
        machine.gpus(H200, H200)
        for name, value in machine.environment.items():
            monkeypatch.setenv(name, value)
        return recipe.parent / "out/target/engine"

    def build(self, engine: Path) -> None:
        plan = make_plan(engine.parents[2] / "pair.yaml", output=engine.parents[1], to_run=True)
        wanted = ("convert target", "build target")
        run([step for step in plan.steps if step.name in wanted], plan.output, plan.digests, no_progress)

    def test_every_rank_has_a_worker(self, engine: Path) -> None:
        self.build(engine)
        assert sorted(file.name for file in engine.glob("*.engine")) == ["rank0.engine", "rank1.engine"]
        content = json.loads((engine / "config.json").read_text())
        assert content["build_config"]["plugin_config"]["reduce_fusion"] is True
        assert content["pretrained_config"]["mapping"]["tp_size"] == 2

    def test_one_that_fails_after_another_leaves_nothing(
        self, engine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_FAILURE", "middle")
        with pytest.raises(StepError, match="failed with status 1: RuntimeError: Failed to set weight"):
            self.build(engine)
        assert [path.name for path in engine.parent.iterdir()] == ["checkpoint"]


class TestSideBySide:
    @pytest.fixture
    def machine(self, machine: GpuMachine) -> GpuMachine:
        machine.gpus(H200, H200)
        return machine

    def test_each_engine_has_a_gpu_of_its_own(self, recipe: Path, machine: GpuMachine) -> None:
        calls = recipe.parent / "calls.txt"
        result = build(recipe, machine, FAKE_CALLS=str(calls))
        assert result.returncode == 0, result.stderr
        lines = sorted(line.split() for line in calls.read_text().splitlines())
        assert sorted(line[2] for line in lines) == ["GPU-00", "GPU-00", "GPU-11", "GPU-11"]
        assert "build target and build draft ..." in result.stderr
        assert "nothing to do" in build(recipe, machine).stderr

    def test_one_that_fails_ends_the_other(self, recipe: Path, machine: GpuMachine) -> None:
        machine.command("trtllm-build", 'case "$*" in *external*) exit 7;; *) exec sleep 600;; esac')
        start = time.monotonic()
        result = build(recipe, machine)
        assert "failed with status 7" in result.stderr
        assert time.monotonic() - start < 300
        assert list((recipe.parent / "out").glob("*/*engine*")) == []


@pytest.mark.parametrize("gpus", [1, 2])
def test_ctrl_c_ends_the_builders_and_leaves_nothing_half_made(
    recipe: Path, machine: GpuMachine, gpus: int
) -> None:
    machine.gpus(*[H200] * gpus)
    hanging = recipe.parent / "hanging"
    environment = machine.environment | {"FAKE_FAILURE": "hang", "FAKE_HANGING": str(hanging)}
    process = subprocess.Popen(
        [str(TRTSPEC), "build", recipe.name, "--output", "out"],
        cwd=recipe.parent,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 240
    while not hanging.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130
    out = recipe.parent / "out"
    assert [path.name for path in (out / "target").iterdir()] == ["checkpoint"]
    assert naming(out) == []
    assert list(Path(environment["TRTSPEC_CACHE"]).rglob("*.cache*")) == []
    assert build(recipe, machine).returncode == 0


def test_a_store_knows_the_tensorrt_that_built(recipe: Path, machine: GpuMachine) -> None:
    """One that pip installed may be newer than the image's, and an engine loads in no other."""
    store = recipe.parent / "store"
    machine.remove("tensorrt")
    machine.install("tensorrt", "10.14.2.5.post1")
    assert build(recipe, machine, "--store", str(store)).returncode == 0
    assert {folder.name for folder in (store / "entries").iterdir()} == {
        "sm90-tensorrt10.14.2.5-tensorrt_llm1.2.1"
    }
    machine.remove("tensorrt")
    machine.install("tensorrt", "10.14.1.48")
    shown = build(recipe, machine, "--store", str(store), "--output", "elsewhere", "--dry-run")
    assert "build target" in shown.stdout
    assert "pull target" not in shown.stdout
