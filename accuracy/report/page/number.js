const MINUS = "−";

/** `1.22`, `12.2`, `0.031`: as accuracy/core/number.py writes ratios; far from one it falls back to `1.23e-4`. */
function plain(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits));
  const size = Math.abs(rounded);
  if (size >= 1e5 || size < 1e-3) return scientific(rounded, digits);
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return rounded.toFixed(size >= 1 ? decimals : Math.min(decimals, digits));
}

/** `1.23e-4`. */
function scientific(value, digits = 3) {
  return value.toExponential(digits - 1).replace("e+", "e");
}

const WHOLE_NUMBERS = new Set(["world_size", "seed", "rank", "batch", "seqlen", "seqlen_q", "heads", "heads_kv", "head_dim",
  "nonfinite", "worst_batch", "worst_token", "worst_head", "worst_dim", "layers", "layer", "width", "feed_forward", "vocabulary"]);

/** A value as the tables of this page write it. */
function written(name, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (name === "rank" && value === -1) return "all";
  if (!Number.isFinite(value)) return plain(value);
  if (WHOLE_NUMBERS.has(name) || value === 0) return String(value);
  if (name === "peak_bytes") return `${(value / 2 ** 20).toPrecision(3)} MiB`;
  if (name === "seconds") return `${Number(value.toPrecision(3))} s`;
  if (name.startsWith("x_")) return `${plain(value)}×`;
  if (name === "ulp_max" || name === "error_bias_t" || name === "softmax_scale") return String(Number(value.toPrecision(4)));
  return scientific(value);
}

function counted(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

/** One number for several seeds: the greatest of maxima, else the geometric mean (infinite if one is, else zero if one is). */
function joined(name, values) {
  if (name.endsWith("_max")) return Math.max(...values);
  if (values.some((value) => value <= 0 || value === Infinity)) return Math.max(...values) === Infinity ? Infinity : 0;
  return Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
}

const STEPS_OF_A_DECADE = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8],
  Array.from({ length: 180 }, (_, place) => 1 + place / 20)];

/** About five round places between two positive numbers on a logarithmic axis. */
function logTicks(low, high, most = 6) {
  let inside = [];
  for (const steps of STEPS_OF_A_DECADE) {
    inside = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++) {
      inside.push(...steps.map((step) => Number((step * 10 ** decade).toPrecision(4))).filter((place) => place >= low && place <= high));
    }
    if (inside.length >= 3) break;
  }
  const every = Math.ceil(inside.length / most);
  const start = Math.max(0, inside.indexOf(1)) % every; // one is among them
  return inside.filter((_, place) => place % every === start);
}
