"""The API's description, judged by JSON Schema's own metaschema, and by the routes of the application."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from tests.unit.gateway.openai.test_app import CHAT
from trtspec.gateway.openai.app import ModelText, make_app
from trtspec.gateway.openai.keys import Keys
from trtspec.gateway.openai.upstream import Upstream
from trtspec.gateway.origins import Origins
from trtspec.gateway.refusals import Refusals


@pytest.fixture
def client() -> TestClient:
    refusals = Refusals("openai", "m")
    upstream, origins = Upstream("m", refusals), Origins("127.0.0.1")
    app = make_app(upstream, ModelText(), None, Keys(["k"]), refusals, max_requests=1, origins=origins)
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.fixture
def said(client: TestClient) -> dict[str, Any]:
    answer = client.get("/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_every_schema_is_one_and_every_reference_has_its_end(said: dict[str, Any]) -> None:
    schemas = said["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    refers = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(said)))
    assert refers <= schemas.keys()


def test_a_body_that_the_api_takes_is_described_and_one_that_it_refuses_is_not(said: dict[str, Any]) -> None:
    whole = {"$ref": "#/components/schemas/ChatRequest", "components": said["components"]}
    judge, body = Draft202012Validator(whole), json.loads(CHAT)
    assert judge.is_valid(body)
    assert not judge.is_valid({**body, "temperatur": 1})
    assert not judge.is_valid({"model": "m"})


def test_every_route_is_described(client: TestClient, said: dict[str, Any]) -> None:
    """A path that no route had would be 404, and one of another method 405."""
    for path, methods in said["paths"].items():
        for method in methods:
            answer = client.request(method, path.replace("{name}", "m"))
            assert answer.status_code not in (404, 405), path
    served = {route.path for route in client.app._app.routes}  # type: ignore[attr-defined]
    others = {"/openapi.json", "/docs", "/ping", "/v1/responses/{rest:path}"}
    assert {path.replace(":path", "") for path in served - others} == said["paths"].keys()


def test_the_page_loads_nothing_and_names_every_route(client: TestClient, said: dict[str, Any]) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"<script|<link|<img|https?://|//", answer.text)
    assert all(f" {path}</code>" in answer.text for path in said["paths"])
    assert "<code>num_draft_tokens</code>" in answer.text


def test_no_web_page_elsewhere_may_read_it(client: TestClient) -> None:
    for path in ("/openapi.json", "/docs"):
        assert client.get(path, headers={"Origin": "https://example.com"}).status_code == 403
