"""The requests of clients, read from Triton's tensors and parameters into plain Python types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy.typing as npt

from trtspec.serving.completion import CompletionRequest
from trtspec.serving.errors import RequestError, ServingError
from trtspec.serving.executor import Guide, GuideType, SamplingConfig
from trtspec.serving.triton.tensors import INPUTS, InputTensor

Values = dict[str, Any]
_LONGEST_FOUND = 80


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """The options of a request for its responses."""

    stream: bool = False
    prefix: str = ""
    """The prompt if the response is to repeat it before the completion; else empty."""
    perf_metrics: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False
    output_ids: bool = False
    sequence_index: bool = False


class UnknownInput(ServingError):
    """The model does not have a tensor, or field of a `generate` body, of that name."""

    def __init__(self, name: str) -> None:
        # Comparing a name of some megabytes would take seconds.
        name = _shortened(name)
        nearest = get_close_matches(name, [known.name for known in INPUTS], n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        super().__init__(f"{name} is not an input of this model{hint}")


def read(
    tensors: Mapping[str, npt.NDArray[Any]], parameters: Mapping[str, Any], timeout_us: int = 0
) -> tuple[CompletionRequest, ResponseOptions]:
    """Returns the request for a completion, and its options for responses.

    `parameters` are the request's parameters. Fields of a `generate` body that are no inputs arrive as such.
    The parameter `timeout` is in microseconds; `timeout_us` is the same if Triton has read it. Parameters
    that begin with `triton_` are Triton's own. Raises `ServingError` for what `INPUTS` does not allow; the
    coordinator checks the ranges of values.

    The default of `max_tokens` is 16, as in Triton's OpenAI front end. The default of
    `exclude_input_in_output` is true: that front end's chat route never sends it and shows all text that it
    gets, and streams of NVIDIA's models do not repeat the prompt either.
    """
    for name in [*tensors, *parameters]:
        if name not in _BY_NAME and name != _TIMEOUT and not name.startswith("triton_"):
            raise UnknownInput(name)
    for name in parameters:
        if name in _BY_NAME:
            raise RequestError(name, "a parameter", f"an input of type {_BY_NAME[name].datatype.value}")
    values = {tensor.name: _value(tensor, tensors.get(tensor.name)) for tensor in INPUTS}

    prompt, token_ids = values["text_input"], values["input_ids"]
    if (prompt is None) == (token_ids is None):
        found = "missing" if prompt is None else "given together with input_ids"
        raise RequestError("text_input", found, "given, or input_ids instead")
    is_excluded = values["exclude_input_in_output"] is not False
    if token_ids is not None and not is_excluded:
        raise RequestError("exclude_input_in_output", "false", "true or left out together with input_ids")
    completion = CompletionRequest(
        prompt=prompt,
        prompt_token_ids=token_ids,
        num_draft_tokens=values["num_draft_tokens"],
        stop=_words(values["stop_words"]),
        stop_token_ids=tuple(values["stop_token_ids"] or ()),
        include_stop=bool(values["include_stop_str_in_output"]),
        skip_special_tokens=values["skip_special_tokens"] is not False,
        bad_words=_words(values["bad_words"]),
        # Without temperature, top-k and top-p they are greedy.
        sampling=SamplingConfig(**{option.name: values[option.name] for option in fields(SamplingConfig)}),
        end_id=values["end_id"],
        add_special_tokens=values["add_special_tokens"] is not False,
        embedding_bias=_embedding_bias(values),
        return_log_probs=bool(values["return_log_probs"]),
        guide=read_guide(values["guided_decoding_guide_type"] or "", values["guided_decoding_guide"] or ""),
        tenant=values["tenant"] or "",
        user=values["user"] or "",
        timeout_s=_timeout_s(parameters.get(_TIMEOUT), timeout_us),
        **{name: values[name] for name in _HAVE_DEFAULTS if values[name] is not None},
    )
    options = ResponseOptions(
        stream=bool(values["stream"]),
        prefix="" if is_excluded else prompt,
        perf_metrics=bool(values["return_perf_metrics"]),
        num_input_tokens=bool(values["return_num_input_tokens"]),
        num_output_tokens=bool(values["return_num_output_tokens"]),
        output_ids=bool(values["return_output_ids"]),
        sequence_index=completion.num_return_sequences > 1,
    )
    return completion, options


def explain(error: RequestError) -> str:
    """Returns the error with the tensor's name and a shortened value."""
    name = _TENSOR_OF_FIELD.get(error.field, error.field)
    return f"{name} is {_shortened(str(error.found))}; it must be {error.allowed}"


