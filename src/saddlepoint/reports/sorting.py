"""The script that sorts the leaderboard, the only script on any page."""

from __future__ import annotations

from saddlepoint.reports.markup import Markup

# The first click on a title sorts numbers from the highest and words from the first letter.
# Missing values are always last.
SORT_SCRIPT = Markup("""
for (const table of document.querySelectorAll("table.leaderboard")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const status = document.querySelector("[role=status]");
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const words = head.classList.contains("words");
    const before = head.getAttribute("aria-sort");
    const ascending = before ? before === "descending" : words;
    const direction = ascending ? "ascending" : "descending";
    const value = (row) => row.cells[column].dataset.value;
    const compare = (a, b) =>
      words ? a.localeCompare(b, undefined, {numeric: true}) : Number(a) - Number(b);
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return ascending ? compare(x, y) : compare(y, x);
    });
    body.append(...rows);
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    status.textContent = `Sorted by ${head.textContent}, ${direction}.`;
  }));
}
""")
