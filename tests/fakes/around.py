"""An executor around another one, for those that change a thing and leave the rest."""

from __future__ import annotations

from trtspec.serving.executor import Executor, KvReuse, Limits, Listener, Request


class Around:
    """Honours the contract with what `inner` does; classes beneath change what they are about."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    @property
    def kv_tokens(self) -> int | None:
        return self._inner.kv_tokens

    def take_kv_use(self) -> float | None:
        return self._inner.take_kv_use()

    @property
    def kv_reuse(self) -> KvReuse | None:
        return self._inner.kv_reuse

    @property
    def progress(self) -> int:
        return self._inner.progress

    @property
    def failure(self) -> str | None:
        return self._inner.failure

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        return self._inner.enqueue_request(request, listener)

    def cancel_request(self, request_id: int) -> None:
        self._inner.cancel_request(request_id)

    def shutdown(self) -> None:
        self._inner.shutdown()
