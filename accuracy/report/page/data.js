/**
 * The rows of a page, written by report/explorer.py: base64 of gzip of JSON
 * -> { count, columns: Map(name -> {name, kind, at(row)}), at(name, row), command(row), positions }.
 */
async function readRows(text) {
  const letters = atob(text.trim());
  const packed = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) packed[place] = letters.charCodeAt(place);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const plainText = await new Response(stream).text();
  await pause();
  const { count, cases, commands, columns, positions } = JSON.parse(plainText);
  await pause();
  const data = tableOf(count, columns, cases);
  data.command = (row) => commands[cases[row]];
  data.positions = positions ? tableOf(positions.count, positions.columns, []) : null;
  await pause();
  data.index = indexed(data);
  if (data.positions) data.positions.index = indexed(data.positions);
  return data;
}

function tableOf(count, columns, cases) {
  const read = ({ name, by_case, texts, places, numbers }) => {
    const values = texts ? places.map((place) => texts[place] ?? null) : numbers;
    if (!texts) for (let place = 0; place < values.length; place++) if (typeof values[place] === "string") values[place] = finite(values[place]);
    return [name, { name, kind: texts ? "text" : "number", at: by_case ? (row) => values[cases[row]] : (row) => values[row] }];
  };
  const found = new Map(columns.map(read));
  return { count, columns: found, at: (name, row) => found.get(name)?.at(row) ?? null };
}

/** JSON has no infinity: it travels as text. */
function finite(value) {
  return value === "inf" ? Infinity : -Infinity;
}

/** Setting -> tensor -> its rows. */
function indexed(data) {
  const [facet, tensor] = ["facet", "tensor"].map((name) => data.columns.get(name).at);
  const found = new Map();
  for (let row = 0; row < data.count; row++) {
    const name = tensor(row);
    if (name === null) continue;
    if (!found.has(facet(row))) found.set(facet(row), new Map());
    const tensors = found.get(facet(row));
    if (!tensors.has(name)) tensors.set(name, []);
    tensors.get(name).push(row);
  }
  return found;
}

const DERIVED = new Set(["series", "facet", "colour", "growth"]);

function exported(data) {
  return [...data.columns.values()].filter((column) => !DERIVED.has(column.name));
}

/** Rows as CSV; a text that a spreadsheet would run as a formula is disarmed. */
function asCsv(data, rows) {
  const columns = exported(data);
  const quoted = (value) => {
    if (value === null) return "";
    if (typeof value !== "string") return value === Infinity ? "inf" : value === -Infinity ? "-inf" : String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns.map((column) => column.name).join(",")];
  for (const row of rows) lines.push(columns.map((column) => quoted(column.at(row))).join(","));
  return lines.join("\n") + "\n";
}

/** Rows as a JSON list of objects; infinities as the text "inf". */
function asJson(data, rows) {
  const columns = exported(data);
  const said = (value) => (value === Infinity ? "inf" : value === -Infinity ? "-inf" : value);
  return JSON.stringify(rows.map((row) => Object.fromEntries(columns.map((column) => [column.name, said(column.at(row))]))));
}

function stem() {
  return document.getElementById("rows-data").dataset.experiment.replace(/[^a-z0-9_]/gi, "_") || "rows";
}
