"""How many lines of code each method takes, on either side: a table in docs/results/methods.md.

    python -m benchmarks.method_lines

A line counts if it holds code: no blank line, no comment, no docstring.  The contract, which both sides share, is a
column of its own; so are imports counted, for they are what a method is built from.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from pathlib import Path

from edge_sdk.protocol.wires import registered_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "methods.md"
SIDES = {
    "contract": ROOT / "edge_sdk" / "protocol" / "contracts",
    "device": ROOT / "edge_sdk" / "methods",
    "coordinator": ROOT / "coordinator" / "methods",
}
BEGIN, END = "<!-- lines: begin -->", "<!-- lines: end -->"
MOST_LINES, MEDIAN_LINES = 150, 60
"""No method takes more on a side, and half of them at most so many."""
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
    """Lines that hold code; a string that stands alone as a statement is documentation."""
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
    """By method, then side: its own module's lines.  A method of another package has none here."""
    names = [name for name in registered_names("coordinator.methods") if (SIDES["device"] / f"{name}.py").exists()]
    return {
        name: {side: code_lines((folder / f"{name}.py").read_text(encoding="utf-8")) for side, folder in SIDES.items()}
        for name in names
    }


def table(found: dict[str, dict[str, int]]) -> str:
    """As markdown, with the median and the maximum below."""
    rows = [[f"`{name}`", *(str(lines[side]) for side in SIDES)] for name, lines in sorted(found.items())]
    for word, of in (("median", statistics.median), ("maximum", max)):
        rows.append([f"**{word}**", *(f"{of([lines[side] for lines in found.values()]):g}" for side in SIDES)])
    head = [["method", *SIDES], ["---", *["---:"] * len(SIDES)]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])


def written(page: str) -> str:
    """The page with the table as the code is now."""
    block = f"{BEGIN}\n{table(counted())}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _found: block, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
