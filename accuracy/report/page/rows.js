const PAGE_ROWS = 50;
const FIRST_COLUMNS = ["facet", "world_size", "seed", "tensor", "rank", "status", "verdict", "error_rel", "error_max", "error_mean",
  "diff_rel", "diff_max", "x_floor", "x_single_device", "ulp_max", "worst_token", "seconds", "peak_bytes"];
const SEARCHED = ["series", "facet", "tensor", "status", "reason", "case_id"];
const SCOPES = [["case", "the case shown"], ["line", "the variant, all ranks and tensors"], ["setting", "the setting and tensor"], ["all", "everything"]];

/** The sortable table of rows, a page at a time: of the case that all views show, or of more. Filled where it is open. */
function exploreRows(data, place) {
  const at = data.at;
  const view = { sort: null, descending: false, page: 0, shown: [], everything: false };
  const refilter = () => { view.page = 0; filterRows(); };
  const search = make("input", { type: "search", placeholder: "ring dq …", oninput: refilter });
  const scope = selector("Rows", SCOPES, refilter);
  const rank = selector("Rank", [["", "all"], ["whole", "all ranks together"], ["each", "each rank"]], refilter);
  const wide = make("input", { type: "checkbox", onchange: () => { view.everything = wide.checked; drawHead(); drawBody(); } });
  const head = make("tr");
  const body = make("tbody");
  const status = make("span", { role: "status" });
  const previous = button("Previous", () => turn(-1));
  const next = button("Next", () => turn(1));

  const columns = () => (view.everything ? [...data.columns.keys()].filter((name) => name !== "series" && name !== "colour")
    : FIRST_COLUMNS.filter((name) => data.columns.has(name)));

  function candidates() {
    const { facet, tensor } = page.state;
    if (scope.select.value === "all" || !data.index.size) return Array.from({ length: data.count }, (_, row) => row);
    return scope.select.value === "line" ? [...data.index.get(facet).values()].flat() : rowsOf(data, { facet, tensor });
  }

  function inScope(row) {
    if (scope.select.value === "all" || scope.select.value === "setting" || !data.index.size) return true;
    const own = at("series", row) === page.state.series;
    return own && (scope.select.value === "line" || at("world_size", row) === page.state.world_size);
  }

  function matches(row, words) {
    if (!inScope(row)) return false;
    const single = at("rank", row) !== ALL_RANKS && at("tensor", row) !== null;
    if (rank.select.value === "whole" ? single : rank.select.value === "each" && !single) return false;
    if (!words.length) return true;
    const text = SEARCHED.map((name) => at(name, row) ?? "").join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }

  function filterRows() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    view.shown = [];
    for (const row of candidates()) if (matches(row, words)) view.shown.push(row);
    sortRows();
  }

  /** Stable; missing values last, whichever way. */
  function sortRows() {
    if (view.sort) {
      const way = view.descending ? -1 : 1;
      view.shown.sort((a, b) => {
        const [x, y] = [at(view.sort, a), at(view.sort, b)];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return (x < y ? -way : x > y ? way : 0) || a - b;
      });
    }
    drawBody();
  }

  function sortBy(name) {
    const numeric = data.columns.get(name).kind === "number";
    view.descending = view.sort === name ? !view.descending : numeric;
    view.sort = name;
    view.page = 0;
    markSorted();
    sortRows();
  }

  function markSorted() {
    for (const cell of head.children) {
      if (cell.dataset.column === view.sort) cell.setAttribute("aria-sort", view.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  function drawHead() {
    head.replaceChildren(...["series", ...columns()].map((name) => {
      const label = name === "series" ? "variant" : name === "facet" ? "setting" : name;
      const kind = data.columns.get(name).kind === "text" ? "text" : "";
      const cell = make("th", { scope: "col", className: kind }, make("button", { type: "button", textContent: label, onclick: () => sortBy(name) }));
      cell.dataset.column = name;
      return cell;
    }));
    markSorted();
  }

  function drawBody() {
    const pages = Math.max(1, Math.ceil(view.shown.length / PAGE_ROWS));
    view.page = Math.min(view.page, pages - 1);
    body.replaceChildren(...view.shown.slice(view.page * PAGE_ROWS, (view.page + 1) * PAGE_ROWS).map(drawRow));
    status.textContent = `${view.shown.length.toLocaleString("en")} of ${counted(data.count, "row")}, page ${view.page + 1} of ${pages}`;
    previous.disabled = view.page === 0;
    next.disabled = view.page >= pages - 1;
  }

  function drawRow(row) {
    const name = make("button", { type: "button", className: "row-button", ariaExpanded: "false", textContent: at("series", row), title: "Command that measures this row" });
    const line = make("tr", {}, make("th", { scope: "row" }, name), ...columns().map((column) => {
      const text = written(column, at(column, row));
      const kind = data.columns.get(column).kind === "text" ? (text.length > 30 ? "text long" : "text") : "";
      return make("td", { className: kind, textContent: text });
    }));
    name.onclick = (event) => { event.stopPropagation(); openRow(line, name, row); };
    line.onclick = () => { if (!String(getSelection())) openRow(line, name, row); };
    return line;
  }

  /** The command that measures the row again, and why it has no numbers if it has none. */
  function openRow(line, name, row) {
    const open = name.ariaExpanded !== "true";
    name.ariaExpanded = String(open);
    if (!open) { line.nextSibling.remove(); return; }
    const code = make("code", { textContent: data.command(row) });
    const parts = make("div", { className: "reproduce" }, code, copyButton(code));
    if (at("reason", row)) parts.prepend(make("p", { className: "why", textContent: at("reason", row) }));
    line.after(make("tr", { className: "more" }, make("td", { colSpan: columns().length + 1 }, parts)));
  }

  function turn(step) { view.page += step; drawBody(); }

  const csv = button("Download CSV", () => download(`${stem()}.csv`, "text/csv", asCsv(data, view.shown)));
  const json = button("Download JSON", () => download(`${stem()}.json`, "application/json", asJson(data, view.shown)));
  const controls = make("div", { className: "controls" }, scope.label, rank.label, make("label", {}, "Search", search),
    make("label", { className: "check" }, wide, "all columns"));
  const caption = make("caption", { className: "visually-hidden", textContent: "Rows; column headers sort, a row opens its command" });
  const table = make("table", { className: "data" }, caption, make("thead", {}, head), body);
  place.append(controls, make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Rows" }, table),
    make("div", { className: "pager" }, previous, next, status, csv, json));
  place.hidden = false;
  const folded = place.closest("details");
  const drawn = () => { if (folded.open) { if (!head.children.length) drawHead(); refilter(); } };
  folded.addEventListener("toggle", drawn);
  return drawn;
}
