"""Writes docs/reference/methods.md from the registered methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_sim.projects.methods_command import EXAMPLE, describe_methods

PAGE = Path(__file__).parent / "reference" / "methods.md"

HEAD = """\
# Methods

What each method sends, needs of a model, and discloses.
[Choosing a method](../how-to/choose-a-method.md) shows which one to begin with. `edge-sdk methods` prints more of each,
and `edge-sdk methods --json` everything. `docs/gen_methods.py` writes this page.

*Bytes* are those of one device in one round at most, for {classes} classes, {feature_dim} features and {weights:,}
weights. *Teaches*: a model that only predicts may take part, but does not learn.

FedKTL, which is often compared with, needs a pretrained generator of pictures from the network, and is left out.
"""

GROUPS = {
    "Logits on public samples": "Devices may have any models. All need the same public set.",
    "Rows by class": "Devices may have different bodies. What travels is a row of numbers for each class.",
    "Weights": "The parts that travel are alike on all devices, whose owners allow it with `share_weights=True`.",
    "Weights of a second, small model": "Each device keeps a model of any kind, and shares a small one beside it.",
}


def page() -> str:
    """Return the whole page."""
    rows = describe_methods()
    parts = [HEAD.format(classes=EXAMPLE.classes, feature_dim=EXAMPLE.feature_dim, weights=EXAMPLE.weights)]
    for title, text in GROUPS.items():
        parts += [f"## {title}\n\n{text}\n", _table([row for row in rows if _group(row) == title])]
    return "\n".join(parts)


def _group(row: dict[str, Any]) -> str:
    if "proxy" in row["needs"]:
        return "Weights of a second, small model"
    if row["shares_weights"]:
        return "Weights"
    return "Logits on public samples" if row["needs_public_set"] else "Rows by class"


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["| method | paper | bytes up, down | a model must | teaches | gives away |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *map(_row, rows), ""])


def _row(row: dict[str, Any]) -> str:
    size = row["bytes_per_round"]
    cells = [
        f"[`{row['name']}`](methods/{row['name']}.md)",
        f"{row['title'].split(':')[0]}, {row['citation']}",
        f"{size['up']['example']:,}, {size['down']['example']:,}",
        ", ".join(f"`{need}`" for need in row["needs"]),
        "yes" if row["enough_to_teach"] else "",
        row["discloses"],
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
