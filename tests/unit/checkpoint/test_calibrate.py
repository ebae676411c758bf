"""Calibration of a tiny model: which texts, which tokens, which numbers; what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from trtspec.base.errors import DatasetError, ModelError, TensorError
from trtspec.checkpoint.calibrate.calibrate import (
    CalibrateOptions,
    FakeQuantized,
    calibrate,
    measure,
    worries,
)
from trtspec.checkpoint.calibrate.model import load_model
from trtspec.checkpoint.calibrate.texts import Encoder, batches
from trtspec.checkpoint.calibration import CalibratedRanges
from trtspec.models.families import family_of
from trtspec.models.source import read_source

Calibrate = Callable[..., CalibratedRanges]
OPTIONS = CalibrateOptions(
    dtype="bfloat16",
    kv_cache=True,
    samples=512,
    max_length=24,
    batch_size=2,
    seed=7,
    text_field="text",
    chat_template=False,
)
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.fixture
def texts(tmp_path: Path) -> Callable[[int], Path]:
    """A dataset of so many texts."""

    def write(count: int) -> Path:
        lines = (json.dumps({"text": f"{number} bottles of ale " * 3}) for number in range(count))
        (tmp_path / "texts.jsonl").write_text("\n".join(lines))
        return tmp_path / "texts.jsonl"

    return write


def options(**changes: Any) -> CalibrateOptions:
    return CalibrateOptions(**{name: getattr(OPTIONS, name) for name in OPTIONS.__slots__} | changes)


def test_a_calibration_holds_every_linear_layer_its_quality_and_its_provenance(
    llama_folder: Callable[..., Path], texts: Callable[[int], Path]
) -> None:
    source, notes = read_source(llama_folder()), list[str]()
    found = calibrate(
        source, texts(100), options(samples=20), {"model": "m"}, lambda _, note="": notes.append(note)
    )
    layers = range(source.num_hidden_layers)
    attention = {f"model.layers.{layer}.self_attn.{name}_proj" for layer in layers for name in "qkvo"}
    mlp = {f"model.layers.{layer}.mlp.{name}_proj" for layer in layers for name in ("gate", "up", "down")}
    assert found.linears.keys() == attention | mlp
    assert found.kv.keys() == {name for name in attention if name[-6] in "kv"}
    assert found.quality is not None
    assert (found.quality.texts, found.quality.tokens) == (64, 64 * 23)
    made = found.provenance
    assert (made["model"], made["texts"], made["tokens"], made["seed"]) == ("m", 20, 20 * 24, 7)
    assert made["tools"]["nvidia-modelopt"]
    assert (notes[0], notes[-1]) == ("text 2 of 84", "text 84 of 84")
    assert not [worry for worry in worries(found) if worry.startswith("calibrated with")]


def test_the_seed_chooses_the_texts(llama_folder: Callable[..., Path], texts: Callable[[int], Path]) -> None:
    source, dataset = read_source(llama_folder()), texts(12)
    first, again, other = (
        calibrate(source, dataset, options(samples=4, seed=seed), {}) for seed in (7, 7, 8)
    )
    assert first == again
    assert first.linears != other.linears


@pytest.mark.parametrize(("count", "fitting", "kept"), [(40, 35, 5), (9, 7, 2), (2, 1, 1), (1, 1, 0)])
def test_too_few_texts_are_said(
    llama_folder: Callable[..., Path],
    texts: Callable[[int], Path],
    count: int,
    fitting: int,
    kept: int,
) -> None:
    found = calibrate(read_source(llama_folder()), texts(count), OPTIONS, {})
    assert found.provenance["texts"] == fitting
    assert (found.quality.texts if found.quality else 0) == kept
    said = " ".join(worries(found))
    assert f"calibrated with all {fitting} texts of the dataset, though 512 were requested" in said
    assert ("too few texts to hold one out" in said) == (kept == 0)


def test_a_dataset_without_a_text(llama_folder: Callable[..., Path], texts: Callable[[int], Path]) -> None:
    with pytest.raises(DatasetError, match=r"texts\.jsonl: holds no text"):
        calibrate(read_source(llama_folder()), texts(0), OPTIONS, {})


def test_layers_that_accelerate_keeps_elsewhere(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    """Half of the model on the disk, as a GPU that is too small has it in the CPU's memory."""
    source = read_source(llama_folder())
    weights = tuple(family_of(source).weights(source))
    places = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "cpu",
    }
    places |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    parted = AutoModelForCausalLM.from_pretrained(
        source.folder, dtype=torch.bfloat16, device_map=places, offload_folder=tmp_path / "offload"
    )
    assert parted.get_submodule("model.layers.1.mlp.up_proj").weight.is_meta
    ids, results = torch.arange(40).reshape(2, 20), []
    for model in (parted, load_model(source, "bfloat16", 20)):
        with torch.inference_mode():
            quantized = FakeQuantized(model, lambda model: model(ids), kv_cache=True)
        found = CalibratedRanges(*quantized.found(weights), {})
        quantized.apply(weights, found)
        results.append((found, measure(quantized, ids.tolist(), lambda _: None)))
    assert results[0] == results[1]


