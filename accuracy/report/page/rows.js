const PAGE_ROWS = 50;
const FIRST_COLUMNS = ["facet", "world_size", "seed", "tensor", "rank", "status", "error_rel", "error_max", "error_mean",
  "diff_rel", "diff_max", "x_floor", "x_single_device", "ulp_max", "worst_token", "seconds", "peak_bytes"];
const SEARCHED = ["series", "facet", "tensor", "status", "reason", "case_id"];

/** The sortable, filterable table of all rows, a page at a time. */
function exploreRows(data, place) {
  const at = (name, row) => data.columns.get(name).at(row);
  const state = { sort: null, descending: false, page: 0, shown: [], everything: false };
  const refilter = () => { state.page = 0; filterRows(); };
  const search = make("input", { type: "search", placeholder: "ring dq …", oninput: refilter });
  const any = (name) => [["", "all"], ...distinct(data, name).map((value) => [value, written(name, value)])];
  const filters = new Map([["series", "Variant"], ["facet", "Setting"], ["world_size", "World size"], ["tensor", "Tensor"],
    ["status", "Status"]].map(([name, label]) => [name, selector(label, any(name), refilter)]));
  const ranks = selector("Rank", [["whole", "all ranks together"], ["each", "each rank"], ["", "both"]], refilter);
  const wide = make("input", { type: "checkbox", onchange: () => { state.everything = wide.checked; drawHead(); drawBody(); } });
  const head = make("tr");
  const body = make("tbody");
  const status = make("span", { role: "status" });
  const previous = make("button", { type: "button", className: "plain", textContent: "Previous", onclick: () => turn(-1) });
  const next = make("button", { type: "button", className: "plain", textContent: "Next", onclick: () => turn(1) });

  const columns = () => state.everything
    ? [...data.columns.keys()].filter((name) => name !== "series")
    : FIRST_COLUMNS.filter((name) => data.columns.has(name));

  function matches(row, words) {
    for (const [name, filter] of filters) {
      if (filter.select.value !== "" && String(at(name, row)) !== filter.select.value) return false;
    }
    const single = at("rank", row) !== -1 && at("tensor", row) !== null;
    if (ranks.select.value === "whole" ? single : ranks.select.value === "each" && !single) return false;
    if (!words.length) return true;
    const text = SEARCHED.map((name) => at(name, row) ?? "").join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }

  function filterRows() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    state.shown = [];
    for (let row = 0; row < data.count; row++) if (matches(row, words)) state.shown.push(row);
    sortRows();
  }

  /** Stable; missing values last, whichever way. */
  function sortRows() {
    if (state.sort) {
      const way = state.descending ? -1 : 1;
      state.shown.sort((a, b) => {
        const [x, y] = [at(state.sort, a), at(state.sort, b)];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return (x < y ? -way : x > y ? way : 0) || a - b;
      });
    }
    drawBody();
  }

  function sortBy(name) {
    const numeric = data.columns.get(name).kind === "number";
    state.descending = state.sort === name ? !state.descending : numeric;
    state.sort = name;
    state.page = 0;
    markSorted();
    sortRows();
  }

  function markSorted() {
    for (const cell of head.children) {
      if (cell.dataset.column === state.sort) cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
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
    const pages = Math.max(1, Math.ceil(state.shown.length / PAGE_ROWS));
    state.page = Math.min(state.page, pages - 1);
    body.replaceChildren(...state.shown.slice(state.page * PAGE_ROWS, (state.page + 1) * PAGE_ROWS).map(drawRow));
    status.textContent = `${state.shown.length.toLocaleString("en")} of ${data.count.toLocaleString("en")} rows, page ${state.page + 1} of ${pages}`;
    previous.disabled = state.page === 0;
    next.disabled = state.page >= pages - 1;
  }

  function drawRow(row) {
    const button = make("button", { type: "button", className: "row-button", ariaExpanded: "false", textContent: at("series", row), title: "Command that measures this row" });
    const line = make("tr", {}, make("th", { scope: "row" }, button), ...columns().map((name) => {
      const text = written(name, at(name, row));
      const kind = data.columns.get(name).kind === "text" ? (text.length > 30 ? "text long" : "text") : "";
      return make("td", { className: kind, textContent: text });
    }));
    button.onclick = (event) => { event.stopPropagation(); openRow(line, button, row); };
    line.onclick = () => { if (!String(getSelection())) openRow(line, button, row); };
    return line;
  }

  /** The command that measures the row again, and why it has no numbers if it has none. */
  function openRow(line, button, row) {
    const open = button.ariaExpanded !== "true";
    button.ariaExpanded = String(open);
    if (!open) { line.nextSibling.remove(); return; }
    const command = data.command(row);
    const code = make("code", { textContent: command });
    const copy = make("button", { type: "button", className: "plain", textContent: "Copy command" });
    copy.onclick = async () => {
      try { await navigator.clipboard.writeText(command); copy.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); copy.textContent = "Selected: press Ctrl+C"; }
    };
    const parts = make("div", { className: "reproduce" }, code, copy);
    if (at("reason", row)) parts.prepend(make("p", { className: "why", textContent: at("reason", row) }));
    line.after(make("tr", { className: "more" }, make("td", { colSpan: columns().length + 1 }, parts)));
  }

  function turn(step) { state.page += step; drawBody(); }

  const stem = document.getElementById("rows-data").dataset.experiment.replace(/[^a-z0-9_]/gi, "_") || "rows";
  const csv = make("button", { type: "button", className: "plain", textContent: "Download CSV", onclick: () => download(`${stem}.csv`, "text/csv", asCsv(data)) });
  const json = make("button", { type: "button", className: "plain", textContent: "Download JSON", onclick: () => download(`${stem}.json`, "application/json", asJson(data)) });
  const controls = make("div", { className: "controls" }, make("label", {}, "Search", search),
    ...[...filters.values(), ranks].map((part) => part.label), make("label", { className: "check" }, wide, "all columns"));
  const caption = make("caption", { className: "visually-hidden", textContent: "All rows; column headers sort, a row opens its command" });
  const table = make("table", { className: "data" }, caption, make("thead", {}, head), body);
  place.append(controls, make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "All rows" }, table),
    make("div", { className: "pager" }, previous, next, status, csv, json));
  place.hidden = false;
  drawHead();
  filterRows();
}
