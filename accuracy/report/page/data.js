/** The embedded rows: base64 of gzip of columnar JSON -> { count, columns: Map(name -> {kind, at(row)}), commands }. */
async function readRows() {
  const text = document.getElementById("rows-data").textContent.trim();
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const content = JSON.parse(await new Response(stream).text());
  const columns = new Map();
  for (const column of content.columns) {
    const at = column.codes
      ? (row) => (column.codes[row] < 0 ? null : column.texts[column.codes[row]])
      : (row) => number(column.numbers[row]);
    columns.set(column.name, { name: column.name, kind: column.codes ? "text" : "number", at, codes: column.codes, texts: column.texts });
  }
  return { count: content.count, columns, commands: new Map(Object.entries(content.commands)) };
}

/** JSON has no infinity: it travels as text. */
function number(value) {
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return value;
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
