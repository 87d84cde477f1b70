/**
 * The embedded rows, written by report/embedded.py: base64 of gzip of JSON
 * -> { count, columns: Map(name -> {name, kind, at(row)}), command(row) }.
 */
async function readRows() {
  const text = document.getElementById("rows-data").textContent.trim();
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { count, cases, commands, columns } = await new Response(stream).json();
  const read = ({ name, by_case, texts, places, numbers }) => {
    const values = texts ? places.map((place) => texts[place] ?? null) : numbers.map(finite);
    return [name, { name, kind: texts ? "text" : "number", at: (row) => values[by_case ? cases[row] : row] }];
  };
  return { count, columns: new Map(columns.map(read)), command: (row) => commands[cases[row]] };
}

/** JSON has no infinity: it travels as text. */
function finite(value) {
  return value === "inf" ? Infinity : value === "-inf" ? -Infinity : value;
}

/** Distinct values of a column: text in order, numbers ascending. */
function distinct(data, name) {
  const column = data.columns.get(name);
  const found = new Set();
  for (let row = 0; row < data.count; row++) found.add(column.at(row));
  found.delete(null);
  return [...found].sort(column.kind === "number" ? (a, b) => a - b : undefined);
}

const WHOLE_NUMBERS = new Set(["world_size", "seed", "rank", "batch", "seqlen", "seqlen_q", "heads", "heads_kv", "head_dim",
  "nonfinite", "worst_batch", "worst_token", "worst_head", "worst_dim"]);

/** A value as the tables of this page write it. */
function written(name, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (name === "rank" && value === -1) return "all";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (WHOLE_NUMBERS.has(name) || value === 0) return String(value);
  if (name === "peak_bytes") return `${(value / 2 ** 20).toPrecision(3)} MiB`;
  if (name === "seconds") return `${Number(value.toPrecision(3))} s`;
  if (name.startsWith("x_")) return value >= 1e5 ? value.toExponential(2) : `${Number(value.toPrecision(3))}×`;
  if (name === "ulp_max" || name === "error_bias_t" || name === "softmax_scale") return String(Number(value.toPrecision(4)));
  return value.toExponential(2).replace("e+", "e");
}

const DERIVED = new Set(["series", "facet"]);

/** All rows of this file as CSV; a text that a spreadsheet would run as a formula is disarmed. */
function asCsv(data) {
  const columns = [...data.columns.values()].filter((column) => !DERIVED.has(column.name));
  const quoted = (value) => {
    if (value === null) return "";
    if (typeof value !== "string") return value === Infinity ? "inf" : value === -Infinity ? "-inf" : String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns.map((column) => column.name).join(",")];
  for (let row = 0; row < data.count; row++) lines.push(columns.map((column) => quoted(column.at(row))).join(","));
  return lines.join("\n") + "\n";
}

/** All rows of this file as a JSON list of objects; infinities as the text "inf". */
function asJson(data) {
  const columns = [...data.columns.values()].filter((column) => !DERIVED.has(column.name));
  const rows = Array.from({ length: data.count }, (_, row) =>
    Object.fromEntries(columns.map((column) => {
      const value = column.at(row);
      return [column.name, value === Infinity ? "inf" : value === -Infinity ? "-inf" : value];
    })));
  return JSON.stringify(rows);
}

function download(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** A labelled select. choices: [value, text] pairs. */
function selector(label, choices, onchange) {
  const select = make("select", { onchange, ariaLabel: label });
  for (const [value, text] of choices) select.append(make("option", { value, textContent: text }));
  return { select, label: make("label", {}, label, select) };
}
