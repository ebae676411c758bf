"""The API's description, made of the models that read the bodies: `/openapi.json`, and `/docs` for people."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from trtspec.gateway.openai.responses import ResponsesBody
from trtspec.gateway.openai.schema import ChatRequest, CompletionBody, DetokenizeBody, TokenizeBody

_POSTS = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation"),
    "/v1/completions": (CompletionBody, "Continue a prompt"),
    "/v1/responses": (ResponsesBody, "Answer, in the form of OpenAI's Responses API"),
    "/tokenize": (TokenizeBody, "Return the tokens of a prompt or a conversation"),
    "/detokenize": (DetokenizeBody, "Return the text of tokens"),
}
_GETS = {
    "/v1/models": "List the models",
    "/v1/models/{name}": "Show a model",
    "/health": "Answer 200 if the model is ready, else 503",
    "/version": "Show the version",
    "/metrics": "Show the API's own metrics, in Prometheus's text format",
}
_STYLE = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}code{font-size:.9em}"
_STYLE += "table{border-collapse:collapse}td{border-top:1px solid #ccc;padding:.2em 1em .2em 0}"
_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@cache
def description() -> dict[str, Any]:
    """Returns the document of OpenAPI 3.1."""
    kinds = [(kind, "validation") for kind, _ in _POSTS.values()]
    _, made = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    replies = {"200": {"description": "the answer"}, "4XX": {"description": "OpenAI's form of an error"}}
    paths: dict[str, Any] = {}
    for path, (kind, summary) in _POSTS.items():
        schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": replies}}
    for path, summary in _GETS.items():
        paths[path] = {"get": {"summary": summary, "responses": {"200": replies["200"]}}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"]["get"]["parameters"] = [name]
    key = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "trtspec", "version": version("trtspec")},
        "paths": paths,
        "components": {"schemas": made["$defs"], "securitySchemes": key},
        "security": [{}, {"key": []}],
    }


def as_json(_: Request) -> Response:
    return JSONResponse(description())


def as_page(_: Request) -> Response:
    """Answers with a page that loads nothing else, and runs no script."""
    schemas = description()["components"]["schemas"]
    parts = [f"<title>trtspec</title><style>{_STYLE}</style><h1>OpenAI's API of trtspec</h1>"]
    parts.append('<p><a href="openapi.json">openapi.json</a> has every field with its type and bounds.</p>')
    for path, methods in description()["paths"].items():
        for method, said in methods.items():
            parts.append(f"<h2><code>{method.upper()} {path}</code></h2><p>{escape(said['summary'])}.</p>")
        if path in _POSTS:
            fields = schemas[_POSTS[path][0].__name__]["properties"].items()
            rows = (f"<tr><td><code>{name}</code><td>{escape(_kind(field))}" for name, field in fields)
            parts.append(f"<table>{''.join(rows)}</table>")
    return HTMLResponse(f"<!doctype html><meta charset=utf-8>{''.join(parts)}", headers=_POLICY)


def _kind(field: dict[str, Any]) -> str:
    """Returns the type of a field in a few words."""
    if choices := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(_kind(one) for one in choices if one.get("type") != "null")
    if "enum" in field or "const" in field:
        return ", ".join(map(repr, field.get("enum", [field.get("const")])))
    if "items" in field:
        return f"list of {_kind(field['items'])}"
    return str(field.get("type") or field.get("$ref", "any").rpartition("/")[2])
