"""Loads the original model with transformers: on the GPUs if there are any, else on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from trtspec.base.errors import ModelError
from trtspec.models.source import DOWNLOAD_AGAIN, Source

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_RESERVE = 4 << 30  # bytes of a GPU for activations and for what fake quantization computes with


def load_model(source: Source, dtype: str, tokens: int) -> PreTrainedModel:
    """Loads the model in `dtype` onto the GPUs, with the layers that its source names.

    accelerate puts its layers onto the GPUs, and those that do not fit into the CPU's memory. Each GPU keeps
    room for the logits of `tokens` tokens.
    """
    import torch

    logits = 4 * 4 * tokens * source.vocab_size  # those of both models, and two copies in float32
    placement: dict[str, Any] = {}
    if torch.cuda.is_available():
        placement = {"device_map": "auto", "max_memory": _memory(_RESERVE + logits)}
    model = read_model(source, dtype, **placement)
    if source.layers is not None:
        keep_layers(model, source.layers)
    return model


def read_model(source: Source, dtype: str, **placement: Any) -> PreTrainedModel:
    """Reads the model in `dtype`, from safetensors alone and without running code that comes with it.

    Raises ModelError if transformers would make numbers up, for weights that it does not find.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    config, of_text = config_of(source), cast("Any", AutoModelForCausalLM)
    is_within = config.get_text_config() is not config
    of_whole: Any = AutoModelForImageTextToText if is_within else of_text
    model, found = of_whole.from_pretrained(
        source.folder,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        config=config,
        output_loading_info=True,
        **placement,
    )
    if missing := sorted(found["missing_keys"]):
        raise ModelError(source.folder, f"transformers does not find {missing[0]} in it", DOWNLOAD_AGAIN)
    if not is_within:
        return model  # type: ignore[no-any-return]
    with torch.device("meta"):
        text = of_text.from_config(config.get_text_config())
    text.model, text.lm_head = model.get_decoder(), model.get_output_embeddings()
    return text.eval()  # type: ignore[no-any-return]


def keep_layers(model: PreTrainedModel, layers: Sequence[int]) -> None:
    """Removes all layers but these from a model; a layer's number is then the index of its cache."""
    from torch.nn import ModuleList

    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    kept = [decoder.layers[layer] for layer in layers]
    for place, layer in enumerate(kept):
        layer.self_attn.layer_idx = place
    decoder.layers = ModuleList(kept)
    decoder.config.num_hidden_layers = len(kept)


def quiet_transformers() -> None:
    """Silences transformers: its progress bars would mix with ours, and it warns of a tokenizer without its
    own class."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def config_of(source: Source) -> Any:
    """The model's config, with rotary positions also in the keys of transformers 4."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    text = config.get_text_config()
    text.rope_theta = source.rotary_base
    text.rope_scaling = dict(source.rotary_scaling) if source.rotary_scaling else None
    if local := source.config.content.get("rope_local_base_freq"):
        text.rope_local_base_freq = local
    return config


def _memory(reserve: int) -> dict[int | str, int]:
    """Bytes of each GPU, and of the CPU, that the model may take."""
    from accelerate.utils import get_max_memory

    free = get_max_memory()
    return {device: size if device == "cpu" else max(size - reserve, 0) for device, size in free.items()}


def device_of(model: Any) -> str:
    """The name of the GPU that a model is on, or `cpu`."""
    import torch

    return torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu"
