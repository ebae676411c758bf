"""`trtspec doctor`, with the executables of a machine on PATH."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.fakes import infos
from tests.fakes.gpu_machine import H100, H200, GpuMachine
from trtspec.cli.app import app

DOCKER = '{"ServerVersion": "29.0.1", "Runtimes": {"nvidia": {}, "runc": {}}}'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    """NVIDIA's image on a server with one H200, and nothing missing."""
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H200)
    machine.tensorrt_llm()
    machine.docker(DOCKER)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", "TRTSPEC_CONTAINERS"):
        monkeypatch.delenv(name, raising=False)
    # Nothing listens there, which is answered at once.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    return machine


@pytest.fixture
def doctor(
    machine: GpuMachine, model_folder: Callable[..., Path], write_recipe: Callable[..., Path]
) -> Callable[..., dict[str, dict[str, Any]]]:
    """Runs it on a recipe and returns the findings by subject; `ok` is whether the exit status was 0."""

    def run(text: str = "", **sections: str) -> dict[str, dict[str, Any]]:
        for role in ("target", "draft"):
            if not (machine.folder.parent / role).exists():
                model_folder(role, torch_dtype="bfloat16")
        lines = {
            "name": "x",
            "target": "{model: ./target}",
            "draft": "{model: ./draft}",
            "hardware": "{gpu: h200}",
        } | sections
        recipe = write_recipe("\n".join(f"{key}: {value}" for key, value in lines.items()))
        result = invoke(str(recipe), "--json")
        answer = json.loads(result.stdout)
        severities = [finding["severity"] for finding in answer["findings"]]
        assert answer["ok"] == ("error" not in severities) == (result.exit_code == 0)
        return {finding["subject"]: finding for finding in answer["findings"]}

    return run


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def missing(findings: dict[str, dict[str, Any]]) -> list[str]:
    return [subject for subject, finding in findings.items() if finding["severity"] == "error"]


