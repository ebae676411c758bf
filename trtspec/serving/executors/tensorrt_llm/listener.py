"""The thread that waits for an engine's responses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trtspec.serving.executors.tensorrt_llm.bindings import one_line


class ResponseThread:
    """Waits for an engine's responses on a thread, since `await_responses` blocks without the GIL.

    `deliver` gets all responses of an iteration as one list. `fail` gets one line of an error after which
    there will be no more responses. Both are called on the thread.
    """

    def __init__(
        self, engine: Any, deliver: Callable[[list[Any]], None], fail: Callable[[str], None]
    ) -> None:
        self._engine, self._deliver, self._fail = engine, deliver, fail
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="trtllm-responses", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Shuts the engine down, which wakes the thread, and waits for the end of the thread."""
        self._is_closing = True
        self._engine.shutdown()
        self._thread.join()
        self._engine = None

    def _run(self) -> None:
        while not self._is_closing:
            try:
                responses = self._engine.await_responses()
            except Exception as error:  # After any error there are no more responses.
                if not self._is_closing:
                    self._fail(one_line(error))
                return
            if responses:
                self._deliver(responses)
