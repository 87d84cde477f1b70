/** A static table's headers sort its rows: numbers from the greatest, texts from A. */
function sortable(table) {
  const heads = [...table.querySelectorAll("thead th")];
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) return;
  heads.forEach((head, column) => {
    const sort = make("button", { type: "button" }, ...head.childNodes);
    sort.onclick = () => {
      const values = [...body.rows].map((row) => [row, valueOf(row.cells[column]?.firstChild?.textContent ?? "")]);
      const numeric = values.some(([, value]) => typeof value === "number");
      const before = head.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : numeric;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const way = descending ? -1 : 1;
      const last = (value) => numeric && typeof value !== "number";
      values.sort(([, a], [, b]) => last(a) - last(b) || (a < b ? -way : a > b ? way : 0));
      body.append(...values.map(([row]) => row));
    };
    head.append(sort);
  });
}

/** The number that a cell begins with, behind a verdict's mark; else its text. */
function valueOf(text) {
  const found = text.trim().replace(/^[✘▲] /, "").replace(/^−/, "-").match(/^-?(\d[\d,]*(\.\d+)?(e-?\d+)?|∞)/);
  if (!found) return text;
  return found[0].endsWith("∞") ? (found[0].startsWith("-") ? -Infinity : Infinity) : Number(found[0].replaceAll(",", ""));
}
