"""Writes docs/reference/errors.md from the classes of errors, and from the places that refuse and warn.

Reasons and warnings are read from the source: what the program can say stands in the page, and nothing else.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from source_texts import ROOT, calls, modules, template, texts_of  # beside this script

from edge_sdk import errors
from edge_sim.projects.methods_command import describe_methods

PAGE = ROOT / "docs" / "reference" / "errors.md"
WARNING = re.compile(r"W(\d+): ")

HEAD = """\
# Errors, refusals and warnings

Each error, refusal and warning of edge-sdk has a word or a number. Look it up here;
[troubleshooting](../how-to/troubleshooting.md) is sorted by symptoms. `docs/gen_errors.py` writes this page from the
code. Words in braces, such as `{device}`, are filled in.

## Errors

Everything that edge-sdk raises on purpose is an `edge_sdk.EdgeError`. On the command line it is one line on stderr,
which begins with `edge-sdk:`, and an exit code. `error.code` is the word, which reports and logs use, too.

"""

REFUSALS = """\
## Refusals

A device that cannot take part is refused when it joins, before any training. The refusal has a word, the fault and the
remedy. An app gets them with `agent.on_refusal` and in `agent.error`; `edge-sdk device` prints
them, and ends with exit code 1. The words under which single *frames* are refused are on [the protocol's
page](protocol.md#refusal-words).

"""

WARNINGS = """\
## Warnings

A run with warnings continues. The coordinator prints a warning once, and keeps it in `summary.json` (`warnings`) and
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
    for _, tree in modules(r"\b(RefusalReason|Refused)\("):
        texts = texts_of(tree.body)
        for scope, node in calls(tree):
            name = getattr(node.func, "id", "")
            if name in ("RefusalReason", "Refused") and len(node.args) == 3:
                constants = texts if scope is None else {**texts, **texts_of(ast.walk(scope))}
                word, message, remedy = (template(argument, constants) for argument in node.args)
                if re.fullmatch(r"[a-z-]+", word):
                    yield word, message, remedy


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
    for _, tree in modules(WARNING.pattern):
        constants = texts_of(tree.body)
        told = {id(each) for part in ast.walk(tree) if _conditions(part) for each in ast.walk(part)}
        told |= {id(part) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in text.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in told:
                text = template(node, constants)
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


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return re.sub(r"\{([^{}]*)\}", r"`{\1}`", text)


def _quoted(text: str) -> str:
    return _cell(text).replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
