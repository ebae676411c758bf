"""The guide in a request's tensors, with the types of NVIDIA's `getGuidedDecodingParamsFromTensors`
(`inflight_batcher_llm/src/utils.cc`).
"""

from __future__ import annotations

from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Guide, GuideType


def read_guide(guide_type: str, guide: str) -> Guide | None:
    """Returns the guide; None if both are empty, as some clients send them. Raises `RequestError`.

    NVIDIA's C++ backend silently ignores an unknown type.
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
