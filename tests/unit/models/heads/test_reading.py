from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.heads import write_head, written
from trtspec.base.errors import ModelError, TensorError
from trtspec.models.heads.eagle3 import Eagle3Description
from trtspec.models.heads.medusa import MedusaDescription
from trtspec.models.heads.reading import is_head, read_head

WRITTEN = {
    "speculators": ("speculators", "eagle3"),
    "speculators_qwen3": ("speculators", "eagle3"),
    "specforge": ("specforge", "eagle3"),
    "eagle3": ("eagle", "eagle3"),
    "eagle": ("eagle", "eagle"),
    "medusa": ("medusa", "medusa"),
    "dflash": ("dflash", "dflash"),
    "dspark": ("dflash", "dspark"),
    "speculators_dflash": ("speculators", "dflash"),
    "speculators_dspark": ("speculators", "dspark"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_head_is_recognized_and_measured_as_its_own_tool_wrote_it(tmp_path: Path, name: str) -> None:
    folder = write_head(tmp_path / name, name)
    head = read_head(folder)
    assert is_head(folder)
    assert (head.form, head.method) == WRITTEN[name]
    assert (head.hidden_size, head.vocab_size) == (16, 24)
    (file,) = folder.glob("*.safetensors")
    weights = [tensor for tensor in load_file(file).values() if tensor.is_floating_point()]
    assert head.parameters == sum(tensor.numel() for tensor in weights)


def read_eagle3(folder: Path) -> Eagle3Description:
    head = read_head(folder)
    assert isinstance(head, Eagle3Description)
    return head


def test_speculators(tmp_path: Path) -> None:
    head = read_eagle3(write_head(tmp_path / "head", "speculators"))
    assert (head.form, head.draft_vocab_size, head.aux_layers) == ("speculators", 12, (1, 2, 3))
    assert (head.norm_before_residual, head.extra_norms, head.verifier) == (False, (), "./target")
    assert head.layer["head_dim"] == 4
    assert (head.layer["rope_theta"], head.layer["rope_scaling"]) == (10000.0, None)


def test_options_of_speculators(tmp_path: Path) -> None:
    head = read_eagle3(write_head(tmp_path / "head", "speculators_qwen3"))
    assert (head.draft_vocab_size, head.aux_layers) == (24, (1, 3))
    assert (head.norm_before_residual, head.extra_norms) == (True, ("fc_norm", "norm_output"))
    assert (head.layer["model_type"], head.layer["num_hidden_layers"]) == ("qwen3", 2)


def test_specforge_counts_the_targets_layers_from_0(tmp_path: Path) -> None:
    head = read_eagle3(write_head(tmp_path / "head", "specforge"))
    assert written("specforge")["config"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert (head.form, head.draft_vocab_size, head.aux_layers) == ("specforge", 12, (1, 2, 3))
    assert read_eagle3(write_head(tmp_path / "other", "specforge", eagle_config=None)).aux_layers is None


@pytest.mark.parametrize("name", ["specforge", "eagle3"])
def test_tensors_have_the_names_of_speculators(tmp_path: Path, name: str) -> None:
    theirs = read_head(write_head(tmp_path / "theirs", "speculators"))
    other = read_head(write_head(tmp_path / "other", name))
    found = {name: tensor.shape for name, tensor in other.tensors.items()}
    expected = {name: tensor.shape for name, tensor in theirs.tensors.items()}
    if name == "specforge":
        del expected["embed_tokens.weight"]  # its exporter leaves it out: it is the target's
    assert found == expected


def test_a_model_is_no_head(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = llama_folder()
    assert not is_head(folder)
    assert not is_head(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="is no head"):
        read_head(folder)


@pytest.mark.parametrize("kind", ["independent", "mlp", "peagle", "eagle", "of_tomorrow"])
def test_another_draft_of_speculators_is_named_and_refused(tmp_path: Path, kind: str) -> None:
    folder = write_head(tmp_path / "head", "speculators", speculators_model_type=kind)
    assert is_head(folder)
    with pytest.raises(ModelError, match=f"speculators_model_type is {kind}: it "):
        read_head(folder)


@pytest.mark.parametrize(
    ("form", "values", "problem"),
    [
        ("speculators", {"speculators_model_type": "mlp"}, "speculators_model_type is mlp: it "),
        ("specforge", {"norm_output": False}, "norm_output is false"),
    ],
)
def test_a_head_that_is_not_read_is_refused_before_its_pickle(
    tmp_path: Path, form: str, values: dict[str, Any], problem: str
) -> None:
    folder = write_head(tmp_path / "head", form, **values)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=problem):
        read_head(folder)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    changed = {
        **load_file(file),
        **{name.replace("_weight", ".weight"): value for name, value in tensors.items()},
    }
    save_file({name: value for name, value in changed.items() if value is not None}, file)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"fc_weight": None}, "fc.weight: is missing"),
        ({"lm_head_weight": None}, "lm_head.weight: is missing"),
        ({"d2t": None}, "d2t: is missing"),
        (
            {"fc_weight": torch.zeros(16, 32)},
            r"fc.weight: has shape \[16, 32\], but config.json demands \[16, 48\]",
        ),
        ({"fc_weight": torch.zeros(16, 48, dtype=torch.int8)}, "fc.weight: has dtype I8"),
        ({"d2t": torch.zeros(12)}, "d2t: has dtype F32, not I64"),
        ({"fc.bias": torch.zeros(16)}, "fc.bias: is no tensor of this head"),
    ],
)
def test_weights_that_are_not_its_own(
    tmp_path: Path, tensors: dict[str, torch.Tensor | None], problem: str
) -> None:
    folder = write_head(tmp_path / "head", "speculators")
    change(folder, **tensors)
    with pytest.raises(TensorError, match=problem):
        read_head(folder)


