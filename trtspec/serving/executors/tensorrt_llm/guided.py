"""Guided decoding in TensorRT-LLM's runtime: the vocabulary for its matcher, and the checks of requests.

`GuidedDecoder` (`batch_manager/guidedDecoder.cpp`, 1.0 to 1.2) checks nothing, so a request that it cannot
follow must never reach it:

* A guide that xgrammar refuses raises in a step, and `ExecutorImpl::forwardAsync` then ends every running
  request with the error. So guides are compiled here first, by the xgrammar of NVIDIA's image.
* After an accepted stop token the next mask raises, with the same result. A request goes on after a stop
  token that is not its `end_id`, so there is one stop token, and it is the `end_id` of every guided request.
* The runtime ignores whether the matcher accepts a token. With bad words or `min_tokens` that leave no token,
  the text would silently leave the grammar.
* `execute` raises for logits that are not float32 or float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtspec.serving.executor import Guide, GuideType, Request
from trtspec.serving.executors.validation import Refused
from trtspec.serving.tokenizer import Tokenizer

GUIDE_TYPES = frozenset(GuideType)
"""The types of guides for which `GuidedDecoder::build` has a branch."""

BLS_GUIDE_TYPES = GUIDE_TYPES - {GuideType.STRUCTURAL_TAG}
"""The types of guides that NVIDIA's C++ backend knows, in releases from 1.0 on.

`getGuidedDecodingParamsFromTensors` (`triton_backend/inflight_batcher_llm/src/utils.cc`) maps four names, and
ignores a guide of any other type.
"""

LOGITS_DTYPES = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class GuidedVocabulary:
    """The arguments of `GuidedDecodingConfig`."""

    encoded_vocab: list[str]
    """The tokenizer's own name of each token id. Special tokens have none, so no grammar allows them."""
    tokenizer_str: str
    """The content of `tokenizer.json`."""
    stop_token_id: int
    """The token at which TensorRT-LLM's matcher ends."""


def guided_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> GuidedVocabulary | None:
    """Returns the vocabulary for an engine; None if the tokenizer has no end token."""
    if not tokenizer.end_ids:
        return None
    names = tokenizer.names(vocab_size)
    return GuidedVocabulary(names, tokenizer.document, tokenizer.end_ids[0])


def to_config(trtllm: Any, vocabulary: GuidedVocabulary) -> Any:
    """Returns a `tensorrt_llm.bindings.executor.GuidedDecodingConfig`."""
    return trtllm.GuidedDecodingConfig(
        backend=trtllm.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR,
        encoded_vocab=vocabulary.encoded_vocab,
        tokenizer_str=vocabulary.tokenizer_str,
        stop_token_ids=[vocabulary.stop_token_id],
    )


def to_params(trtllm: Any, guide: Guide) -> Any:
    """Returns a `tensorrt_llm.bindings.executor.GuidedDecodingParams`."""
    kinds = trtllm.GuidedDecodingParams.GuideType
    return trtllm.GuidedDecodingParams(getattr(kinds, guide.guide_type.name), guide.guide or None)


def check_guided(request: Request, stop_token_id: int | None) -> None:
    """Raises `Refused` for options with which the runtime would leave the grammar of a guide, or fail."""
    if request.guide is None:
        return
    if request.end_id != stop_token_id:
        raise Refused(f"A guide needs EndId {stop_token_id}, at which TensorRT-LLM's matcher ends")
    if request.bad_words or request.sampling.min_tokens:
        raise Refused("TensorRT-LLM breaks the grammar if bad words or min_tokens forbid what it allows")
