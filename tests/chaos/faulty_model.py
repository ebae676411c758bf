"""The model of a deployment, whose draft does what a file says; a chaos run serves it as `model.py`.

The file `mode` beside it has one of `MODES`; `told.json` says what the process holds.
"""

import asyncio
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trtspec.serving.executor import Executor, KvReuse, Limits, Listener, Request, Response
from trtspec.serving.triton import engines, model

HERE = Path(__file__).parent
EVERY_S = 0.05
MODES = ("works", "fails", "hangs", "lies")


def load(values: Mapping[str, str], folder: Path) -> engines.EnginePair:
    pair = engines.load(values, folder)
    assert pair.draft is not None
    draft = FaultyDraft(pair.draft)
    threading.Thread(target=_talk, args=(draft, asyncio.get_running_loop()), daemon=True).start()
    return replace(pair, draft=draft)


class FaultyDraft:
    """An engine that works, answers with errors, never answers, or answers with other tokens.

    What it never answers it forgets, so that it hangs as an engine does that is stuck: for good.
    """

    def __init__(self, executor: Executor) -> None:
        self.mode = "works"
        self._executor, self._ids, self._dice = executor, itertools.count(1), random.Random(0)

    @property
    def limits(self) -> Limits:
        return self._executor.limits

    @property
    def kv_tokens(self) -> int | None:
        return self._executor.kv_tokens

    def take_kv_use(self) -> float | None:
        return self._executor.take_kv_use()

    @property
    def kv_reuse(self) -> KvReuse | None:
        return self._executor.kv_reuse

    @property
    def progress(self) -> int:
        return self._executor.progress

    @property
    def failure(self) -> str | None:
        return self._executor.failure

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        if self.mode == "works":
            return self._executor.enqueue_request(request, listener)
        request_id = -next(self._ids)
        answer = Response(request_id, [], is_final=True, error="told to fail")
        if self.mode == "lies":
            wrong = [self._dice.randrange(self.limits.vocab_size) for _ in range(request.max_tokens)]
            answer = Response(request_id, wrong, is_final=True)
        if self.mode != "hangs":
            asyncio.get_running_loop().call_soon(listener, answer)
        return request_id

    def cancel_request(self, request_id: int) -> None:
        if request_id > 0:
            self._executor.cancel_request(request_id)

    def shutdown(self) -> None:
        self._executor.shutdown()


def _talk(draft: FaultyDraft, loop: asyncio.AbstractEventLoop) -> None:
    tasks = 0

    def count() -> None:
        nonlocal tasks
        tasks = len(asyncio.all_tasks(loop))

    while True:
        mode = (HERE / "mode").read_text().strip()
        draft.mode = mode if mode in MODES else draft.mode
        loop.call_soon_threadsafe(count)
        told = {"mode": draft.mode, "tasks": tasks, "at": time.monotonic()}
        (HERE / "told.new").write_text(json.dumps(told))
        (HERE / "told.new").replace(HERE / "told.json")
        time.sleep(EVERY_S)


class TritonPythonModel(model.TritonPythonModel):
    load = staticmethod(load)