def test_whole_vocabulary_needs_no_mapping_and_no_logits_of_its_own(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "head", "speculators_qwen3")
    change(folder, lm_head_weight=None, embed_tokens_weight=None)
    assert "lm_head.weight" not in read_head(folder).tensors


@pytest.mark.parametrize(
    ("name", "of", "pickle"),
    [
        ("specforge", "model.safetensors", "pytorch_model.bin"),
        ("eagle", "model.safetensors", "pytorch_model.bin"),
        ("medusa", "medusa_lm_head.safetensors", "medusa_lm_head.pt"),
    ],
)
def test_pickle_is_refused_with_the_repair(tmp_path: Path, name: str, of: str, pickle: str) -> None:
    folder = write_head(tmp_path / "head", name)
    (folder / of).rename(folder / pickle)
    assert is_head(folder)
    with pytest.raises(ModelError, match="pickle") as raised:
        read_head(folder)
    assert f"save_file(torch.load('{pickle}', weights_only=True), '{of}')" in str(raised.value.repair)


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        ({"model_type": "mixtral"}, "decoder layers of mixtral"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
    ],
)
def test_layers_of_another_kind(tmp_path: Path, layer: dict[str, Any], problem: str) -> None:
    config = written("speculators")["config"]["transformer_layer_config"] | layer
    with pytest.raises(ModelError, match=problem):
        read_head(write_head(tmp_path / "head", "speculators", transformer_layer_config=config))


def test_medusa(tmp_path: Path) -> None:
    head = read_head(write_head(tmp_path / "head", "medusa"))
    assert isinstance(head, MedusaDescription)
    assert (head.count, head.num_layers, head.layer, head.verifier) == (3, 1, {}, "./target")


def test_medusa_with_the_logits_of_its_target(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "head", "medusa")
    file = folder / "medusa_lm_head.safetensors"
    save_file({name: value for name, value in load_file(file).items() if "linear" in name}, file)
    with pytest.raises(ModelError, match=r"0\.1\.weight: is missing"):
        read_head(folder)


def test_medusa_with_fewer_heads_than_it_says(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match=r"3\.0\.linear\.weight: is missing"):
        read_head(write_head(tmp_path / "head", "medusa", medusa_num_heads=4))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("medusa", "medusa_num_heads"),
        ("eagle3", "num_hidden_layers"),
        ("specforge", "num_hidden_layers"),
    ],
)
def test_more_parts_than_tensors(tmp_path: Path, name: str, key: str) -> None:
    """Such a number alone kept this busy for hours."""
    with pytest.raises(ModelError, match=f"{key}.* is 1000000000, but there are only"):
        read_head(write_head(tmp_path / "head", name, **{key: 10**9}))


def test_a_model_of_one_layer_is_no_head(llama_folder: Callable[..., Path]) -> None:
    assert not is_head(llama_folder(num_hidden_layers=1))
