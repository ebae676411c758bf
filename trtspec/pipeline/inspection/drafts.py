"""Judges candidates as drafts of one target, by every backend's own rules, and ranks those that fit.

No weights are read. A pair is judged as that of a recipe is (`inspect_pair`), once for each backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trtspec.backends.backend import Backend
from trtspec.backends.table import backends, loads
from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.findings import Finding, errors
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.forecast.outlook import Best, ForecastPair
from trtspec.forecast.roofline import BatchLoad, Network
from trtspec.forecast.speedup import speedup
from trtspec.methods.method import HETEROGENEOUS
from trtspec.models.candidates import DraftCandidate
from trtspec.models.download import fetch, local_folder
from trtspec.models.heads.head import MAPPING, HeadDescription
from trtspec.models.heads.reading import is_head, read_head
from trtspec.models.source import ITEM_SIZE, Source
from trtspec.models.tokenizer import TokenizerTraits, read_tokenizer
from trtspec.pipeline.inspection.pair import inspect_pair
from trtspec.pipeline.plan.speed import CONTEXT, ROUND_S, chip, network_of
from trtspec.recipe import gpus
from trtspec.recipe.edit import flow

ACCEPTANCES = (0.6, 0.8)
"""The acceptances between which good pairs are, at which the gain is forecast."""
_LONGEST = 8
_THREADS = 4  # A look mostly waits for the Hub.
_DRAFT_MODEL = "draft_model"
_TRANSLATED: Mapping[str, Any] = {"kind": _DRAFT_MODEL, HETEROGENEOUS: True}
_LESS_ALIKE = ("verifier", "chat template", "special tokens", "token ids", "merges", "tokenizer")
"""The subjects of findings that make a pair less likely to agree."""


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A candidate, and what is known of it as a draft of the target."""

    candidate: DraftCandidate
    method: str = ""
    translates: bool = False
    """True if the draft has a vocabulary of its own, so that its tokens are translated."""
    form: str = ""
    """The format of a head; `transformers` for a model."""
    parameters: int = 0
    context: int | None = None
    """The longest text that it was made for, in tokens; None for a head that does not say."""
    runs: tuple[str, ...] = ()
    """The backends that run the pair; none if it does not fit."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """The reason of each other backend."""
    notes: tuple[Finding, ...] = ()
    """The differences that change no text."""
    gain: tuple[Best, ...] = ()
    """The forecast gain at each of `ACCEPTANCES`; empty where no data sheet or family tells it."""
    problem: str = ""
    """The reason why it does not fit, or could not be looked at."""
    is_unseen: bool = False
    """True if this machine lacks it, and the Hub was not asked."""

    @property
    def recipe(self) -> dict[str, Any]:
        """Returns the sections of a recipe that name this draft."""
        revision = {"revision": self.candidate.revision} if self.candidate.revision else {}
        method = _TRANSLATED if self.translates else self.method or self.candidate.method
        return {"draft": {"model": self.candidate.name, **revision}, "speculation": {"method": method}}

    @property
    def lines(self) -> list[str]:
        """Returns the lines of a recipe that name this draft."""
        return [f"{key}: {flow(value)}" for key, value in self.recipe.items()]

    @property
    def rank(self) -> tuple[bool, int, float, int]:
        """Orders drafts that fit: alike ones first, then by their gain, then by how many use them."""
        doubts = sum(note.subject in _LESS_ALIKE for note in self.notes)
        gain = sum(best.speedup for best in self.gain)
        return self.translates, doubts, -gain, -self.candidate.downloads

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["gain"] = dict(zip((f"{each:.0%}" for each in ACCEPTANCES), found["gain"], strict=False))
        return {**found.pop("candidate"), **found, "recipe": self.recipe}


class DraftTarget:
    """The target for which candidates are judged: `location` as in a recipe, its folder read once."""

    def __init__(self, location: str, folder: Path, gpu: str, streams: int) -> None:
        self.location, self.gpu, self._streams, self._folder = location, gpu, streams, folder
        self._read = {each.name: _attempt(each, folder) for each in backends()}
        if not (read := [found for found in self._read.values() if isinstance(found, Source)]):
            raise next(found for found in self._read.values() if isinstance(found, TrtspecError))
        self.source, self._tokenizer = read[0], read_tokenizer(folder)

    def judge_all(
        self, candidates: Iterable[DraftCandidate], watch: Progress, *, asks: bool
    ) -> list[JudgedDraft]:
        """Looks at each candidate, the best first; those that do not fit come last."""
        chosen = list(candidates)
        with watch(f"look at {len(chosen)} drafts", None), ThreadPoolExecutor(_THREADS) as pool:
            judged = list(pool.map(lambda candidate: self._look(candidate, asks=asks), chosen))
        return sorted(judged, key=lambda one: (bool(one.problem), one.rank))

    def _look(self, candidate: DraftCandidate, *, asks: bool) -> JudgedDraft:
        try:
            if asks:
                folder = fetch(candidate.name, candidate.revision, weights=False)
            else:
                is_of_target = candidate.method != _DRAFT_MODEL
                folder = local_folder(candidate.name, candidate.revision, is_head=is_of_target)
            return self.judge(candidate, folder)
        except TrtspecError as error:
            is_unseen = not asks and isinstance(error, UnavailableError)
            return JudgedDraft(candidate, problem=error.problem, is_unseen=is_unseen)

    def judge(self, candidate: DraftCandidate, folder: Path) -> JudgedDraft:
        """Judges what is in a folder; raises ModelError or TensorError for one that cannot be read."""
        head = read_head(folder) if is_head(folder) else None
        tokenizer = None if head else read_tokenizer(folder, self._tokenizer)
        method: Any = head.method if head else _DRAFT_MODEL
        found = self._by_backend(candidate, folder, method, head, tokenizer)
        translates = False
        if not head and all(map(errors, found.values())):
            other = self._by_backend(candidate, folder, _TRANSLATED, head, tokenizer)
            translates = not all(map(errors, other.values()))
            found = other if translates else found
        tried = () if head else (_attempt(each, folder) for each in backends())
        read = next((one for one in tried if isinstance(one, Source)), None)
        refusals = {name: errors(findings)[0].problem for name, findings in found.items() if errors(findings)}
        runs = tuple(name for name in found if name not in refusals)
        return JudgedDraft(
            candidate,
            head.method if head else _DRAFT_MODEL,
            translates,
            head.form if head else "transformers",
            head.parameters if head else read.parameters if read else 0,
            head.layer.get("max_position_embeddings") if head else read.served_length if read else None,
            runs,
            refusals,
            tuple(found[runs[0]]) if runs else (),
            self._gain(head, read) if runs else (),
            "" if runs else Counter(refusals.values()).most_common(1)[0][0],
        )

    def _by_backend(
        self,
        candidate: DraftCandidate,
        folder: Path,
        method: Any,
        head: HeadDescription | None,
        tokenizer: TokenizerTraits | None,
    ) -> dict[str, list[Finding]]:
        """Returns each backend's findings of the pair."""
        tokenizers = {Role.TARGET: self._tokenizer} | ({Role.DRAFT: tokenizer} if tokenizer else {})
        found = dict[str, list[Finding]]()
        for backend in backends():
            recipe = {
                "name": "found",
                "target": {"model": self.location},
                "draft": {"model": candidate.name},
                "speculation": {"method": method},
                "engine": {"backend": backend.name},
                "hardware": {"gpu": self.gpu},
            }
            text = "".join(f"{key}: {flow(value)}\n" for key, value in recipe.items())
            try:
                loaded = loads(text.encode(), Path.cwd() / "recipe.yaml")
                if isinstance(target := self._read[backend.name], TrtspecError):
                    raise target
                sources = {Role.TARGET: target} | ({} if head else {Role.DRAFT: backend.read(folder)})
                found[backend.name] = inspect_pair(
                    loaded, backend, sources, {}, head, tokenizers=tokenizers
                ).findings
            except TrtspecError as error:
                found[backend.name] = list(error.findings)
        return found

    def _gain(self, head: HeadDescription | None, draft: Source | None) -> tuple[Best, ...]:
        if self.gpu == gpus.NONE:
            return ()
        try:
            target = network_of(self.source, _options(self.source))
            other = _network(head) if head else network_of(draft, _options(draft)) if draft else None
        except TrtspecError:
            return ()
        pair = ForecastPair(
            target,
            other,
            chip(gpus.GPUS[self.gpu]),
            ROUND_S["in_process"],
            head.longest or _LONGEST if head else _LONGEST,
        )
        load = BatchLoad(self._streams, CONTEXT)
        at_once = bool(head and head.longest)
        return tuple(_best(pair, load, each, at_once=at_once) for each in ACCEPTANCES)


