const ALL_RANKS = -1;
const SINGLE_DEVICE = "single_device";

/** Seeds as one: a point for each line and each value along the axis. keep: which rows; also: a column read beside y. */
function pointsOf(data, rows, along, y, keep) {
  const [series, x, value, colour, variant] = ["series", along, y, "colour", "variant"].map((name) => data.columns.get(name)?.at);
  if (!value) return [];
  const found = new Map();
  for (const row of rows) {
    if (!keep(row) || value(row) === null || x(row) === null) continue;
    const key = `${series(row)}\n${x(row)}`;
    if (!found.has(key)) found.set(key, { series: series(row), variant: variant(row), colour: tint(colour?.(row)), x: x(row), seeds: [], rows: [] });
    found.get(key).seeds.push(value(row));
    found.get(key).rows.push(row);
  }
  for (const point of found.values()) {
    point.y = joined(y, point.seeds);
    point.low = Math.min(...point.seeds);
    point.high = Math.max(...point.seeds);
  }
  return [...found.values()].sort((a, b) => a.x - b.x);
}

/** The variant's colour, the same on every page; single device has the page's ink. */
function tint(colour) {
  return colour === undefined || colour === null || colour < 0 ? "var(--ink)" : `var(--series-${colour})`;
}

function seriesOf(points) {
  const found = new Map();
  for (const point of points) {
    if (!found.has(point.series)) found.set(point.series, []);
    found.get(point.series).push(point);
  }
  return found;
}

/** What a logarithmic axis can show. */
function drawable(point) {
  return point.y > 0 && Number.isFinite(point.y);
}

const MOST_LINES = 12;

/** The points to draw, of the chosen line and of those furthest from one; and what is not drawn. */
function legible(points, chosen) {
  const lines = seriesOf(points.filter(drawable));
  const far = (line) => Math.max(...line.map((point) => Math.abs(Math.log(point.y))));
  const ranked = [...lines.keys()].sort((a, b) => (b === chosen) - (a === chosen) || far(lines.get(b)) - far(lines.get(a)));
  const kept = new Set(ranked.slice(0, MOST_LINES));
  const odd = [...new Set(points.filter((point) => !drawable(point)).map((point) => `${point.series} at ${point.x}`))];
  const notes = [];
  if (ranked.length > kept.size) notes.push(`${kept.size} of ${ranked.length} variants: the chosen one and the furthest.`);
  if (odd.length) notes.push(`Zero or not finite, not drawn: ${odd.slice(0, 3).join(", ")}${odd.length > 3 ? ` and ${odd.length - 3} more` : ""}.`);
  return { points: points.filter((point) => drawable(point) && kept.has(point.series)), note: notes.join(" ") };
}

/** Labels without the details that at least half of them share, as far as they still differ. */
function shortNames(labels) {
  const whole = labels.map((label) => label.split(" · "));
  const alike = labels.length > 1 && whole.every(([first, ...details]) => first === whole[0][0] && details.length); // kernels alone
  const parts = alike ? whole.map(([, ...details]) => details) : whole;
  const number = new Map();
  for (const [, ...details] of parts) for (const detail of new Set(details)) number.set(detail, (number.get(detail) ?? 0) + 1);
  const shared = (least) => parts.map(([first, ...details]) => [first, ...details.filter((each) => number.get(each) < least)].join(" · "));
  const differ = (names) => new Set(names).size === new Set(labels).size;
  const names = labels.length < 2 ? labels : [shared(labels.length / 2), shared(labels.length), labels].find(differ);
  return new Map(labels.map((label, place) => [label, names[place]]));
}
