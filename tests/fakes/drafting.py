"""What heads propose, by plain modules of transformers over the target's hidden states, without a cache.

EAGLE-3 as Speculators trains it (`speculators/models/eagle3/core.py`) and vLLM runs it (`llama_eagle3.py`),
EAGLE as its repository does (`eagle/model/cnets.py` of version 1), Medusa as its own. A head's row of a place
is made of the state there and the token behind it; a drafted row reads the state that the row before made.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from tests.fakes.engine_dir import tiny_model
from tests.fakes.heads import write_head, written

LAYERS = {"llama": LlamaDecoderLayer, "qwen3": Qwen3DecoderLayer}


class Proposes(Protocol):
    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """The tokens that the head would say behind the text."""
        ...


class EagleHead(nn.Module):
    """A head of decoder layers, `depths` the states of the target that it reads."""

    target: Any
    d2t: Tensor

    def __init__(self, target: PreTrainedModel, layer: Mapping[str, Any], depths: Sequence[int]) -> None:
        super().__init__()
        config: Any = AutoConfig.for_model(**layer)
        config._attn_implementation = "eager"
        self.__dict__["target"] = target  # not a part: it is neither trained nor saved
        self.depths, self.width = depths, config.hidden_size
        self.layers = nn.ModuleList(
            LAYERS[layer["model_type"]](config, index) for index in range(config.num_hidden_layers)
        )
        self.rotary = LlamaRotaryEmbedding(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)

    def combine(self, states: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError

    def first(self, layer: Any, embedded: Tensor, states: Tensor, rest: dict[str, Any]) -> Tensor:
        raise NotImplementedError

    def tell(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits over the head's own vocabulary, and the states that the next rows read."""
        raise NotImplementedError

    def targets(self, tokens: Tensor) -> Tensor:
        """The target's tokens for the head's."""
        return tokens

    def heard(self, text: Sequence[int]) -> Tensor:
        """What the head reads of the target for each place of a text, `[1, tokens, width]`."""
        with torch.no_grad():
            found = self.target(torch.tensor([list(text)]), output_hidden_states=True).hidden_states
        return self.combine([found[depth] for depth in self.depths])

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        """What the last layer makes of all rows, `[1, rows, width]`, of tokens `[1, rows]`."""
        rows = states.shape[1]
        places = torch.arange(rows)[None]
        mask = torch.full((1, 1, rows, rows), torch.finfo(states.dtype).min).triu(1)
        turned = self.rotary(states, places)
        rest = {"attention_mask": mask, "position_embeddings": turned, "position_ids": places}
        x = self.first(self.layers[0], self.embed_tokens(tokens), states, rest)
        for layer in self.layers[1:]:
            x = layer(x, **rest)
        return x

    @torch.no_grad()
    def propose(self, text: Sequence[int], count: int) -> list[int]:
        states, tokens, drafted = self.heard(text)[:, :-1], list(text[1:]), list[int]()
        for _ in range(count):
            logits, state = self.tell(self(torch.tensor([tokens]), states)[:, -1:])
            drafted.append(int(self.targets(logits.argmax(-1))))
            tokens.append(drafted[-1])
            states = torch.cat([states, state], 1)
        return drafted

    def train_on(self, texts: Sequence[Sequence[int]], steps: int) -> None:
        """Learns what follows each place of the texts, from the target's states and then from its own."""
        learning = torch.optim.Adam(self.parameters(), 1e-2)
        back = {int(token): own for own, token in enumerate(self.targets(torch.arange(len(self.d2t))))}
        for step in range(steps):
            text = texts[step % len(texts)]
            states, loss = self.heard(text)[:, :-2], torch.zeros(())
            for ahead in range(3):
                said = torch.tensor([text[1 + ahead : 1 + ahead + states.shape[1]]])
                wanted = [back.get(token, -100) for token in text[2 + ahead : 2 + ahead + states.shape[1]]]
                logits, states = self.tell(self(said, states))
                loss = loss + nn.functional.cross_entropy(logits[0], torch.tensor(wanted))
                states = states[:, :-1]
            learning.zero_grad()
            loss.backward()
            learning.step()


