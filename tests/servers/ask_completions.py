"""What SGLang knows of the bodies of completions; run by a Python that has SGLang.

Reads a JSON list of bodies on stdin, and writes as the last line of stdout which keys of each it does not
know, what it reads, and whether what it streams tells token ids.
"""

from __future__ import annotations

import json
import sys

from sglang.srt.entrypoints.openai.protocol import CompletionRequest, CompletionResponseStreamChoice


def main() -> None:
    found = []
    for body in json.load(sys.stdin):
        request = CompletionRequest.model_validate(body)
        unknown = sorted(body.keys() - CompletionRequest.model_fields.keys())
        read = {key: getattr(request, key) for key in ("temperature", "logit_bias", "ignore_eos", "prompt")}
        tells = request.return_token_ids and "token_ids" in CompletionResponseStreamChoice.model_fields
        found.append({"unknown": unknown, "tells_ids": tells, **read})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
