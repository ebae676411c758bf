"""Loads a draft for training, and writes its new folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.base.errors import ModelError
from trtspec.checkpoint.calibrate.model import config_of
from trtspec.models.source import DTYPES, Source
from trtspec.models.tensors import INDEX
from trtspec.models.tokenizer import TOKENIZER_FILES

if TYPE_CHECKING:
    import torch
    from torch.nn import Module
    from transformers import PreTrainedModel

_CONFIGS = ("config.json", "generation_config.json", INDEX, *TOKENIZER_FILES)
_LICENSES = ("LICENSE*", "NOTICE*", "USE_POLICY*")


def check_trainable(source: Source) -> None:
    """Raises ModelError for a model whose weights are quantized: they have no gradients."""
    other = sorted({tensor.dtype for tensor in source.tensors.values()} - set(DTYPES))
    if source.scheme is not None or other:
        found = f"is quantized by {source.scheme.method}" if source.scheme else f"has weights of {other[0]}"
        repair = "train the unquantized model; a build quantizes the result"
        raise ModelError(source.folder, f"{found}, and cannot be trained", repair)


def load(source: Source, dtype: torch.dtype) -> PreTrainedModel:
    """Loads the model in a dtype, only from safetensors and without running its code."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        source.folder,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        config=config_of(source),
    )
    return model


def write(model: Module, source: Source, folder: Path) -> None:
    """Writes the model into a new folder, with the tensors and dtypes of the original.

    Configs, tokenizer and licence are copied.
    """
    folder.mkdir(parents=True)
    for name in _CONFIGS:
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, folder / name)
    for pattern in _LICENSES:
        for file in source.folder.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    _write_weights(model, source, folder)


def chat_template(source: Source) -> Callable[[str], str]:
    """Returns a function that puts a user's text into the model's chat template, in Jinja's sandbox.

    Raises ModelError for a model without a template; the function raises it for a text that the template
    refuses.
    """
    from jinja2 import TemplateError
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(source.folder, local_files_only=True)
    if not tokenizer.chat_template:
        problem = "the tokenizer has no chat template"
        raise ModelError(source.folder, problem, "leave --chat out, or use the instruct model")

    def render(text: str) -> str:
        messages = [{"role": "user", "content": text}]
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            raise ModelError(source.folder, f"the chat template refuses a prompt: {error}") from None

    return render


def _write_weights(model: Module, source: Source, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    trained = model.state_dict()
    for file in sorted({tensor.file for tensor in source.tensors.values()}):
        before = load_file(
            file
        )  # Tensors that are no weights stay, such as the inverse frequencies of old Llamas.
        after = {
            name: trained[name].detach().to("cpu", value.dtype).contiguous() if name in trained else value
            for name, value in before.items()
        }
        save_file(after, folder / file.name, metadata={"format": "pt"})
