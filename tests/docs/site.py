"""A hook of MkDocs: files of the repository that the pages link to are part of the site; so is the version.

On GitHub a page of `docs/` links to `../recipes/README.md` as it is. A site has `docs/` alone, so such a file
comes to `repository/`, with what it links to in turn, and the links are led there. The search finds no notes
of measurements.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = "docs"
BESIDE = "repository"
"""The folder of the site that has files from outside of `docs/`."""
NOTES = f"{BESIDE}/tests/"
"""What people look for is not there."""
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_config(config: Any) -> None:
    """Names the version, and the repository that this clone is of."""
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    config.copyright = f"trtspec {version}"
    if url := _repository(os.environ):
        config.repo_url, config.repo_name = url, url.split("/", 3)[-1]


def _repository(environment: Mapping[str, str]) -> str | None:
    """Returns the address that GitHub or GitLab names, or that of git's `origin`."""
    if "GITHUB_REPOSITORY" in environment:
        return f"{environment['GITHUB_SERVER_URL']}/{environment['GITHUB_REPOSITORY']}"
    if "CI_PROJECT_URL" in environment:
        return environment["CI_PROJECT_URL"]
    words = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    origin = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    found = re.fullmatch(r"(?:https://|git@|ssh://git@)(?:[^@/]*@)?([\w.-]+)[:/](.+?)(?:\.git)?", origin)
    return f"https://{found[1]}/{found[2]}" if found else None


def on_files(files: Any, config: Any) -> Any:
    """Adds each file outside of `docs/` that a page, or such a file, links to."""
    from mkdocs.structure.files import File

    pages = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    for path in sorted(_linked(pages)):
        text = (ROOT / path).read_bytes()
        files.append(File.generated(config, f"{BESIDE}/{path}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Leads the links of a page to where the site has what they name."""
    inside = page.file.src_uri
    if inside.startswith(NOTES):
        page.meta["search"] = {"exclude": True}
    path = inside.removeprefix(f"{BESIDE}/") if inside.startswith(f"{BESIDE}/") else f"{DOCS}/{inside}"

    def led(link: re.Match[str]) -> str:
        found = _target(path, link[2])
        if found is None:
            return link[0]
        there = found.removeprefix(f"{DOCS}/") if found.startswith(f"{DOCS}/") else f"{BESIDE}/{found}"
        return f"{link[1]}{posixpath.relpath(there, posixpath.dirname(inside) or '.')}{link[3]}"

    return _LINK.sub(led, markdown)


def _linked(pages: list[str]) -> set[str]:
    """The files outside of `docs/` that these pages lead to, through each other too."""
    found: set[str] = set()
    while pages:
        new = {target for page in pages for target in _targets(page) if not target.startswith(f"{DOCS}/")}
        pages = [path for path in new - found if path.endswith(".md")]
        found |= new
    return found


def _targets(path: str) -> Iterator[str]:
    for link in _LINK.finditer((ROOT / path).read_text(encoding="utf-8")):
        if (target := _target(path, link[2])) is not None:
            yield target


def _target(path: str, link: str) -> str | None:
    """The file that a link of the file `path` names, by its path; None for another address."""
    if ":" in link:
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if (ROOT / found).is_dir():
        found = f"{found}/README.md"
    return found if (ROOT / found).is_file() else None