def test_doctor_finds_a_dtype_that_the_models_do_not_allow(
    doctor: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    model_folder("target")
    found = doctor()
    assert missing(found) == ["target.dtype"]
    assert found["target.dtype"]["repair"] == "write bfloat16 or float16"


def test_a_machine_with_everything(doctor: Callable[..., Any]) -> None:
    found = doctor()
    assert missing(found) == []
    assert found["models"]["severity"] == "ok"
    assert found["GPU"]["problem"] == "1 x NVIDIA H200 (SM 90, 140.4 GiB)"
    assert found["driver"]["problem"] == "590.44.01"
    assert found["GPU memory"]["problem"] == "139.6 GiB free"
    assert found["TensorRT-LLM"]["problem"].startswith("1.2.1, ")
    assert found["TensorRT"]["problem"] == "10.14.1.48"
    assert found["docker"]["problem"] == "29.0.1, with GPUs for containers"
    assert found["target"]["problem"] == "./target, on this machine"
    assert {found[name]["severity"] for name in ("GPU", "driver", "TensorRT", "docker", "disk")} == {"ok"}


def test_without_a_recipe_nothing_is_missing(machine: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = invoke()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "note     GPU             none is visible" in lines
    assert not [line for line in lines if line.startswith("MISSING")]
    hub = lines.index("note     Hub             http://127.0.0.1:9: cannot be reached")
    assert "HF_ENDPOINT" in lines[hub + 1]


def test_doctor_takes_less_than_two_seconds(doctor: Callable[..., Any]) -> None:
    doctor()
    start = time.process_time()
    doctor()
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("gpus", "subject", "found", "repair"),
    [
        ([], "GPU", "none is visible", "--gpus all"),
        (
            ["NVIDIA L40S, 8.9, 590.44, Default, Disabled, 46068, 46000"],
            "GPU",
            "1 x NVIDIA L40S (SM 89, 45.0 GiB); the recipe is for NVIDIA H200 (SM 90)",
            "change hardware.gpu",
        ),
        ([H200.replace("Disabled", "Enabled")], "MIG", "GPU 0 is divided", "nvidia-smi -i 0 -mig 0"),
        (
            [H200.replace("Default", "Exclusive_Process")],
            "compute mode",
            "GPU 0 has compute mode Exclusive_Process",
            "nvidia-smi -i 0 -c DEFAULT",
        ),
        (
            [H200.replace("143000", "0")],
            "GPU memory",
            "0 GiB free on GPU 0, but the weights need",
            "nvidia-smi",
        ),
    ],
)
def test_doctor_says_how_to_repair_an_unusable_gpu(
    machine: GpuMachine, doctor: Callable[..., Any], gpus: list[str], subject: str, found: str, repair: str
) -> None:
    machine.gpus(*gpus)
    findings = doctor()
    assert missing(findings) == [subject]
    assert found in findings[subject]["problem"]
    assert repair in findings[subject]["repair"]


def test_too_few_gpus(doctor: Callable[..., Any]) -> None:
    findings = doctor(hardware="{gpu: h200, count: 2}")
    assert missing(findings) == ["GPU"]
    assert "the recipe needs 2" in findings["GPU"]["problem"]


@pytest.mark.parametrize(
    ("gpu", "subject", "found"),
    [
        (H100, "GPU", "the recipe expects NVIDIA H200 (140.4 GiB)"),
        (H200.replace("590.44.01", "550.90.07"), "driver", "CUDA 13.1 of TensorRT-LLM 1.2.1 needs 580"),
        (H200.replace("143000", "100000"), "GPU memory", "97.7 GiB free"),
    ],
)
def test_doctor_only_notes_a_gpu_that_differs_but_may_still_do(
    machine: GpuMachine, doctor: Callable[..., Any], gpu: str, subject: str, found: str
) -> None:
    machine.gpus(gpu)
    findings = doctor()
    assert missing(findings) == []
    assert findings[subject]["severity"] == "note"
    assert found in findings[subject]["problem"]
    assert findings[subject]["repair"]


def test_only_gpus_of_the_recipe_must_be_free(machine: GpuMachine, doctor: Callable[..., Any]) -> None:
    full = H200.replace("143000", "0")
    machine.gpus(H200, H200, full)
    assert doctor()["GPU memory"]["severity"] == "ok"
    findings = doctor(hardware="{gpu: h200, count: 3}")
    assert missing(findings) == []
    assert findings["GPU memory"]["problem"] == "0 GiB free"
    machine.gpus(H200, full, H200)
    findings = doctor(hardware="{gpu: h200, count: 2}")
    assert missing(findings) == ["GPU memory"]
    assert "0 GiB free on GPU 1, but the weights need" in findings["GPU memory"]["problem"]


def test_a_draft_takes_memory_where_its_recipe_puts_it(
    machine: GpuMachine, doctor: Callable[..., Any]
) -> None:
    """The second GPU is full, and would be the draft's."""
    machine.gpus(H200, H200.replace("143000", "0"))
    hardware = "{gpu: h200, count: 2}"
    assert missing(doctor(hardware=hardware)) == ["GPU memory"]
    for device in ("cuda:0", "cpu"):
        found = doctor(hardware=hardware, draft=f"{{model: ./draft, device: '{device}'}}")
        assert missing(found) == []
        assert ("PyTorch" in found) is (device == "cpu")


def test_a_draft_on_the_cpu_needs_pytorch_where_it_is_served(
    doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.pipeline.machine.survey.installed", lambda names: {"trtspec": "1"})
    found = doctor(draft="{model: ./draft, device: cpu}")
    assert missing(found) == []
    assert (found["PyTorch"]["severity"], found["PyTorch"]["problem"]) == (
        "note",
        "none; the draft runs on it",
    )


def test_the_backend_that_the_environment_names(
    doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "PyTorch" not in doctor()
    monkeypatch.setenv("TRTSPEC_BACKEND", "torch")
    assert "PyTorch" in doctor()


@pytest.mark.parametrize("has_numba", [True, False])
def test_a_cpu_without_numba_is_slow(
    doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, has_numba: bool
) -> None:
    versions = {"trtspec": "1", "torch": "2", **({"numba": "0"} if has_numba else {})}
    monkeypatch.setattr(
        "trtspec.pipeline.machine.survey.installed",
        lambda names: {name: version for name, version in versions.items() if name in names},
    )
    found = doctor(draft="{model: ./draft, device: cpu}")
    assert missing(found) == []
    assert ("numba" in found) is not has_numba
    if not has_numba:
        assert (found["numba"]["severity"], found["numba"]["repair"]) == ("note", "pip install numba")


def test_doctor_finds_another_release_of_tensorrt_llm_than_the_recipes(
    doctor: Callable[..., Any], machine: GpuMachine
) -> None:
    machine.docker(DOCKER.replace('"nvidia": {}, ', ""))
    findings = doctor(engine="{release: 1.1.0}")
    assert missing(findings) == ["TensorRT-LLM"]
    assert findings["TensorRT-LLM"]["problem"].endswith("the recipe builds with 1.1.0")
    assert "nvcr.io/nvidia/tritonserver:26.02-trtllm-python-py3" in findings["TensorRT-LLM"]["repair"]
    assert findings["TensorRT-LLM"]["repair"].endswith("or write release: 1.2.1")


def test_no_tensorrt_llm(
    doctor: Callable[..., Any], machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.folder / "bin/trtllm-build").unlink()
    assert missing(doctor()) == []
    assert "trtspec build --container" in doctor()["TensorRT-LLM"]["repair"]
    machine.docker(DOCKER.replace('"nvidia": {}, ', ""))
    findings = doctor()
    assert missing(findings) == ["TensorRT-LLM"]
    assert findings["TensorRT-LLM"]["problem"] == "none; the recipe builds with 1.2.1"
    assert findings["TensorRT-LLM"]["repair"].startswith("docker run --rm -it --gpus all --ipc=host")
    assert " -v $HOME/.cache:/root/.cache " in findings["TensorRT-LLM"]["repair"]


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ("Cannot connect to the Docker daemon", "docker info gave no usable output"),
        ('{"ServerVersion": "", "Runtimes": null}', "failed without a message"),
        ('{"ServerVersion": "29.0.1", "Runtimes": {"runc": {}}}', "29.0.1, and containers get no GPUs here"),
    ],
)
def test_a_docker_that_will_not_do(
    machine: GpuMachine, doctor: Callable[..., Any], info: str, found: str
) -> None:
    machine.docker(info)
    finding = doctor()["docker"]
    assert (finding["severity"], finding["problem"]) == ("note", found)


def test_podman_where_docker_is_not(
    machine: GpuMachine, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker", "trtllm-build"):
        (machine.folder / "bin" / name).unlink()
    machine.podman().info(json.dumps(infos.PODMAN_ON_FEDORA))
    monkeypatch.setenv("FAKE_DOCKER", machine.environment["FAKE_DOCKER"])
    monkeypatch.setenv("TRTSPEC_CONTAINERS", "podman")
    found = doctor()
    podman, inside = found["podman"], found["TensorRT-LLM"]
    assert (podman["severity"], podman["problem"]) == ("note", "5.4.0, and containers get no GPUs here")
    assert "nvidia-ctk cdi generate" in podman["repair"]
    assert "label=disable" in found["SELinux"]["problem"]
    assert inside["severity"] == "error"
    assert inside["repair"].startswith("podman run --rm -it --device nvidia.com/gpu=all")

    monkeypatch.setattr("trtspec.pipeline.containers.engine.find_devices", lambda: frozenset({"all"}))
    found = doctor()
    assert (found["podman"]["severity"], found["TensorRT-LLM"]["severity"]) == ("ok", "note")


def test_neither_docker_nor_podman(
    machine: GpuMachine, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.folder / "bin/docker").unlink()
    monkeypatch.setenv("TRTSPEC_CONTAINERS", "docker")
    assert doctor()["docker"]["problem"].startswith("none; docker or podman is needed only to run")


def test_a_laptop_needs_no_gpu(machine: GpuMachine, doctor: Callable[..., Any]) -> None:
    machine.gpus()
    findings = doctor(hardware="{gpu: none}")
    assert missing(findings) == []
    assert "GPU" not in findings
    assert findings["PyTorch"]["severity"] == "ok"
    assert findings["Triton (wheel)"]["severity"] == "ok"


def test_a_server_of_others_may_be_elsewhere(doctor: Callable[..., Any]) -> None:
    found = doctor(engine="{backend: vllm}")
    assert missing(found) == []
    assert "TensorRT-LLM" not in found
    assert found["GPU"]["severity"] == "ok"
    assert "none beside trtspec" in found["vllm"]["problem"]
    assert "the image vllm/vllm-openai:v0.33.0" in found["vllm"]["repair"]
    assert found["docker"]["severity"] == "ok"


def test_models_that_cannot_be_had(doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/nowhere")
    monkeypatch.setattr(
        "huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}"
    )
    findings = doctor(target="{model: ./nothing}", draft="{model: someone/model}")
    assert missing(findings) == ["target", "draft"]
    assert "./nothing: " in findings["target"]["problem"]
    assert "the Hub cannot be reached" in findings["draft"]["problem"]


def test_doctor_finds_a_full_disk(doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr("trtspec.pipeline.machine.host.shutil.disk_usage", lambda _: usage)
    findings = doctor()
    assert missing(findings) == ["disk"]
    assert "but 10 B are free in" in findings["disk"]["problem"]
