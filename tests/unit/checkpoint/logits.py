"""The way of a model from Hugging Face to the torch executor, against transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from trtspec.backends.torch.builder import build
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.checkpoint.verify import verify
from trtspec.models.layers import of_layers
from trtspec.models.source import read_source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import read_tensors


def check_logits(
    folder: Path, tensor: int, pipeline: int, layers: tuple[int, ...] = (), longest: int = 64
) -> None:
    """What transformers loads from the folder and what the executor loads from the engine say the same."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    if layers:
        model.model.layers = torch.nn.ModuleList(model.model.layers[layer] for layer in layers)
        model.config.num_hidden_layers = len(layers)
    with torch.inference_mode():
        expected = model(torch.arange(longest)[None], use_cache=False).logits[0]
    check_engine(folder, expected, tensor, pipeline, layers)


def check_engine(
    folder: Path, expected: torch.Tensor, tensor: int, pipeline: int, layers: tuple[int, ...] = ()
) -> None:
    """The engine of the folder's model says this after each of the first token ids."""
    checkpoint, engine, cpu = folder / "checkpoint", folder / "engine", torch.device("cpu")
    source, options = read_source(folder), ConvertOptions("float32", Mapping(tensor, pipeline))
    if layers:
        source = of_layers(source, layers)
    convert(source, options, checkpoint)
    verify(source, options, checkpoint)
    longest = len(expected)
    build(checkpoint, BuildOptions(2, longest - 1, longest, 8192), engine)
    config = read_config(engine)
    decoder = Decoder(config, read_tensors(engine, config, cpu), Cache(config, cpu), cpu)
    text = torch.arange(longest)
    with torch.inference_mode():
        parts = [
            decoder.forward(text[start:end].tolist(), [Span(0, start, end - start)], list(range(end - start)))
            for start, end in ((0, 40), (40, 41), (41, 46), (46, longest))
        ]
    assert (torch.cat(parts) - expected).abs().max() / expected.abs().max() < 3e-5