_TIMEOUT = "timeout"
_HAVE_DEFAULTS = ("max_tokens", "num_return_sequences", "top_log_probs", "prompt_log_probs")
_BY_NAME = {tensor.name: tensor for tensor in INPUTS}
_TENSOR_OF_FIELD = {
    "prompt": "text_input",
    "prompt_token_ids": "input_ids",
    "stop": "stop_words",
    "guide": "guided_decoding_guide",
    "guide_type": "guided_decoding_guide_type",
}


def _timeout_s(parameter: Any, timeout_us: int) -> float | None:
    """Returns the timeout in seconds; None for 0, which in Triton means none of its own."""
    if parameter is not None and (not isinstance(parameter, int) or isinstance(parameter, bool)):
        raise RequestError(_TIMEOUT, _said(parameter), "a whole number of microseconds")
    limit_us = timeout_us if parameter is None else parameter
    return limit_us / 1e6 if limit_us else None


def _words(given: list[str] | None) -> tuple[str, ...]:
    """Returns the words that are not empty: the curl line in NVIDIA's README has an empty one for none."""
    return tuple(word for word in given or () if word)


def _embedding_bias(values: Values) -> tuple[tuple[str | int, float], ...]:
    """Returns the biased words and then the biased token ids, with their weights, which have this order."""
    biased = [*(values["embedding_bias_words"] or []), *(values["embedding_bias_ids"] or [])]
    weights = values["embedding_bias_weights"] or []
    if len(biased) != len(weights):
        allowed = f"one for each of the {len(biased)} embedding_bias_words and embedding_bias_ids"
        raise RequestError("embedding_bias_weights", f"{len(weights)} numbers", allowed)
    return tuple(zip(biased, weights, strict=True))


def _value(tensor: InputTensor, array: npt.NDArray[Any] | None) -> Any:
    """Returns a Python scalar, a list if the tensor is one, or None without the tensor."""
    if array is None:
        return None
    items = [_text(tensor, item) for item in array.reshape(-1).tolist()]
    if tensor.only and any(item not in tensor.only for item in items):
        found = next(item for item in items if item not in tensor.only)
        allowed = f"{_said(tensor.only[0])}, since anything else is not implemented"
        raise RequestError(tensor.name, _said(found), allowed)
    if tensor.is_list:
        return items
    if array.shape != (1, 1):
        raise RequestError(tensor.name, f"of shape {list(array.shape)}", "of shape [1, 1]")
    return items[0]


def _text(tensor: InputTensor, item: Any) -> Any:
    if not isinstance(item, bytes):
        return item
    try:
        return item.decode()
    except UnicodeDecodeError as error:
        found = f"not UTF-8 at byte {error.start}"
        raise RequestError(tensor.name, found, "valid UTF-8") from None


def _said(value: object) -> str:
    """Returns a value as a client would write it in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_FOUND else text[: _LONGEST_FOUND - 3] + "..."


def read_guide(guide_type: str, guide: str) -> Guide | None:
    """Returns the guide; None if both are empty, as some clients send them. Raises `RequestError`.

    The types are those of NVIDIA's `getGuidedDecodingParamsFromTensors`, which silently ignores an unknown
    one (`inflight_batcher_llm/src/utils.cc`).
    """
    if not guide_type:
        if guide:
            allowed = "left out without guided_decoding_guide_type"
            raise RequestError("guided_decoding_guide", "given without a type", allowed)
        return None
    types = [known.value for known in GuideType]
    if guide_type not in types:
        raise RequestError("guided_decoding_guide_type", f'"{guide_type}"', f"one of {', '.join(types)}")
    return Guide(GuideType(guide_type), guide)