def test_rope_parameters_of_transformers_5_are_calibrated_with(
    llama_folder: Callable[..., Path], texts: Callable[[int], Path]
) -> None:
    """transformers 4, which runs the model, does not know them."""
    scaling = {"rope_type": "linear", "factor": 4.0}
    folder = llama_folder(rope_theta=100.0, rope_scaling=scaling)
    before = calibrate(read_source(folder), texts(9), OPTIONS, {})
    config = json.loads((folder / "config.json").read_text())
    del config["rope_theta"], config["rope_scaling"]
    config["rope_parameters"] = {"rope_theta": 100.0, **scaling}
    (folder / "config.json").write_text(json.dumps(config))
    assert calibrate(read_source(folder), texts(9), OPTIONS, {}) == before


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors | ({} if tensor is None else {name: tensor}), folder / "model.safetensors")


UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("weight", "dtype", "said", "repair"),
    [
        (
            torch.zeros(80, 32),
            "bfloat16",
            f"{UP}, weight: 0.0 is not a valid largest absolute value",
            "remove fp8",
        ),
        (torch.full((80, 32), 3e4), "float16", "numbers are not finite in torch.float16", "write dtype"),
        (torch.full((80, 32), torch.nan), "bfloat16", f"{UP}.weight: holds NaN or infinity", "download"),
        (torch.full((80, 32), -torch.inf), "float16", f"{UP}.weight: holds NaN or infinity", "download"),
    ],
)
def test_numbers_that_no_scale_fits(
    llama_folder: Callable[..., Path],
    texts: Callable[[int], Path],
    weight: torch.Tensor,
    dtype: str,
    said: str,
    repair: str,
) -> None:
    folder = llama_folder(dtype=torch.float32)
    change(folder, f"{UP}.weight", weight)
    with pytest.raises(ModelError, match=said) as caught:
        calibrate(read_source(folder), texts(3), options(dtype=dtype), {})
    assert (caught.value.repair or "").startswith(repair)


def test_a_tensor_that_is_missing_is_not_made_up(
    llama_folder: Callable[..., Path], texts: Callable[[int], Path]
) -> None:
    """transformers would initialize it at random, with a warning."""
    folder = llama_folder()
    change(folder, f"{UP}.weight", None)
    with pytest.raises(TensorError, match=f"{UP}.weight: this tensor is missing"):
        calibrate(read_source(folder), texts(3), OPTIONS, {})


def test_code_beside_a_model_is_not_run(
    llama_folder: Callable[..., Path], texts: Callable[[int], Path], tmp_path: Path
) -> None:
    folder = llama_folder()
    content = json.loads((folder / "config.json").read_text())
    content["auto_map"] = {"AutoModelForCausalLM": "own.Model", "AutoConfig": "own.Config"}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    calibrate(read_source(folder), texts(3), OPTIONS, {})
    assert not (tmp_path / "ran").exists()


def test_a_shorter_text_is_repeated_not_padded() -> None:
    made = [batch.tolist() for batch in batches([[1, 2, 3, 4, 5], [6, 7], [8]], 2)]
    assert made == [[[1, 2, 3, 4, 5], [6, 7, 6, 7, 6]], [[8]]]


@pytest.fixture
def encoder(llama_folder: Callable[..., Path]) -> Callable[..., Encoder]:
    def make(template: str | None, *, chat_template: bool = True, max_length: int = 99) -> Encoder:
        folder = llama_folder()
        if template:
            (folder / "chat_template.jinja").write_text(template)
        return Encoder(folder, Path("texts.jsonl"), max_length, chat_template=chat_template)

    return make


def test_a_chat_template_wraps_a_text(encoder: Callable[..., Encoder]) -> None:
    """Token ids of the fixture's tokenizer stand for single bytes."""
    plain, chat = encoder(None, chat_template=False), encoder(TEMPLATE)
    assert chat("hello") == plain("<user>hello<a>")
    question = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert chat(question) == plain("<system>be<user>hi<a>")
    answered = [*question, {"role": "assistant", "content": "yo"}]
    assert chat(answered) == plain("<system>be<user>hi<assistant>yo")
    assert encoder(TEMPLATE, max_length=6)("hello") == plain("<user>")


def test_a_chat_template_is_not_trusted(encoder: Callable[..., Encoder]) -> None:
    with pytest.raises(DatasetError, match="the chat template refuses a conversation"):
        encoder("{{ messages.__class__.__mro__ }}")("hello")


def test_a_conversation_that_cannot_become_a_text_is_refused(encoder: Callable[..., Encoder]) -> None:
    with pytest.raises(ModelError, match="has no chat template"):
        encoder(None)
    with pytest.raises(DatasetError, match="holds messages") as caught:
        encoder(None, chat_template=False)([{"role": "user", "content": "hi"}])
    assert caught.value.repair == "write chat_template: true"
    with pytest.raises(DatasetError, match="the chat template refuses a conversation: no such role"):
        encoder("{{ raise_exception('no such role') }}")("hello")
