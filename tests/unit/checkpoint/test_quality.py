"""What FP8 costs, against transformers' own loss and torch's own KL divergence; what is said of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import kl_div
from transformers import AutoModelForCausalLM

from tests.fakes.modelopt import export
from trtspec.backends.torch.builder import build
from trtspec.checkpoint.calibrate.calibrate import FakeQuantized, cost, measure, worries
from trtspec.checkpoint.calibrate.model import load_model
from trtspec.checkpoint.calibration import CalibratedRanges, Quality
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.families import family_of
from trtspec.models.source import Source, read_source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import read_tensors

TEXTS = torch.randint(0, 264, (5, 30), generator=torch.Generator().manual_seed(1)).tolist()
TEXTS[1] = TEXTS[1][:7]
TEXTS[2] = TEXTS[2][:1]


def quantize(
    source: Source, kv_cache: bool, dtype: str = "bfloat16"
) -> tuple[FakeQuantized, CalibratedRanges]:
    ids = torch.randint(0, 264, (2, 30), generator=torch.Generator().manual_seed(2))
    quantized = FakeQuantized(load_model(source, dtype, 30), lambda model: model(ids), kv_cache=kv_cache)
    weights = tuple(family_of(source).weights(source))
    return quantized, CalibratedRanges(*quantized.found(weights), {})


@pytest.mark.parametrize("factor", [1e4, math.nan, math.inf])
def test_logits_that_are_no_distribution(llama_folder: Callable[..., Path], factor: float) -> None:
    """No JSON has what would come of them."""
    quantized, _ = quantize(read_source(llama_folder()), kv_cache=False)
    with torch.no_grad():
        quantized.model.lm_head.weight.mul_(factor)
    with pytest.raises(OverflowError, match="nats a token"):
        measure(quantized, TEXTS, lambda _: None)


@pytest.mark.parametrize("kv_cache", [False, True])
def test_the_numbers_are_those_of_transformers_and_torch(
    llama_folder: Callable[..., Path], kv_cache: bool
) -> None:
    source = read_source(llama_folder())
    quantized, found = quantize(source, kv_cache)
    quantized.apply(family_of(source).weights(source), found)
    original = AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.bfloat16)
    expected, actual, following = [], [], []
    with torch.inference_mode():
        for text in TEXTS:
            expected.append(original(torch.tensor([text])).logits[0, :-1].float())
            actual.append(quantized.model(torch.tensor([text])).logits[0, :-1].float())
            following.append(torch.tensor(text[1:], dtype=torch.int64))
        result = measure(quantized, TEXTS, lambda _: None)
    p, q, ids = torch.cat(expected), torch.cat(actual), torch.cat(following)
    assert result is not None
    assert (result.texts, result.tokens) == (5, 29 * 3 + 6)
    assert result.agreement == (p.argmax(-1) == q.argmax(-1)).float().mean()
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    kl = kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    assert result.kl == pytest.approx(kl.item(), rel=1e-4)
    for logits, perplexity in ((p, result.original_perplexity), (q, result.perplexity)):
        loss = torch.nn.functional.cross_entropy(logits, ids).item()
        assert perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert result.kl > 0
    assert 0 < result.agreement < 1


def amax_of(module: torch.nn.Module, quantizer: str) -> float:
    return float(getattr(module, quantizer).amax)


def test_the_scales_are_the_shared_ones(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    """ModelOpt's exporter leaves in the model's quantizers what its checkpoint has."""
    source = read_source(llama_folder())
    quantized, found = quantize(source, kv_cache=True)
    exported = copy.deepcopy(quantized.model)
    export(exported, torch.bfloat16, tmp_path / "export")
    changed = 0
    quantized.apply(family_of(source).weights(source), found)
    for name, amax in found.linears.items():
        ours, theirs = quantized.model.get_submodule(name), exported.get_submodule(name)
        for quantizer in ("weight_quantizer", "input_quantizer"):
            value = amax_of(ours, quantizer)
            assert value == pytest.approx(amax_of(theirs, quantizer), rel=1e-6), name
        changed += amax_of(ours, "weight_quantizer") > amax.weight * 1.001
    assert changed
    for layer in range(source.num_hidden_layers):
        attention = quantized.model.get_submodule(f"model.layers.{layer}.self_attn")
        assert amax_of(attention, "k_bmm_quantizer") == amax_of(attention, "v_bmm_quantizer") == 448


def test_nothing_to_measure_with(llama_folder: Callable[..., Path]) -> None:
    quantized, _ = quantize(read_source(llama_folder()), kv_cache=False)
    assert measure(quantized, [], lambda _: None) is None
    assert measure(quantized, [[5], [6]], lambda _: None) is None


FINE = Quality(texts=64, tokens=1000, agreement=0.97, kl=0.004, perplexity=7.31, original_perplexity=7.3)


def test_the_cost_of_a_good_quantization_is_told_without_worries() -> None:
    provenance = {"texts": 512, "samples": 512}
    found = CalibratedRanges({}, {}, provenance, FINE)
    assert cost(found) == (
        "FP8 agrees with the original on 97.00 % of 1000 next tokens of 64 held-out texts;"
        " KL 0.0040, perplexity 7.310 (original 7.300)"
    )
    assert list(worries(found)) == []
    assert cost(CalibratedRanges({}, {}, provenance)) is None


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        (replace(FINE, agreement=0.89), "agreement is below 90 %"),
        (replace(FINE, kl=0.051), "KL is above 0.05"),
        (replace(FINE, perplexity=7.5), "perplexity is more than 2 % above the original's"),
    ],
)
def test_a_quantization_worse_than_a_limit_raises_a_worry(quality: Quality, said: str) -> None:
    (worry,) = worries(CalibratedRanges({}, {}, {"texts": 512, "samples": 512}, quality))
    assert worry.startswith(said)


@pytest.mark.parametrize("kv_cache", [False, True])
def test_the_engine_is_the_model_that_was_measured(
    llama_folder: Callable[..., Path], tmp_path: Path, kv_cache: bool
) -> None:
    """What the torch backend makes of the checkpoint, beside what the numbers are said of."""
    source = read_source(llama_folder(dtype=torch.float32, initializer_range=0.2))
    quantized, found = quantize(source, kv_cache, "float32")
    quantized.apply(family_of(source).weights(source), found)
    options = ConvertOptions("float32", fp8=True, fp8_kv_cache=kv_cache, calibration=found)
    convert(source, options, tmp_path / "checkpoint")
    build(tmp_path / "checkpoint", BuildOptions(2, 63, 64, 8192), tmp_path / "engine")
    cpu = torch.device("cpu")
    config = read_config(tmp_path / "engine")
    decoder = Decoder(config, read_tensors(tmp_path / "engine", config, cpu), Cache(config, cpu), cpu)
    text = TEXTS[0]
    with torch.inference_mode():
        served = decoder.forward(text, [Span(0, 0, len(text))], list(range(len(text))))
        measured = quantized.model(torch.tensor([text])).logits[0]
        with quantized.original():
            original = quantized.model(torch.tensor([text])).logits[0]
    assert (served - measured).norm() < 1e-5 * measured.norm()
    assert (original - measured).norm() > 1e-2 * measured.norm()
