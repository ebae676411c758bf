"""The writer of the chart, on small renderers of every shape: real Helm must make what they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from charts.writer.conditions import Conditions
from charts.writer.marks import folded, text
from charts.writer.samples import sample
from charts.writer.templates import Writer
from tests import helm
from tests.unit.kubernetes.realized import realized
from trtspec.kubernetes.helm import plain
from trtspec.kubernetes.manifests import dump

Content = dict[str, Any]


class Small(BaseModel):
    kind: Literal["small"] = "small"
    size: int


class Large(BaseModel):
    kind: Literal["large"] = "large"
    room: str | None


class Item(BaseModel):
    key: str
    number: int
    note: str | None


class Inner(BaseModel):
    name: str | None
    share: int | float
    is_loud: bool


class Given(BaseModel):
    title: str
    count: int
    grace_s: int
    inner: Inner | None
    place: Small | Large = Field(discriminator="kind")
    color: Literal["red", "green", "blue"]
    is_open: bool
    labels: dict[str, str]
    others: dict[str, str]
    words: tuple[str, ...]
    items: list[Item]


NAME = ("title",)


def texts(given: Given) -> Content:
    return {
        "plain": given.title,
        "joined": f"100 % of {given.title}-{given.color}, {given.count} times",
        "sum": 2 * given.grace_s + given.count + 5,
        "number": given.count,
        "share": f"{given.inner.share}" if given.inner else "none",
        "braces": "{{ as they are }}",
        "lines": "one\n  two\n",
        f"{given.title}.json": "x" * 2000 + given.title,
        "color": given.color,
        "open": given.is_open,
    }


def choices(given: Given) -> Content:
    made: Content = {"always": 1}
    if given.inner and given.inner.name and not given.is_open:
        made["name"] = given.inner.name
    if given.words or given.items:
        made["any"] = {"of": "both"}
    if isinstance(given.place, Large):
        made["room"] = given.place.room or "none"
    else:
        made["size"] = given.place.size
    if not given.inner:
        made["without"] = [given.color] if given.color == "red" else {"not": "red"}
    made["nothing"] = {} if given.is_open else {"some": [1, {}]}
    return made


def lists(given: Given) -> Content:
    return {
        "words": [*(["first"] if given.is_open else []), *given.words, "last"],
        "named": [{"name": word, "title": given.title} for word in given.words] or None,
        "some": ["first", *(given.words if given.is_open else ())],
        "differ": [{"word": word, **({"open": True} if given.is_open else {})} for word in given.words],
        "once": [{"all": [{"word": word} for word in given.words]}],
        "items": [
            {"key": item.key, "number": item.number + 1, **({"note": item.note} if item.note else {})}
            for item in given.items
        ],
        "arguments": ["--a", "x", *(["--b", "x"] if given.is_open else []), "--c", "x"],
    }


def dicts(given: Given) -> Content:
    return {
        "alone": given.labels,
        "both": {**given.labels, **given.others, "own": given.title},
        "some": {**given.others, "own": "open" if given.is_open else "closed"},
    }


Render = Callable[[Given], Content]


def document(render: Render, given: Given) -> Content:
    found = {key: value for key, value in render(given).items() if value is not None}
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "thing"}, **found}


def template(render: Render, model: type[Any] = Given) -> tuple[Any, Writer, str]:
    samples = sample(model, {NAME: text(NAME)})
    variants = [(1 << number, document(render, given)) for number, given in enumerate(samples.values)]
    writer = Writer(Conditions(samples), {NAME: ".Release.Name"})
    return samples, writer, writer.template("thing", variants)


@pytest.mark.parametrize("render", [texts, choices, lists, dicts])
def test_helm_makes_what_the_renderer_makes(render: Render, tmp_path: Path) -> None:
    samples, writer, made = template(render)
    files = {
        **writer.files,
        "templates/thing.yaml": made,
        "Chart.yaml": "name: x\nversion: 0.1.0\napiVersion: v2\n",
    }
    for name, content in files.items():
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_text(content)
    # Those with everything and with nothing, and some at random.
    count = len(samples.values)
    for number in (0, count // 4, count // 3, count // 2, count - 9, count - 2):
        given = realized(samples.values[number]).model_copy(update={"title": "released"})
        (tmp_path / "values.yaml").write_text(dump(plain(given)))
        words = ("template", "released", tmp_path / "x", "--values", tmp_path / "values.yaml")
        assert helm.objects(helm.run("helm", *words)) == [document(render, given)], made


@pytest.mark.parametrize(
    ("render", "said"),
    [
        (lambda given: {"joined": ",".join(given.words)}, "is joined of a list's items"),
        (lambda given: {"cut": list(given.words[:1])}, "of some items of words alone"),
        (lambda given: {"late": {"own": 1, **given.labels}}, "must come before own"),
        (
            lambda given: {"hidden": {**given.labels, **({"own": 1} if given.is_open else {})}},
            "own is not always there",
        ),
        (
            lambda given: {"some": {**(given.labels if given.is_open else {}), "own": 1}},
            "is not always there",
        ),
        (
            lambda given: {
                "odd": sum(map(bool, (given.is_open, given.words, given.labels, given.others))) % 2
            },
            "hangs on more choices",
        ),
        (lambda given: {"sum": f"{given.count + 1}"}, "a sum in a text has no mark"),
    ],
)
def test_what_no_template_can_say_is_refused(render: Render, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        template(render)


def test_types_that_no_mark_stands_for() -> None:
    class Odd(BaseModel):
        raw: bytes

    class NullOrEmpty(BaseModel):
        words: list[str] | None

    for model, said in ((Odd, "which no mark stands for"), (NullOrEmpty, "may be null and empty")):
        with pytest.raises(TypeError, match=said):
            template(lambda given: {}, model)


def test_what_is_folded_is_alike() -> None:
    assert folded({"a": [1, 1], "b": []}) == {"a": [1, 1], "b": []}
