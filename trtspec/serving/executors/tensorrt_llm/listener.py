"""The thread that waits for an engine's responses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trtspec.serving.executors.tensorrt_llm.bindings import one_line


class ResponseThread:
    """`await_responses` blocks without the interpreter's lock, so it gets a thread, and no timeout.

    It returns all responses of an iteration at once; `heard` gets them as one list. `failed` gets a line of
    text when the engine gives none any more. Both are called on the thread.
    """

    def __init__(
        self, engine: Any, heard: Callable[[list[Any]], None], failed: Callable[[str], None]
    ) -> None:
        self._engine, self._heard, self._failed = engine, heard, failed
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="trtllm-responses", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Shuts the engine down, which wakes the thread, waits for its end, and lets go of the engine."""
        self._is_closing = True
        self._engine.shutdown()
        self._thread.join()
        self._engine = None

    def _run(self) -> None:
        while not self._is_closing:
            try:
                responses = self._engine.await_responses()
            except Exception as error:  # Whatever it is, there will be no more responses.
                if not self._is_closing:
                    self._failed(one_line(error))
                return
            if responses:
                self._heard(responses)
