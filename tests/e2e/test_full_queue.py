"""A short queue: who finds no place hears so at once, and the others get their texts."""

from __future__ import annotations

import queue
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc

from tests.e2e.conftest import RECIPE, TINY, TRTSPEC, Deploy, Deployer, wait_until

CLIENTS, TAKEN_IN = 64, 16 + 4
PROMPT, TOKENS = "def insort(items, item):\n", 150
SAID = "16 completions are at work and 4 wait already; try again later"


@pytest.fixture(scope="module")
def busy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    folder = tmp_path_factory.mktemp("queue")
    text = RECIPE.read_text()
    for role in ("target", "draft"):
        text = text.replace(f"./{role}", str(TINY / role))
    (folder / "recipe.yaml").write_text(f"{text}serving: {{max_queue_size: 4}}\n")
    command = [TRTSPEC, "build", folder / "recipe.yaml", "--output", folder / "build"]
    subprocess.run(command, check=True, capture_output=True)
    deployer = Deployer(folder)
    try:
        deploy = deployer(folder / "build", recipe=folder / "recipe.yaml")
        wait_until(lambda: deploy.is_ready, "the server ready")
        yield deploy
    finally:
        deployer.end_all()


Outcome = tuple[bool, str, float]
"""Whether it was served, its text or error, and the seconds that it took."""


def over_http(server: Deploy, number: int) -> Outcome:
    begin = time.monotonic()
    status, answer = server.post({"text_input": PROMPT, "max_tokens": TOKENS, "end_id": -1})
    seconds = time.monotonic() - begin
    if status == 200:
        return True, answer["text_output"], seconds
    assert status == 503
    return False, answer["error"], seconds


def streamed_over_http(server: Deploy, number: int) -> Outcome:
    begin = time.monotonic()
    body = {"text_input": PROMPT, "max_tokens": TOKENS, "end_id": -1, "stream": True}
    status, events = server.post(body, "generate_stream")
    seconds = time.monotonic() - begin
    if status == 200:
        return True, "".join(event["text_output"] for event in events), seconds
    assert status == 503
    return False, events[0]["error"], seconds


def over_grpc(server: Deploy, number: int) -> Outcome:
    heard: queue.Queue = queue.Queue()
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
    client = grpc.InferenceServerClient(server.grpc_url)
    begin = time.monotonic()
    # Without the header Triton tells of an error in words alone.
    client.start_stream(
        lambda result, error: heard.put((result, error)), headers={"triton_grpc_error": "true"}
    )
    client.async_stream_infer(server.model, inputs)
    result, error = heard.get(timeout=90)
    seconds = time.monotonic() - begin
    client.stop_stream(cancel_requests=error is not None)
    client.close()
    if error is None:
        return True, result.as_numpy("text_output").item().decode(), seconds
    assert error.status() == "StatusCode.UNAVAILABLE"
    return False, error.message(), seconds


@pytest.mark.parametrize("ask", [over_http, streamed_over_http, over_grpc])
def test_a_full_queue_refuses_at_once(
    busy_server: Deploy, ask: Callable[[Deploy, int], Outcome], until: Callable
) -> None:
    expected = busy_server.generate(PROMPT, max_tokens=TOKENS, end_id=-1, num_draft_tokens=0)
    refused_before = busy_server.metric("num_requests_refused")
    with ThreadPoolExecutor(CLIENTS) as pool:
        outcomes = list(pool.map(lambda number: ask(busy_server, number), range(CLIENTS)))

    served = [outcome for outcome in outcomes if outcome[0]]
    refused = [outcome for outcome in outcomes if not outcome[0]]
    assert len(served) >= TAKEN_IN
    assert {text for _, text, _ in served} == {expected}
    assert refused
    assert {said for _, said, _ in refused} == {SAID}
    # All have come before the first place became free.
    assert max(seconds for _, _, seconds in refused) < min(seconds for _, _, seconds in served)
    until(lambda: busy_server.metric("num_requests_refused") - refused_before == len(refused), "the metric")
    for gauge in ("num_requests_waiting", "num_requests_running"):
        until(lambda gauge=gauge: busy_server.metric(gauge) == 0, f"{gauge} at 0")
