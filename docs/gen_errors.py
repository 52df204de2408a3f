"""Writes docs/reference/errors.md from the classes of errors, and from the places that refuse and warn.

Reasons and warnings are read from the source: what the program can say stands in the page, and nothing else.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinator.report.method_catalogue import describe_methods
from edge_sdk import errors

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "errors.md"
PACKAGES = ("edge_sdk", "coordinator", "edge_sim")
WARNING = re.compile(r"W(\d+): ")

HEAD = """\
# Errors, refusals and warnings

Each thing that edge-sdk says when something is wrong has a word or a number. Look it up here;
[troubleshooting](../how-to/troubleshooting.md) goes by what you see. `docs/gen_errors.py` writes this page from the
code. What stands in braces, such as `{device}`, is filled in.

## Errors

Everything that edge-sdk raises on purpose is an `edge_sdk.EdgeError`. On the command line it is one line on stderr,
which begins with `edge-sdk:`, and an exit code. `error.code` is the word, which reports and logs use, too.

"""

REFUSALS = """\
## Refusals

A device that cannot take part is told so when it joins, before any training. The reason is a word; beside it stand
what is wrong and what to do. An app gets them with `agent.on_refusal` and in `agent.error`; `edge-sdk device` prints
them, and ends with exit code 1. The words under which single *frames* are refused are on [the protocol's
page](protocol.md#refusal-words).

"""

WARNINGS = """\
## Warnings

A run that is warned goes on. The coordinator prints a warning once, and keeps it in `summary.json` (`warnings`) and
in the report. `edge-sdk methods` says which ones a method can cause.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD + _errors(), REFUSALS + _refusals(), WARNINGS, *_warnings()])


# -- errors ---------------------------------------------------------------------------------------------------------


def _errors() -> str:
    rows = [
        f"| `{error.code}` | `{name}` | {error.exit_code} | {_first_sentence(error)} | {getattr(error, 'remedy', '')} |"
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.EdgeError)
    ]
    return "\n".join(["| code | class | exit code | means | what to do |", "|---|---|---|---|---|", *rows, ""])


def _first_sentence(error: type) -> str:
    text = " ".join((inspect.getdoc(error) or "").split("\n\n", maxsplit=1)[0].split())
    return text.replace("|", "\\|")


# -- refusals -------------------------------------------------------------------------------------------------------


def _refusals() -> str:
    found = sorted(set(_reasons()))
    rows = [f"| `{word}` | {_cell(message)} | {_cell(remedy)} |" for word, message, remedy in found]
    return "\n".join(["| reason | what is said | what to do |", "|---|---|---|", *rows, ""])


def _reasons() -> Iterator[tuple[str, str, str]]:
    """Find every (word, message, remedy) with which a device is refused."""
    for tree in _modules():
        texts = _texts_of(tree.body)
        for scope, node in _calls(tree):
            constants = texts if scope is None else {**texts, **_texts_of(ast.walk(scope))}
            name = getattr(node.func, "id", "")
            if name in ("RefusalReason", "Refused") and len(node.args) == 3:
                word, message, remedy = (_template(argument, constants) for argument in node.args)
                if re.fullmatch(r"[a-z-]+", word):
                    yield word, message, remedy


def _calls(node: ast.AST, scope: ast.FunctionDef | None = None) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    """Yield every call with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield scope, child
        yield from _calls(child, child if isinstance(child, ast.FunctionDef) else scope)


# -- warnings -------------------------------------------------------------------------------------------------------


def _warnings() -> Iterator[str]:
    """Yield a section for each warning: when, under which methods, and what is said."""
    said, when, methods = _said(), {}, {}
    rows = describe_methods()
    for row in rows:
        for caution in row["warnings"]:
            number, condition = caution[1:].split(": ", maxsplit=1)
            when.setdefault(int(number), set()).add(condition)
            methods.setdefault(int(number), []).append(row["name"])
    for number in sorted({*said, *when}):
        yield f"### W{number}\n"
        if number in when:
            of = sorted(set(methods[number]))
            links = ", ".join(f"[{each}](methods/{each}.md)" for each in of)
            which = links if len(of) < len(rows) else "every method"
            yield f"*When*: {_cell('; '.join(sorted(when[number])))}. *Under*: {which}.\n"
        for text in sorted(said.get(number, ())):
            yield f"- {_quoted(text)}"
        pages = _explained(number)
        yield f"\nMore: {', '.join(pages)}.\n" if pages else ""


def _said() -> dict[int, set[str]]:
    """Find the texts of each warning; those that only tell a method's conditions are left out."""
    found: dict[int, set[str]] = {}
    for tree in _modules():
        constants = _texts_of(tree.body)
        told = {id(each) for part in ast.walk(tree) if _conditions(part) for each in ast.walk(part)}
        told |= {id(part) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in text.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in told:
                text = _template(node, constants)
                match = WARNING.match(text)
                if match:
                    found.setdefault(int(match[1]), set()).add(text[match.end() :])
    return found


def _conditions(node: ast.AST) -> bool:
    """Whether a part of a module lists the conditions of warnings, rather than warnings."""
    if isinstance(node, ast.FunctionDef):
        return node.name == "cautions"
    names = [each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)]
    return isinstance(node, ast.Assign) and names == ["cautions"]


def _explained(number: int) -> list[str]:
    """Return links to the how-to and reference pages that speak of a warning; methods' own pages are linked above."""
    docs = ROOT / "docs"
    pages = [*sorted((docs / "how-to").glob("*.md")), *sorted((docs / "reference").glob("*.md"))]
    return [
        f"[{_title(page)}](../{page.relative_to(docs).as_posix()})"
        for page in pages
        if page != PAGE and re.search(rf"\bW{number}\b", page.read_text(encoding="utf-8"))
    ]


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").lower()


# -- the source -----------------------------------------------------------------------------------------------------


def _modules() -> Iterator[ast.Module]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _texts_of(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the texts that names stand for; one that stands for several has them all."""
    found: dict[str, dict[str, None]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            for value in _choices(node.value):
                text = _template(value, {}) if isinstance(value, ast.Constant | ast.JoinedStr) else ""
                if text:
                    found.setdefault(node.targets[0].id, {})[text] = None
    return {name: "; or: ".join(texts) for name, texts in found.items()}


def _choices(node: ast.expr) -> list[ast.expr]:
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _template(node: ast.expr, constants: dict[str, str]) -> str:
    """Return a text with `{name}` for each value that is filled in; empty where it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name):
        return constants.get(node.id, f"{{{node.id}}}")
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{_name(node.value).strip('_')}}}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
        return _template(node.func.value, constants)
    return f"{{{_name(node)}}}"


def _name(node: ast.expr) -> str:
    """Return a word for a value: the last name that leads to it."""
    if (
        isinstance(node, ast.Call)
        and node.args
        and getattr(node.func, "id", "") in ("len", "str", "sorted", "max", "min")
    ):
        return _name(node.args[0])
    if isinstance(node, ast.Call) and node.args and getattr(node.func, "attr", "") == "join":
        return _name(node.args[0])
    if isinstance(node, ast.Call):
        return _name(node.func.value if isinstance(node.func, ast.Attribute) and not node.args else node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    inner = next((each for each in ast.walk(node) if isinstance(each, ast.Attribute | ast.Name)), None)
    return _name(inner) if inner is not None and inner is not node else "..."


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return re.sub(r"\{([^{}]*)\}", r"`{\1}`", text)


def _quoted(text: str) -> str:
    return _cell(text).replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
