"use strict";
// A click or Enter on a heading sorts its table by that column; again: the other way round. Unknown numbers stay last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = head.closest("table"), place = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    const numbers = head.classList.contains("number");
    const value = (row) => {
      const text = row.cells[place].dataset.sort;
      return numbers || (text !== "" && !Number.isNaN(Number(text))) ? Number(text.replace("inf", "Infinity")) : text;
    };
    const compare = (one, other) => {
      const a = value(one), b = value(other);
      if (a === Infinity || b === Infinity) return a === b ? 0 : a === Infinity ? 1 : -1;
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return down ? -order : order;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    document.getElementById("said").textContent =
      `${table.caption.textContent}: sorted by ${button.textContent}, ${down ? "descending" : "ascending"}`;
  });
}
