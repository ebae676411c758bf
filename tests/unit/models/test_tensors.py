from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from trtspec.base.errors import ModelError, TensorError
from trtspec.models.source import read_header, read_tensors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.ones(5, dtype=torch.bfloat16),
        "c": torch.ones(()),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def write(file: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_the_same_as_the_safetensors_library(file: Path) -> None:
    tensors = read_header(file)
    content = file.read_bytes()
    with safe_open(file, "pt") as opened:
        assert set(tensors) == set(opened.keys())
        for name, tensor in tensors.items():
            expected = opened.get_tensor(name)
            assert tensor.shape == tuple(expected.shape)
            assert (
                content[tensor.start : tensor.end] == expected.reshape(-1).view(torch.uint8).numpy().tobytes()
            )


def test_a_file_cut_off_anywhere_is_refused(file: Path) -> None:
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(TensorError):
            read_header(file)


def test_a_truncated_file_names_the_tensor(file: Path) -> None:
    last = list(read_header(file).values())[-1]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TensorError, match=rf"{last.name}: is cut off: its data ends at byte {last.end}"):
        read_header(file)


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"not json", b"", "is not JSON"),
        (b"[1]", b"", "not a JSON object"),
        (b'{"a": 1, "a": 2}', b"", "a name occurs twice"),
        ({"a": {"dtype": "F32"}}, b"", "a: a header entry without"),
        ({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]}}, b"", "is not possible"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234", "is not possible"),
        ({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}, b"1234", "dtype F4"),
        ({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, b"1234", "is not one that"),
        (
            {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
            b"1234",
            "takes 8 bytes, but the header gives it 4",
        ),
        (
            {"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}},
            b"1234",
            "overlaps another's or leaves a hole",
        ),
        (
            {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}},
            b"1234",
            "2 bytes after its last tensor",
        ),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(TensorError, match=said):
        read_header(tmp_path / "x.safetensors")


def test_a_header_length_beyond_all_bounds_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(TensorError, match="truncated or not safetensors: it has 64 bytes"):
        read_header(tmp_path / "x.safetensors")


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(TensorError, match="Git LFS pointer") as caught:
        read_header(tmp_path / "x.safetensors")
    assert caught.value.repair == "git lfs pull --include x.safetensors"


def test_shards(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder(shard="30KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = read_tensors(folder)
    assert len({tensor.file for tensor in tensors.values()}) > 2
    assert {name: tensor.file.name for name, tensor in tensors.items()} == index["weight_map"]


def test_an_index_and_its_shards_that_disagree(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder(shard="30KB")
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    name, shard = next(iter(index["weight_map"].items()))

    def refused(weight_map: Any, said: str) -> None:
        file.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(ModelError, match=said):
            read_tensors(folder)

    refused(None, "has no weight_map")
    refused({**index["weight_map"], name: "../other.safetensors"}, "outside of its folder")
    refused({**index["weight_map"], name: "other.safetensors"}, "names this shard, but it is missing")
    refused({**index["weight_map"], "ghost": shard}, "ghost: is missing here")
    (folder / "copy.safetensors").write_bytes((folder / shard).read_bytes())
    refused({**index["weight_map"], name: "copy.safetensors"}, "is also in copy.safetensors")


def test_pickled_weights_are_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pickle \(pytorch_model\.bin\)") as caught:
        read_tensors(tmp_path)
    assert "save_pretrained" in str(caught.value.repair)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        read_tensors(tmp_path)
