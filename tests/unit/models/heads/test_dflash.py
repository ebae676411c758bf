"""Heads of DFlash and DSpark: what a block proposes, what is read of the target, and what must be there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.fakes.heads import TARGET, write_head
from trtspec.base.errors import ModelError, TensorError
from trtspec.models.heads.dflash import DFlashDescription
from trtspec.models.heads.reading import read_head
from trtspec.models.pair import check_head
from trtspec.models.source import read_source


def read_block(folder: Path) -> DFlashDescription:
    head = read_head(folder)
    assert isinstance(head, DFlashDescription)
    return head


@pytest.mark.parametrize(
    ("name", "longest"),
    [("dflash", 15), ("dspark", 7), ("speculators_dflash", 7), ("speculators_dspark", 8)],
)
def test_a_block_head_knows_its_longest_draft_and_the_layers_that_it_reads(
    tmp_path: Path, name: str, longest: int
) -> None:
    """The first place of a block holds the token that is known, unless it proposes too."""
    head = read_block(write_head(tmp_path / "head", name))
    assert (head.longest, head.aux_layers, head.mask) == (longest, (1, 3, 5), 23)


def test_keys_of_dsparks_own_spelling(tmp_path: Path) -> None:
    folder = write_head(
        tmp_path / "head",
        "dspark",
        block_size=None,
        target_layer_ids=None,
        mask_token_id=None,
        dspark_block_size=5,
        dspark_target_layer_ids=[0, 2, 4],
        dspark_noise_token_id=22,
    )
    head = read_block(folder)
    assert (head.longest, head.aux_layers, head.mask) == (5, (0, 2, 4), 22)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"dflash_config": {"mask_token_id": 23}}, "has no target_layer_ids"),
        ({"dflash_config": {"target_layer_ids": [1, 3, 5]}}, "has no mask_token_id"),
        ({"block_size": 1}, "leaves no position to propose a token for"),
        ({"block_size": None}, "has no block_size"),
    ],
)
def test_a_configuration_that_does_not_say_enough(
    tmp_path: Path, config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        read_head(write_head(tmp_path / "head", "dflash", **config))


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("dflash", "fc.weight"),
        ("dflash", "hidden_norm.weight"),
        ("dflash", "layers.1"),
        ("dspark", "markov_head."),
    ],
)
def test_a_head_that_is_not_whole(tmp_path: Path, name: str, missing: str) -> None:
    file = write_head(tmp_path / "head", name) / "model.safetensors"
    left = {key: tensor for key, tensor in load_file(file).items() if not key.startswith(missing)}
    save_file(left, file)
    with pytest.raises(TensorError, match="is missing"):
        read_head(file.parent)


def test_states_of_other_sizes_than_its_configuration_says(tmp_path: Path) -> None:
    folder = write_head(
        tmp_path / "head", "dflash", dflash_config={"mask_token_id": 23, "target_layer_ids": [1]}
    )
    with pytest.raises(
        TensorError, match=r"fc.weight: has shape \[16, 48\], but config.json demands \[16, 16\]"
    ):
        read_head(folder)


def test_a_dflash_head_is_refused_beside_a_target_with_too_few_layers(
    tmp_path: Path, llama_folder: Callable[..., Path]
) -> None:
    head = read_head(write_head(tmp_path / "head", "dflash"))
    assert check_head(head, read_source(llama_folder("target", **TARGET))) == []
    small = llama_folder("small", **{**TARGET, "num_hidden_layers": 5})
    (found,) = check_head(head, read_source(small))
    assert (
        found.problem
        == "the head reads the states after layer 5, counted from 0, but the target has 5 layers"
    )


def test_no_engine_is_built_of_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="of which trtspec builds no engine"):
        read_head(write_head(tmp_path / "head", "dspark")).engine_draft(8)


def test_names_as_transformers_saves_a_whole_model(tmp_path: Path) -> None:
    file = write_head(tmp_path / "head", "dflash") / "model.safetensors"
    save_file({f"model.{name}": tensor for name, tensor in load_file(file).items()}, file)
    assert read_block(file.parent).longest == 15