class Eagle(EagleHead):
    def __init__(self, target: PreTrainedModel, layer: Mapping[str, Any]) -> None:
        super().__init__(target, layer, (target.config.num_hidden_layers,))
        self.fc = nn.Linear(2 * self.width, self.width, bias=False)
        self.layers[0].input_layernorm = nn.Identity()

    def combine(self, states: Sequence[Tensor]) -> Tensor:
        return states[0]

    def first(self, layer: Any, embedded: Tensor, states: Tensor, rest: dict[str, Any]) -> Tensor:
        return layer(self.fc(torch.cat([embedded, states], -1)), **rest)  # type: ignore[no-any-return]

    def tell(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, bound = self.target.lm_head(x), getattr(self.target.config, "final_logit_softcapping", None)
        return logits if bound is None else torch.tanh(logits / bound) * bound, x


class Eagle3(EagleHead):
    def __init__(
        self,
        target: PreTrainedModel,
        layer: Mapping[str, Any],
        depths: Sequence[int],
        vocab_size: int,
        options: Mapping[str, bool],
    ) -> None:
        super().__init__(target, layer, depths)
        self.options, count = options, len(depths)
        first: Any = self.layers[0]
        attention: Any = first.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(attention, name).out_features
            setattr(attention, name, nn.Linear(2 * self.width, rows, bias=False))
        theirs, epsilon = target.config.hidden_size, target.config.rms_norm_eps
        first.hidden_norm = LlamaRMSNorm(self.width, layer["rms_norm_eps"])
        self.fc = nn.Linear(count * theirs, self.width, bias=False)
        self.norm = LlamaRMSNorm(self.width, layer["rms_norm_eps"])
        self.lm_head = nn.Linear(self.width, vocab_size, bias=False)
        if options.get("fc_norm"):
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(theirs, epsilon) for _ in depths)
        if options.get("norm_before_fc"):
            self.input_norm = LlamaRMSNorm(count * theirs, layer["rms_norm_eps"])
        self.register_buffer("d2t", torch.zeros(vocab_size, dtype=torch.int64))

    def combine(self, states: Sequence[Tensor]) -> Tensor:
        if self.options.get("fc_norm"):
            states = [norm(state) for norm, state in zip(self.fc_norm, states, strict=True)]
        stacked = torch.cat(list(states), -1)
        return self.fc(self.input_norm(stacked) if self.options.get("norm_before_fc") else stacked)  # type: ignore[no-any-return]

    def first(self, layer: Any, embedded: Tensor, states: Tensor, rest: dict[str, Any]) -> Tensor:
        normed = layer.hidden_norm(states)
        read = torch.cat([layer.input_layernorm(embedded), normed], -1)
        x = normed if self.options.get("norm_before_residual") else states
        x = x + layer.self_attn(hidden_states=read, **rest)[0]
        return x + layer.mlp(layer.post_attention_layernorm(x))  # type: ignore[no-any-return]

    def tell(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm(x)
        return self.lm_head(normed), normed if self.options.get("norm_output") else x

    def targets(self, tokens: Tensor) -> Tensor:
        return tokens + self.d2t[tokens]


class Medusa:
    """Heads that read the last state before the text's last token."""

    def __init__(
        self, target: PreTrainedModel, tensors: Mapping[str, Tensor], count: int, depth: int
    ) -> None:
        self.target, self.tensors, self.count, self.depth = target, tensors, count, depth

    @torch.no_grad()
    def propose(self, text: Sequence[int], count: int) -> list[int]:
        found = self.target(torch.tensor([list(text)]), output_hidden_states=True).hidden_states
        said = []
        for head in range(min(count, self.count)):
            x = found[-1][0, -2]
            for block in range(self.depth):
                name = f"{head}.{block}.linear"
                x = x + nn.functional.silu(self.tensors[f"{name}.weight"] @ x + self.tensors[f"{name}.bias"])
            said.append(int((self.tensors[f"{head}.{self.depth}.weight"] @ x).argmax()))
        return said


def reference(name: str, folder: Path, target: PreTrainedModel) -> Proposes:
    """What the head in a folder, which has the format `name` of `tests/data/heads`, proposes."""
    config = json.loads((folder / "config.json").read_text())
    if name == "medusa":
        tensors = load_file(folder / "medusa_lm_head.safetensors")
        return Medusa(target, tensors, config["medusa_num_heads"], config["medusa_num_layers"])
    tensors = load_file(folder / "model.safetensors")
    tensors = {key.replace("midlayer.", "layers.0."): tensor for key, tensor in tensors.items()}
    head = made(name, config, target)
    tensors.pop("t2d", None)
    tensors.setdefault("embed_tokens.weight", target.state_dict()["model.embed_tokens.weight"])
    missing = set(head.state_dict()) - set(tensors)
    assert missing <= {"d2t"}, missing
    head.load_state_dict(tensors, strict=False)
    return head.eval()


def made(name: str, config: Mapping[str, Any], target: PreTrainedModel) -> EagleHead:
    """A new head of the kind that a format's configuration says."""
    layer = {"rms_norm_eps": 1e-6, **config.get("transformer_layer_config", config)}
    if name == "eagle":
        return Eagle(target, layer)
    count = target.config.num_hidden_layers
    depths = config.get("eagle_aux_hidden_state_layer_ids")
    if name == "specforge":
        depths = [number + 1 for number in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    options = {key: config.get(key, False) for key in ("fc_norm", "norm_before_fc", "norm_output")}
    options["norm_before_residual"] = config.get("norm_before_residual", False)
    default = (2, count // 2, count - 3)
    return Eagle3(target, layer, depths or default, config["draft_vocab_size"], options)


def tiny_target(family: str = "llama", **changes: Any) -> PreTrainedModel:
    """A target as the heads of `tests/data/heads` want it, with layers enough for EAGLE-3's default."""
    sizes: dict[str, Any] = {
        "vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4,
        "head_dim": 4, "num_hidden_layers": 7,
    }  # fmt: skip
    return tiny_model(family, **(sizes | changes))


def said(target: Any, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers says after a prompt."""
    asked = torch.tensor([list(prompt)])
    mask = torch.ones_like(asked)
    found = target.generate(asked, attention_mask=mask, max_new_tokens=count, do_sample=False)
    return [int(token) for token in found[0, len(prompt) :]]


def random_head(folder: Path, name: str) -> Path:
    """Writes a head of the format `name` whose proposals are not the same everywhere."""
    write_head(folder, name)
    file = next(folder.glob("*.safetensors"))
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(file)
    for key, tensor in tensors.items():
        if tensor.is_floating_point():
            center = 1.0 if "norm" in key else 0.0
            tensors[key] = center + 0.4 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, file)
    return folder


def trained_head(folder: Path, target: PreTrainedModel, texts: Sequence[Sequence[int]], steps: int) -> Path:
    """Writes an EAGLE-3 head in Speculators' format that has learnt these texts, and no other tokens."""
    config, theirs = copy.deepcopy(written("speculators")["config"]), target.config
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "num_attention_heads")
    config["transformer_layer_config"] |= {name: getattr(theirs, name) for name in sizes}
    tokens = torch.tensor(sorted({token for text in texts for token in text}))
    config["draft_vocab_size"] = len(tokens)
    torch.manual_seed(0)
    head = made("speculators", config, target)
    head.d2t = tokens - torch.arange(len(tokens))
    head.embed_tokens.load_state_dict({"weight": target.state_dict()["model.embed_tokens.weight"]})
    head.train_on(texts, steps)
    folder.mkdir(parents=True)
    known = torch.zeros(theirs.vocab_size, dtype=torch.bool)
    known[tokens] = True
    save_file({**head.state_dict(), "t2d": known}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
