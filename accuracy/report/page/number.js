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

/** A number at an axis: `1.2`, `64`, `2.5e-3`. */
function ticked(value) {
  const near = value === 0 || (Math.abs(value) >= 0.01 && Math.abs(value) < 1e5);
  return near ? Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 }) : value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
}

const WHOLE_NUMBERS = new Set(["world_size", "seed", "rank", "batch", "seqlen", "seqlen_q", "heads", "heads_kv", "head_dim",
  "nonfinite", "worst_batch", "worst_token", "worst_head", "worst_dim"]);

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

const STEPS_OF_A_DECADE = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]];
const NARROW = 3; // times, below which round steps are read faster than those of a decade

/** About five round places between two positive numbers on a logarithmic axis; one is among them if it is inside. */
function logTicks(low, high, most = 6) {
  if (high / low < NARROW) return linearTicks(low, high, most);
  let inside = [];
  for (const steps of STEPS_OF_A_DECADE) {
    inside = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++) {
      inside.push(...steps.map((step) => Number((step * 10 ** decade).toPrecision(4))).filter((place) => place >= low && place <= high));
    }
    if (inside.length >= 3) break;
  }
  const every = Math.ceil(inside.length / most);
  const start = Math.max(0, inside.indexOf(1)) % every;
  return inside.filter((_, place) => place % every === start);
}

/** Multiples of 1, 2 or 5 times a power of ten. */
function linearTicks(low, high, most = 6) {
  const least = (high - low) / most;
  const decade = 10 ** Math.floor(Math.log10(least));
  const step = decade * [1, 2, 5, 10].find((part) => decade * part >= least);
  const found = [];
  for (let place = Math.ceil(low / step); place * step <= high; place++) found.push(Number((place * step).toPrecision(6)));
  return found;
}
