/**
 * The embedded rows, written by report/block.py: base64 of gzip of a line of JSON and then bytes
 * -> { count, columns: Map(name -> {name, kind, at(row)}), command(row) }.
 */
async function readRows() {
  const text = document.getElementById("rows-data").textContent.trim();
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let place = bytes.indexOf(10) + 1;
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, place)));

  /** The next column of whole numbers: all lowest bytes, then all next ones. */
  function whole(width) {
    const found = new Int32Array(head.count);
    for (let part = 0; part < width; part++) {
      for (let row = 0; row < head.count; row++) found[row] |= bytes[place++] << (8 * part);
    }
    const unused = 32 - 8 * width;
    return found.map((value) => (value << unused) >> unused);
  }

  const cases = whole(4);
  const columns = new Map(head.columns.map((column) => [column.name, readColumn(column, cases, whole)]));
  return { count: head.count, columns, command: (row) => head.commands[cases[row]] };
}

const MISSING = -(2 ** 15), INFINITE = 2 ** 15 - 1, MISSING_WHOLE = -(2 ** 31);

/** A column says a value for each case, or texts by their places in a list, or whole numbers, or digits and powers of ten. */
function readColumn(column, cases, whole) {
  const { name } = column;
  if (column.cases) {
    const values = column.text ? column.cases : column.cases.map(unpacked);
    return { name, kind: column.text ? "text" : "number", at: (row) => values[cases[row]] };
  }
  if (column.texts) {
    const places = whole(4);
    return { name, kind: "text", at: (row) => (places[row] < 0 ? null : column.texts[places[row]]) };
  }
  const leading = whole(column.bytes);
  if (!column.power) return { name, kind: "number", at: (row) => (leading[row] === MISSING_WHOLE ? null : leading[row]) };
  const powers = whole(column.power);
  const values = Float64Array.from(leading, (digits, row) =>
    powers[row] === MISSING ? NaN : powers[row] === INFINITE ? digits * Infinity : Number(`${digits}e${powers[row]}`));
  return { name, kind: "number", at: (row) => (Number.isNaN(values[row]) ? null : values[row]) };
}

/** JSON has no infinity: it travels as text. */
function unpacked(value) {
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