def _best(pair: ForecastPair, load: BatchLoad, acceptance: float, *, at_once: bool) -> Best:
    """Returns the best length; a head that proposes all tokens `at_once` costs one step whatever it is."""
    found = [Best(0, 1.0)]
    for length in range(1, pair.longest + 1):
        costs = pair.costs(load, length)
        costs = replace(costs, draft=costs.draft / length) if at_once else costs
        found.append(Best(length, speedup([acceptance] * length, costs)))
    return max(found, key=lambda one: one.speedup)


def _options(source: Source) -> ConvertOptions:
    return ConvertOptions(source.dtype, fp8=source.scheme is not None)


def _network(head: HeadDescription) -> Network:
    """Returns what a step of a head reads and computes, with the output layer that it may share."""
    names = [name for name in head.tensors if name not in (*MAPPING, "embed_tokens.weight")]
    stored = sum(head.tensors[name].elements * ITEM_SIZE[head.tensors[name].dtype] for name in names)
    if "lm_head.weight" not in head.tensors:
        stored += 2 * head.vocab_size * head.hidden_size
    layer = head.layer
    layers = layer.get("num_hidden_layers", 0)
    size = layer.get("head_dim", 0)
    return Network(
        weight_bytes=stored,
        kv_bytes=2 * layers * layer.get("num_key_value_heads", 0) * size * 2,
        flops_8=0,
        flops_16=stored,
        attention_flops=4 * layers * layer.get("num_attention_heads", 0) * size,
        layers=max(layers, 1),
        row_bytes=2 * head.hidden_size,
    )


def _attempt(backend: Backend, folder: Path) -> Source | TrtspecError:
    try:
        return backend.read(folder)
    except TrtspecError as error:
        return error
