"""The generated repository, read back by Triton's own message and by a bare Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.repository.spec import AdmissionParameters, RepositorySpec, TensorRtLlm, place
from trtspec.pipeline.repository.writer import config_text, write_repository
from trtspec.pipeline.steps.write_repository import repository_spec
from trtspec.serving.triton.engines import Parameters

ROOT = Path(__file__).parents[4]
CHECKED_IN = ROOT / "model_repository" / "speculative_llm"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_repository(tmp_path / "repository", RepositorySpec())
    return tmp_path / "repository" / "speculative_llm"


def test_triton_reads_the_config() -> None:
    config = text_format.Parse(config_text(RepositorySpec(model_name="pair")), pb.ModelConfig())

    assert (config.name, config.backend, config.max_batch_size) == ("pair", "python", 1)
    assert config.model_transaction_policy.decoupled
    assert [(group.count, group.kind) for group in config.instance_group] == [
        (1, pb.ModelInstanceGroup.KIND_CPU)
    ]
    assert all(tensor.optional for tensor in config.input)
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "engine_backend": "torch",
        "target_engine_dir": "../../target/engine",
        "draft_engine_dir": "../../draft/engine",
        "tokenizer_dir": "../../tokenizer",
    }


def test_engines_of_tensorrt_llm_are_told_of_their_gpus_and_their_image() -> None:
    engines = TensorRtLlm(
        "nvcr.io/image", place(dict.fromkeys(Role, 1), 2), 0.8, {Role.TARGET: False, Role.DRAFT: True}
    )
    config = text_format.Parse(config_text(RepositorySpec(tensorrt_llm=engines)), pb.ModelConfig())

    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "engine_backend": "tensorrt_llm",
        "target_engine_dir": "../../target/engine",
        "draft_engine_dir": "../../draft/engine",
        "tokenizer_dir": "../../tokenizer",
        "image": "nvcr.io/image",
        "kv_cache_free_gpu_mem_fraction": "0.8",
        "target_gpu_device_id": "0",
        "draft_gpu_device_id": "1",
        "target_enable_chunked_context": "false",
        "draft_enable_chunked_context": "true",
    }


def test_a_draft_of_torch_beside_them_is_told_of_its_device() -> None:
    engines = TensorRtLlm("nvcr.io/image", place(dict.fromkeys(Role, 1), 1, ()), 0.8, {Role.TARGET: False})
    text = config_text(RepositorySpec(draft_device="cpu", tensorrt_llm=engines))
    config = text_format.Parse(text, pb.ModelConfig())
    found = {key: value.string_value for key, value in config.parameters.items()}
    assert {key: value for key, value in found.items() if key.startswith("draft_")} == {
        "draft_engine_dir": "../../draft/engine",
        "draft_device": "cpu",
    }
    assert (found["engine_backend"], found["target_gpu_device_id"]) == ("tensorrt_llm", "0")


def test_who_is_served_and_for_how_long() -> None:
    """What is not known is left out."""
    spec = RepositorySpec(admission=AdmissionParameters(16, 256, 300, 600, 5, 120))
    config = text_format.Parse(config_text(spec), pb.ModelConfig())
    found = {key: value.string_value for key, value in config.parameters.items()}

    assert (
        found
        | {
            "max_places": "16",
            "max_queue_size": "256",
            "max_queue_delay_microseconds": "300",
            "default_timeout_microseconds": "600",
            "draft_timeout_microseconds": "5",
            "target_timeout_microseconds": "120",
        }
        == found
    )
    assert "kv_tokens" not in found
    known = replace(spec, admission=AdmissionParameters(16, 256, 300, 600, 5, 120, kv_tokens=4096))
    assert 'key: "kv_tokens"\n  value {\n    string_value: "4096"' in config_text(known)


@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_the_share_of_requests_with_drafts_is_told_where_it_is_not_all(share: float) -> None:
    config = text_format.Parse(config_text(RepositorySpec(share=share)), pb.ModelConfig())
    found = {key: value.string_value for key, value in config.parameters.items()}
    assert ("speculation_share" in found) == (share < 1)
    assert Parameters(found, Path()).share("speculation_share") == share


def test_tensors_are_nvidias() -> None:
    """Names, types and dimensions of `tensorrt_llm_bls` and of the OpenAI front end, both of 25.03.

    But for what NVIDIA's models do not have (`min_p`, `tenant`, `user`, `return_output_ids`, `speculation`,
    `stop_token_ids`, `include_stop_str_in_output`, `skip_special_tokens`, those of the prompt), and for the
    embedding bias, which NVIDIA's `ensemble` has.
    """
    config = text_format.Parse(config_text(RepositorySpec()), pb.ModelConfig())
    tensors = {
        tensor.name: (pb.DataType.Name(tensor.data_type).removeprefix("TYPE_"), list(tensor.dims))
        for tensor in [*config.input, *config.output]
    }
    nvidias = {
        "STRING [1]": "text_input guided_decoding_guide guided_decoding_guide_type tenant user text_output "
        "finish_reason speculation",
        "STRING [-1]": "stop_words bad_words embedding_bias_words",
        "FP32 [-1]": "embedding_bias_weights",
        "INT32 [1]": "max_tokens num_draft_tokens end_id pad_id top_k min_tokens beam_width "
        "num_return_sequences top_log_probs prompt_log_probs sequence_index num_input_tokens "
        "num_output_tokens num_cached_tokens total_accepted_draft_tokens total_draft_tokens num_spec_steps",
        "INT32 [-1]": "input_ids stop_token_ids embedding_bias_ids acceptance_histogram",
        "INT32 [-1, -1]": "output_ids output_top_ids prompt_ids prompt_top_ids",
        "FP32 [1]": "top_p min_p temperature length_penalty repetition_penalty presence_penalty "
        "frequency_penalty acceptance_rate",
        "FP32 [-1, -1]": "output_log_probs output_top_log_probs prompt_token_log_probs prompt_top_log_probs",
        "UINT64 [1]": "seed",
        "BOOL [1]": "stream exclude_input_in_output add_special_tokens use_draft_logits return_log_probs "
        "return_context_logits return_generation_logits return_perf_metrics return_num_input_tokens "
        "return_num_output_tokens return_output_ids include_stop_str_in_output skip_special_tokens",
    }
    expected = {name: kind for kind, names in nvidias.items() for name in names.split()}

    assert {name: f"{datatype} {dims}" for name, (datatype, dims) in tensors.items()} == expected


def test_the_checked_in_repository_is_in_step(tmp_path: Path) -> None:
    """It is what the tiny recipe generates; UPDATE_GOLDEN=1 writes it anew."""
    spec = repository_spec(make_plan(ROOT / "recipes/tiny/recipe.yaml").resolved)
    write_repository(tmp_path / "repository", spec)
    model = tmp_path / "repository" / spec.model_name
    if os.environ.get("UPDATE_GOLDEN"):
        shutil.copyfile(model / "config.pbtxt", CHECKED_IN / "config.pbtxt")
    assert (model / "config.pbtxt").read_bytes() == (CHECKED_IN / "config.pbtxt").read_bytes()
    assert (model / "1" / "model.py").read_bytes() == (CHECKED_IN / "1" / "model.py").read_bytes()


def test_the_edge_is_part_of_the_package() -> None:
    """A wheel has it although its source is outside of the package."""
    edge = files("trtspec.pipeline.repository") / "triton_model.py"

    assert edge.read_bytes() == (CHECKED_IN / "1" / "model.py").read_bytes()


def test_the_same_spec_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    write_repository(tmp_path / "again", RepositorySpec())

    assert _contents(model) == _contents(tmp_path / "again" / "speculative_llm")
    assert not [path for path in _contents(model) if "__pycache__" in path]


def test_an_occupied_place_is_not_overwritten(model: Path) -> None:
    with pytest.raises(FileExistsError):
        write_repository(model.parent, RepositorySpec())


@pytest.mark.parametrize("cwd", [ROOT, ROOT / "tests"], ids=["where trtspec lies", "elsewhere"])
def test_the_copy_wins_over_an_installed_trtspec(model: Path, cwd: Path) -> None:
    """As Triton's stub imports: the environment's packages, and the working folder, come first."""
    script = (
        "import importlib.util, sys, types\n"
        "sys.modules['triton_python_backend_utils'] = types.ModuleType('triton_python_backend_utils')\n"
        f"sys.path.append({str(model / '1')!r})\n"
        f"spec = importlib.util.spec_from_file_location('model', {str(model / '1' / 'model.py')!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "loaded = [module for name, module in sys.modules.items() if name.startswith('trtspec')]\n"
        "print(*(module.__file__ for module in loaded), sep='\\n')\n"
    )
    said = subprocess.run([sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True, check=True)

    loaded = said.stdout.split()
    assert len(loaded) > 10
    assert [path for path in loaded if not path.startswith(str(model))] == []


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("schedule", [None, '{"1": 4, "5": 2, "9": 0}'])
def test_the_bound_of_k_by_load_is_told_where_there_is_one(schedule: str | None) -> None:
    admission = AdmissionParameters(16, 256, 300, 600, 5, 120, draft_schedule=schedule)
    config = text_format.Parse(config_text(RepositorySpec(admission=admission)), pb.ModelConfig())
    found = {key: value.string_value for key, value in config.parameters.items()}
    assert ("draft_schedule" in found) == (schedule is not None)
    read = Parameters(found, Path()).schedule("draft_schedule")
    assert read == ({1: 4, 5: 2, 9: 0} if schedule else {})
