/** One state for all views: which case is shown, and which number of it. The address keeps it. */
const MEASURES = new Map([
  ["x_single_device", "error, times single device"], ["x_floor", "error, times the rounding floor"],
  ["x_condition", "error over its condition"], ["error_rel", "relative error"],
  ["error_mean", "mean absolute error"], ["error_max", "greatest absolute error"], ["diff_rel", "relative diff from single device"],
  ["diff_max", "greatest absolute diff"], ["ulp_max", "greatest error in ulp"],
]);
const COSTS = new Map([["seconds", "seconds a case"], ["peak_bytes", "peak memory, MiB"]]);
const KEYS = ["facet", "series", "tensor", "world_size", "y", "cost"];
const NUMBERS = new Set(["world_size"]);
const JUDGED = ["out", "dq", "dk", "dv"];

const page = { data: null, others: [], preset: {}, state: {}, knownFacets: new Map(), listeners: [], turn: 0 };

/** What can be chosen in a setting: dtype, tensors, lines with their world sizes. */
function choicesOf(facet) {
  if (page.knownFacets.has(facet)) return page.knownFacets.get(facet);
  const at = page.data.at;
  const found = { tensors: [...(page.data.index.get(facet)?.keys() ?? [])], series: new Map(), sizes: new Set(), dtype: "" };
  for (const rows of page.data.index.get(facet)?.values() ?? []) {
    for (const row of rows) {
      found.dtype = at("dtype", row);
      const [series, size] = [at("series", row), at("world_size", row)];
      if (!found.series.has(series)) found.series.set(series, new Set());
      found.series.get(series).add(size);
      found.sizes.add(size);
    }
  }
  found.tensors.sort((a, b) => JUDGED.includes(b) - JUDGED.includes(a));
  found.sizes = [...found.sizes].sort((a, b) => a - b);
  page.knownFacets.set(facet, found);
  return found;
}

/** Of sizes, the wanted one, else the next smaller, else the smallest. */
function nearest(sizes, wanted) {
  const ordered = [...sizes].sort((a, b) => a - b);
  return ordered.includes(wanted) ? wanted : ordered.filter((size) => size < wanted).pop() ?? ordered[0];
}

/** A state that the rows can show, as near to the wanted one as they allow. */
function settled(wanted) {
  const facets = [...page.data.index.keys()];
  const state = { ...wanted };
  const among = (values, ...choices) => choices.find((choice) => values.includes(choice)) ?? values[0];
  state.facet = among(facets, wanted.facet, page.preset.facet);
  const choices = choicesOf(state.facet);
  state.tensor = among(choices.tensors, wanted.tensor, page.preset.tensor);
  const lines = [...choices.series.keys()];
  state.series = among(lines.filter((name) => name !== SINGLE_DEVICE).concat(lines), wanted.series, page.preset.series);
  state.world_size = nearest(choices.series.get(state.series), wanted.world_size ?? page.preset.world_size ?? Infinity);
  state.y = among(measuresOf(state), wanted.y, page.preset.y, "x_single_device");
  state.cost = COSTS.has(wanted.cost) ? wanted.cost : "seconds";
  return state;
}

function rowsOf(data, { facet, tensor }) {
  return data.index.get(facet)?.get(tensor) ?? [];
}

/** The measures that the setting's tensor has. */
function measuresOf(state) {
  const rows = rowsOf(page.data, state);
  return [...MEASURES.keys()].filter((name) => {
    const column = page.data.columns.get(name);
    return column && rows.some((row) => column.at(row) !== null);
  });
}

/** The state is changed by what the reader chose; every view follows, each in a task of its own. */
async function choose(changes, quiet = false) {
  page.state = settled({ ...page.state, ...changes });
  if (!quiet) history.replaceState(null, "", addressOf(page.state));
  await follow(page.state);
}

/** Every listener hears of the state, unless a newer one has come meanwhile. */
async function follow(state) {
  const explorer = document.getElementById("explorer");
  delete explorer.dataset.drawn;
  const turn = ++page.turn;
  const current = () => turn === page.turn;
  for (const listener of page.listeners) {
    await listener(state, current);
    await pause();
    if (!current()) return;
  }
  explorer.dataset.drawn = addressOf(state);
}

function addressOf(state, section = "explorer") {
  const said = new URLSearchParams();
  for (const key of KEYS) if (state[key] !== undefined) said.set(key, state[key]);
  return `#${section}?${said}`;
}

/** `#section?key=value` -> the section, and the state that it names. */
function readAddress() {
  const [section, text = ""] = location.hash.slice(1).split("?");
  const said = {};
  for (const [key, value] of new URLSearchParams(text)) if (KEYS.includes(key)) said[key] = NUMBERS.has(key) ? Number(value) : value;
  return { section, said };
}
