"""Hooks of MkDocs: they make the pages of docs/, which are written to be read as files, a site.

A link to a file outside docs/ leads to a page with its text, and the README of each example becomes a page.  In the
navigation, `FOLDER/*` stands for all pages of a folder that are not named beside it.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel
from pymdownx.slugs import slugify
from pymdownx.superfences import fence_code_format

sys.path.append(str(Path(__file__).parent))

import messages  # beside this file

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".conf": "ini", ".mjs": "js", ".json": "json", ".sh": "sh"}
DIAGRAM = {"name": "mermaid", "class": "diagram", "format": fence_code_format}
"""Drawn by docs/assets/site.js; under the class `mermaid` the theme would fetch its own copy from another address."""
ITEM = re.compile(r"(?:[-*]|\d+\.) (?=\S)")
FIRST_ITEM = re.compile(r"(?:[-*]|1\.) (?=\S)")
"""Where a sentence goes before; a line of it may begin with any other number."""
FENCE = re.compile(r"^ *(```|~~~)")


def on_config(config: Any) -> Any:
    """Fill in the navigation, and make anchors as other readers of Markdown do."""
    config.nav = _expanded(config.nav, named=set(_paths(config.nav)))
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [DIAGRAM]}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each example, and one for each file outside docs/ that a page links to."""
    for readme in _readmes():
        files.append(_generated(config, _site_path(readme), _text(readme)))
    files.append(_generated(config, "reference/messages.md", messages.page()))
    for path in sorted(_linked_sources()):
        files.append(_generated(config, _site_path(path), _listing(path), InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead where their files are on the site."""
    source = _repository_path(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)
    return _for_this_reader(_linked(markdown, source, here))


# -- navigation -----------------------------------------------------------------------------------------------------


def _paths(nav: Any) -> Iterator[str]:
    for item in nav:
        value = next(iter(item.values())) if isinstance(item, dict) else item
        yield from [value] if isinstance(value, str) else _paths(value)


def _expanded(nav: list[Any], named: set[str]) -> list[Any]:
    found: list[Any] = []
    for item in nav:
        title, value = next(iter(item.items())) if isinstance(item, dict) else (None, item)
        if isinstance(value, list):
            found.append({title: _expanded(value, named)})
        elif value.endswith("/*"):
            pages = [path for path in _pages_of(value.removesuffix("/*")) if path not in named]
            found += [{title: pages}] if title else pages
        else:
            found.append(item)
    return found


def _pages_of(folder: str) -> list[str]:
    if folder == "examples":
        return [_site_path(readme) for readme in _readmes()]
    return sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / folder).glob("*.md"))


# -- files outside docs/ --------------------------------------------------------------------------------------------


def _readmes() -> list[str]:
    own = [path for pattern in ("README.md", "*/README.md") for path in sorted((ROOT / "examples").glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in own]


def _site_path(path: str) -> str:
    """Where a file of the repository is found on the site: examples/NAME/README.md -> examples/NAME.md."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "examples/README.md":
        return "examples/index.md"
    if re.fullmatch(r"examples/[^/]+/README\.md", path):
        return f"{posixpath.dirname(path)}.md"
    return f"source/{path}.md"


def _repository_path(site_path: str) -> str:
    if site_path.startswith("source/"):
        return site_path.removeprefix("source/").removesuffix(".md")
    if site_path == "examples/index.md":
        return "examples/README.md"
    if site_path.startswith("examples/"):
        return f"{site_path.removesuffix('.md')}/README.md"
    return f"docs/{site_path}"


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _listing(path: str) -> str:
    """A page with the text of a file, or the names of a folder's files."""
    if (ROOT / path).is_dir():
        names = sorted(each.name for each in (ROOT / path).iterdir() if not each.name.startswith(("_", ".")))
        return f"# {path}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    if path.endswith(".md"):
        return _text(path)
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"# {path}\n\n~~~~{language}\n{_text(path)}\n~~~~\n"


def _linked_sources() -> set[str]:
    """The files outside docs/ that pages link to, those of linked ones included."""
    waiting = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")] + _readmes()
    found: set[str] = set()
    while waiting:
        source = waiting.pop()
        for link in LINK.findall(_text(source)) if source.endswith(".md") else ():
            target = _target(source, link)
            if target and not target.startswith("docs/") and target not in found and (ROOT / target).exists():
                waiting.append(target)
                found.add(target)
    return found - set(_readmes())


def _target(source: str, link: str) -> str | None:
    """The file of the repository that a link leads to; None: somewhere else."""
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", path):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if (ROOT / target).is_dir():
        for index in (f"{target}/README.md", f"{target}/index.md", f"{target}.md"):
            if (ROOT / index).is_file():
                return index
    return target


def _linked(markdown: str, source: str, here: str) -> str:
    def lead(match: re.Match[str]) -> str:
        target = _target(source, match[1])
        if target is None:
            return match[1]
        _, mark, anchor = match[1].partition("#")
        return posixpath.relpath(_site_path(target), here or ".") + mark + anchor

    return LINK.sub(lead, markdown)


def _generated(config: Any, path: str, text: str, inclusion: InclusionLevel = InclusionLevel.UNDEFINED) -> File:
    return File.generated(config, path, content=text, inclusion=inclusion)


# -- two dialects of Markdown ---------------------------------------------------------------------------------------


def _for_this_reader(markdown: str) -> str:
    """Return a page as Python-Markdown wants it, where CommonMark allows more.

    A list that follows its sentence at once gets an empty line before it, and what belongs to an item four spaces.
    """
    lines: list[str] = []
    fenced = paragraphs = False  # paragraphs: an item of this list has several
    width = 0  # of the marker of the list that goes on; 0: none does
    for line in markdown.splitlines():
        before = lines[-1] if lines else ""
        indent = len(line) - len(line.lstrip(" "))
        marker = None if fenced else (ITEM if width or not before.strip() else FIRST_ITEM).match(line)
        if marker:
            if before.strip() and not before.startswith("|") and (paragraphs or not width):
                lines.append("")
            width = len(marker[0])
        elif width and line.strip() and not before.strip() and not fenced:
            width, paragraphs = (width, True) if indent >= width else (0, False)
        inside = width and not marker and indent >= width
        lines.append(" " * (4 - width) + line if inside else line)
        if FENCE.match(line):
            fenced = not fenced
    return "\n".join(lines) + "\n"
