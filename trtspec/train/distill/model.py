"""Loads the models of a training: a draft that learns, and a target that teaches a head."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import Module
from transformers import PreTrainedTokenizerFast

from trtspec.backends.backend import BuildsHere
from trtspec.backends.table import backend_named
from trtspec.base.errors import ModelError
from trtspec.base.files import remove
from trtspec.base.progress import Advance
from trtspec.checkpoint.calibrate.model import read_model
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.source import INDEX, Source, has_file, read_source
from trtspec.models.tokenizer import copy_tokenizer
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.serving.executors.torch.device import CPU, find_device
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import Choices
from trtspec.train.tune.teacher_forcing import TeacherForcing

_CONFIGS = ("config.json", "generation_config.json", INDEX)
_LICENSES = ("LICENSE*", "NOTICE*", "USE_POLICY*")


class TrainedDraft:
    """The draft of a pair; engines are made in `scratch`."""

    def __init__(self, pair: TrainingPair, draft: Source, scratch: Path) -> None:
        self._pair, self._draft, self._scratch = pair, draft, scratch

    @property
    def files(self) -> Sequence[Path]:
        return self._draft.files

    @property
    def longest(self) -> int:
        return self._pair.num_draft_tokens

    def module(self) -> nn.Module:
        """Loads it in float32: in the weights' own dtype such small steps would be lost."""
        return read_model(self._draft, "float32")

    def choices(
        self, folder: Path | None, answers: Sequence[RecordedAnswer], advance: Advance
    ) -> list[Sequence[Choices]]:
        """Runs the draft's engine; on a GPU it computes in its own dtype, on a CPU in float32."""
        draft, pair = read_source(folder) if folder else self._draft, self._pair
        checkpoint, engine = self._scratch / "checkpoint", self._scratch / "engine"
        device = find_device(None)
        longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers) + 1
        remove(self._scratch)
        try:
            convert(draft, ConvertOptions("float32" if device == CPU else draft.dtype), checkpoint)
            torch = backend_named("torch")
            assert isinstance(torch, BuildsHere)
            torch.build(checkpoint, BuildOptions(1, longest, longest, longest), engine)
            forced = TeacherForcing(engine, device, pair.target.vocab_size, pair.tokenizer.end_ids)
            said: list[Sequence[Choices]] = []
            for answer in answers:
                said.append([forced.choices(answer)] * self.longest)
                advance(1)
            return said
        finally:
            remove(self._scratch)

    def write(self, module: nn.Module, folder: Path) -> None:
        write(module, self._draft, folder)


def write(model: Module, source: Source, folder: Path) -> None:
    """Writes the model into a new folder, with the tensors and dtypes of the original.

    Configs, tokenizer and licence are copied.
    """
    folder.mkdir(parents=True)
    copy_tokenizer(source.folder, folder)
    for name in _CONFIGS:
        if has_file(source.folder / name):
            shutil.copyfile(source.folder / name, folder / name)
    for pattern in _LICENSES:
        for file in source.folder.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    trained = model.state_dict()
    trained = {tensor.name: trained[name] for name, tensor in source.tensors.items() if name in trained}
    for file in sorted({tensor.file for tensor in (*source.tensors.values(), *source.left_out)}):
        # Tensors that are no weights stay, such as the inverse frequencies of old Llamas. A tied head that is
        # stored too becomes a copy, since safetensors refuses tensors that share memory.
        after = {
            name: trained[name].detach().to("cpu", value.dtype, copy=True).contiguous()
            if name in trained
            else value
            for name, value in load_file(file).items()
        }
        save_file(after, folder / file.name, metadata={"format": "pt"})


def chat_template(source: Source) -> Callable[[str], str]:
    """Returns a function that puts a user's text into the model's chat template, in Jinja's sandbox.

    Raises ModelError for a model without a template; the function raises it for a text that the template
    refuses.
    """
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


@dataclass(frozen=True, slots=True)
class Taught:
    """The target's outputs for token ids `[texts, length]`."""

    states: tuple[Tensor, ...]
    """The states after the embedding and after each layer, `[texts, length, hidden]`. The last one is after
    the last norm.
    """
    logits: Tensor
    """The logits of each next token, `[texts, length, vocabulary]`."""


class Teacher:
    """A target, in float32 on a CPU and in its own dtype on a GPU; raises ModelError for a quantized one."""

    def __init__(self, source: Source) -> None:
        if source.scheme is not None:
            problem = f"is quantized by {source.scheme.method}, but a head learns from unquantized weights"
            raise ModelError(source.folder, problem, "name the unquantized model as the target")
        on_gpu = torch.cuda.is_available()
        dtype = source.dtype if on_gpu else "float32"
        self._model: Any = read_model(source, dtype).requires_grad_(False)
        self._model.train(False).to("cuda" if on_gpu else "cpu")

    @property
    def device(self) -> torch.device:
        device: torch.device = self._model.device
        return device

    @property
    def embedding(self) -> Tensor:
        """Its token embeddings, `[vocabulary, hidden]`, on the CPU in float32."""
        return _plain(self._model.get_input_embeddings())

    @property
    def head(self) -> Tensor:
        """Its output matrix, which turns the last states into logits, `[vocabulary, hidden]`, on the CPU in
        float32."""
        return _plain(self._model.get_output_embeddings())

    @torch.no_grad()
    def teach(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Taught:
        """Computes texts; shorter ones are padded after their ends."""
        wanted = {"output_hidden_states": True, "use_cache": False}
        said = self._model(token_ids, attention_mask=attention_mask, **wanted)
        return Taught(tuple(state.float() for state in said.hidden_states), said.logits.float())


def _plain(module: Any) -> Tensor:
    weight: Tensor = module.weight
    return weight.detach().to("cpu", torch.float32)
