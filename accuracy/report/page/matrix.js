const MOST_MATRIX_ROWS = 10;
const BUGS = new Set(["invalid", "logic"]);
const INSIDE = "coarser inside";
const MARKS = "✘ bug · ▲ flagged, no bug proven · no mark: rounding · grey: computes coarser inside, as it may";

/** Every line's tensors in the state's setting, at the state's ranks or as many as the line has; a cell chooses its case. */
function drawMatrix(place, state) {
  const choices = choicesOf(state.facet);
  const y = measuresOf(state).find((name) => name === page.preset.y) ?? measuresOf(state).find((name) => name.startsWith("x_"));
  if (!y) { place.replaceChildren(make("p", { className: "note", textContent: "No ratio can be shown." })); return; }
  const found = matrixCells(state, choices, y);
  const rows = [...choices.series.keys()].filter((series) => found.has(series));
  const gated = choices.tensors.filter((tensor) => JUDGED.includes(tensor));
  const worst = (series) => Math.max(...(gated.length ? gated : choices.tensors).map((tensor) => found.get(series).get(tensor)?.value ?? 0));
  const ranked = rows.sort((a, b) => worst(b) - worst(a));
  const open = place.dataset.open === "true";
  const shown = ranked.filter((series, rank) => open || rank < MOST_MATRIX_ROWS - 1 || series === state.series || (rank === MOST_MATRIX_ROWS - 1 && ranked.indexOf(state.series) < MOST_MATRIX_ROWS));
  const names = shortNames(ranked);
  place.parentElement.classList.toggle("alone", ranked.length === 1);
  const head = make("tr", {}, ...["variant", ...choices.tensors].map((name) => make("th", { scope: "col", textContent: name })));
  const body = shown.map((series) => {
    const size = nearest(choices.series.get(series), state.world_size);
    const name = names.get(series) + (size === state.world_size ? "" : ` (${counted(size, "rank")})`);
    return make("tr", {}, make("th", { scope: "row" }, make("span", { className: "clamp", title: series }, ...breakable(name))), ...choices.tensors.map((tensor) => matrixCell(found.get(series).get(tensor), state, series, tensor)));
  });
  const what = y === "x_floor" ? "Error over the rounding floor" : "Error over single device's";
  const caption = make("caption", { textContent: `${what}, ${state.facet}, ${counted(state.world_size, "rank")}${state.world_size > 1 ? " together" : ""}. Choose a cell: all views follow.` });
  const table = make("table", { className: "data" }, caption, make("thead", {}, head), make("tbody", {}, ...body));
  const note = make("p", { className: "note" }, MARKS);
  if (ranked.length > MOST_MATRIX_ROWS) note.append(" · ", toggle(place, state, open, ranked.length));
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.case : undefined;
  place.replaceChildren(make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption.textContent }, table), note);
  if (focused) [...place.querySelectorAll("button")].find((each) => each.dataset.case === focused)?.focus({ preventScroll: true });
}

function toggle(place, state, open, number) {
  return button(open ? "show the worst" : `show all ${number}`, () => { place.dataset.open = String(!open); drawMatrix(place, state); });
}

/** Line -> tensor -> { value, verdict } */
function matrixCells(state, choices, y) {
  const at = page.data.at, found = new Map();
  for (const tensor of choices.tensors) {
    const wanted = (row) => at("rank", row) === ALL_RANKS && (y !== "x_single_device" || at("variant", row) !== SINGLE_DEVICE)
      && at("world_size", row) === nearest(choices.series.get(at("series", row)), state.world_size);
    const rows = rowsOf(page.data, { facet: state.facet, tensor }).filter(wanted);
    for (const point of pointsOf(page.data, rows, "world_size", y, () => true)) {
      if (!found.has(point.series)) found.set(point.series, new Map());
      found.get(point.series).set(tensor, { value: point.y, verdict: point.rows.map((row) => at("verdict", row)).find(Boolean) ?? "" });
    }
  }
  return found;
}

function matrixCell(cell, state, series, tensor) {
  if (!cell) return make("td", { className: "absent", textContent: "–" });
  const inside = cell.verdict === INSIDE;
  const mark = cell.verdict && !inside ? (BUGS.has(cell.verdict) ? "✘ " : "▲ ") : "";
  const heat = cell.value > 0 ? Math.max(-1, Math.min(1, Math.log2(cell.value) / 2)) : -1;
  const here = series === state.series && tensor === state.tensor;
  const choice = button(mark + plain(cell.value), () => choose({ series, tensor }));
  choice.dataset.case = `${series}|${tensor}`;
  choice.ariaPressed = String(here);
  choice.title = `${series}, ${tensor}: ${plain(cell.value)} times${cell.verdict ? `, ${cell.verdict.replaceAll("_", " ")}` : ""}`;
  const part = make("td", { className: `${inside ? "inside" : `heat ${heat >= 0 ? "hot" : "cold"}`}${mark ? " flagged" : ""}${here ? " accused" : ""}` }, choice);
  part.style.setProperty("--heat", Math.abs(heat).toFixed(3));
  return part;
}

/** A name may break behind an underscore or a comma. */
function breakable(name) {
  return name.split(/(?<=[_,=])/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));
}
