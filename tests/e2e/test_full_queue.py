"""A short queue: who finds no place hears so at once, and the others get their texts."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from tests.e2e.conftest import DEADLINE_S, RECIPE, TINY, TRTSPEC, Deploy, Deployer, Until, wait_until

RUNNING, WAITING, REFUSED = 16, 4, 44
ATTEMPTS = 3
PROMPT, TOKENS = "def insort(items, item):\n", 900
SAID = "16 completions are running and 4 wait already; try again later"


@pytest.fixture(scope="module")
def busy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    folder = tmp_path_factory.mktemp("queue")
    text = RECIPE.read_text()
    for role in ("target", "draft"):
        text = text.replace(f"./{role}", str(TINY / role))
    (folder / "recipe.yaml").write_text(f"{text}serving: {{max_queue_size: 4}}\n")
    command: list[str | Path] = [TRTSPEC, "build", folder / "recipe.yaml", "--output", folder / "build"]
    subprocess.run(command, check=True, capture_output=True)
    deployer = Deployer(folder)
    try:
        deploy = deployer(folder / "build", recipe=folder / "recipe.yaml")
        wait_until(lambda: deploy.is_ready, "the server ready")
        yield deploy
    finally:
        deployer.end_all()


Outcome = tuple[bool, str]
"""Whether it was served, and its text or error."""


def over_http(server: Deploy) -> Outcome:
    status, answer = server.post({"text_input": PROMPT, "max_tokens": TOKENS, "end_id": -1})
    if status == 200:
        return True, answer["text_output"]
    assert status == 503
    return False, answer["error"]


def streamed_over_http(server: Deploy) -> Outcome:
    body = {"text_input": PROMPT, "max_tokens": TOKENS, "end_id": -1, "stream": True}
    status, events = server.post(body, "generate_stream")
    if status == 200:
        return True, "".join(event["text_output"] for event in events)
    assert status == 503
    return False, events[0]["error"]


def over_grpc(server: Deploy) -> Outcome:
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    values = {
        "text_input": np.array([[PROMPT.encode()]], dtype=object),
        "max_tokens": np.array([[TOKENS]], dtype=np.int32),
        "end_id": np.array([[-1]], dtype=np.int32),
    }
    kinds = {"text_input": "BYTES", "max_tokens": "INT32", "end_id": "INT32"}
    inputs = []
    for name, array in values.items():
        inputs.append(grpc.InferInput(name, array.shape, kinds[name]))
        inputs[-1].set_data_from_numpy(array)
    # A connection of its own, as a client in another process has.
    client = grpc.InferenceServerClient(server.grpc_url, channel_args=[("grpc.use_local_subchannel_pool", 1)])
    client.start_stream(lambda result, error: heard.put((result, error)))
    client.async_stream_infer(server.model, inputs)
    result, error = heard.get(timeout=DEADLINE_S)
    client.stop_stream(cancel_requests=error is not None)
    client.close()
    if error is None:
        return True, result.as_numpy("text_output").item().decode()
    return False, error.message()


@pytest.mark.parametrize(
    "ask",
    [pytest.param(ask, marks=pytest.mark.sweep) for ask in (over_http, streamed_over_http, over_grpc)],
)
def test_a_full_queue_refuses_at_once(
    busy_server: Deploy, ask: Callable[[Deploy], Outcome], until: Until
) -> None:
    def at_work() -> tuple[float, float]:
        return busy_server.metric("num_requests_running"), busy_server.metric("num_requests_waiting")

    def taken(asked: Sequence[Future[Outcome]]) -> bool:
        return at_work() == (RUNNING, WAITING) or any(one.done() for one in asked)

    def refusals() -> float:
        return busy_server.metric("request_errors", kind="refused")

    expected = busy_server.generate(PROMPT, max_tokens=TOKENS, end_id=-1, num_draft_tokens=0)
    before, heard = refusals(), 0
    # Clients that a busy machine held up may come when a place is free again, and be served: then it is tried
    # again. A server that takes in one more than it says serves one of them each time.
    for _ in range(ATTEMPTS):
        with ThreadPoolExecutor(RUNNING + WAITING + REFUSED) as pool:
            taken_in = [pool.submit(ask, busy_server) for _ in range(RUNNING + WAITING)]
            # On a busy machine the first may be served before the last has come: then places are free.
            until(partial(taken, taken_in), "every place taken, or an answer")
            is_full = not any(one.done() for one in taken_in)
            late = list(pool.map(ask, [busy_server] * REFUSED))
            served = [future.result() for future in taken_in]
        assert served == [(True, expected)] * (RUNNING + WAITING)
        assert set(late) <= {(False, SAID), (True, expected)}
        heard += late.count((False, SAID))
        until(lambda: at_work() == (0, 0), "no request at work")
        if is_full and late == [(False, SAID)] * REFUSED:
            break
    else:
        pytest.fail(f"{late.count((True, expected))} clients were served beside {RUNNING + WAITING}")

    until(lambda: refusals() - before == heard, "the metric")
