"""Counts the lines of each method, for a table in docs/results/methods.md.

    python -m benchmarks.methods.method_lines

Blank lines, comments and docstrings are not lines of code; imports are.  Code of a method in other files (its torch
part, its accountant, its first prototypes) has a column of its own.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from pathlib import Path

from edge_sdk.methods.contract.registry import method_names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "methods.md"
FOLDER = ROOT / "edge_sdk" / "methods"
BEGIN, END = "<!-- lines: begin -->", "<!-- lines: end -->"
MOST_LINES, MEDIAN_LINES = 350, 130
"""No method's file has more, and half of them at most so many; all lines count."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Count the lines that hold code; a string that is a statement of its own is documentation."""
    told = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - told)


def counted() -> dict[str, dict[str, int]]:
    """Return for each built-in method: all lines of its file, its lines of code, and those in other files."""
    return {
        name: {
            "lines": len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()),
            "code": code_lines((FOLDER / f"{name}.py").read_text(encoding="utf-8")),
            "beside": sum(code_lines(path.read_text(encoding="utf-8")) for path in _beside(name)),
        }
        for name in method_names()
        if (FOLDER / f"{name}.py").exists()
    }


def _beside(name: str) -> list[Path]:
    """Return the other modules of one method: parts/torch_NAME.py, and parts/NAME_*.py."""
    parts = FOLDER / "parts"
    return [*parts.glob(f"torch_{name}.py"), *parts.glob(f"{name}_*.py")]


def table(found: dict[str, dict[str, int]]) -> str:
    """Return the table as markdown, with the median and the maximum below."""
    columns = ("lines", "code", "beside")
    rows = [[f"`{name}`", *(str(lines[column] or "") for column in columns)] for name, lines in sorted(found.items())]
    for word, of in (("median", statistics.median), ("maximum", max)):
        rows.append([f"**{word}**", *(f"{of([lines[column] for lines in found.values()]):g}" for column in columns)])
    head = [["method", "lines", "of code", "of code beside"], ["---", *["---:"] * len(columns)]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])


def written(page: str) -> str:
    """Return the page with the table of the present code."""
    block = f"{BEGIN}\n{table(counted())}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _found: block, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
