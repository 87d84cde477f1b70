/** How much of the width the labels at the right end get. */
function labelRoom(width) {
  return Math.min(190, Math.max(118, width * 0.3));
}

/**
 * Lines over an axis, both named. spec: { points, others, along, xLabel, xLog, xTicks, yLabel, yLog, where, rules,
 * borders, height, labels }; others: the same of other reports, dotted. The chosen line is thick, with its seeds' band.
 */
function drawLines(view, state, spec) {
  const { points, note } = legible(spec.points, state.series);
  const others = spec.others.filter(drawable);
  if (view.tall) for (const point of points) if (point.series !== state.series) point.colour = "var(--floor)"; // the key picture: one line in its colour
  view.points = points;
  view.along = spec.along;
  view.say = (point) => spoken(point, state, spec.where);
  view.note.textContent = [spec.note, note].filter(Boolean).join(" ");
  if (!points.length) { view.place.replaceChildren(make("p", { className: "note", textContent: "Nothing to draw: no positive finite value." })); return; }
  const width = Math.max(260, view.place.clientWidth), height = spec.height;
  const room = spec.labels === false ? 20 : labelRoom(width);
  const frame = { width, height, title: `${view.heading.textContent}. ${spec.yLabel}, by ${spec.along}.` };
  const everyX = [...points, ...others].map((point) => point.x);
  const x = { domain: [Math.min(...everyX), Math.max(...everyX)], range: [52, width - room] };
  if (x.domain[0] === x.domain[1]) x.domain = [x.domain[0] * 0.5, x.domain[1] * 2 + 1];
  const shownRules = spec.rules.filter((rule) => rule.y > 0 && Number.isFinite(rule.y));
  const y = { domain: limits([...points, ...others, ...shownRules].map((point) => point.y).concat(spec.yDomain ?? [])), range: [height - 38, 26] };
  const [xAt, yAt] = [scaled(x, spec.xLog), scaled(y, true)];
  view.pixel = (point) => [xAt(point.x), yAt(point.y)];
  const labels = spec.labels === false ? [] : endLabels(points, state.series, Object.assign((value) => yAt(value), { top: 26 }), height - 40, room, spec.valued ?? true);
  const rest = points.filter((point) => point.series !== state.series);
  const chosen = points.filter((point) => point.series === state.series);
  const marked = chosen.length <= 24;
  const line = { x: "x", y: "y", z: "series", stroke: "colour" };
  const svg = svgOf(frame, {
    marginRight: room,
    x: { ...x, type: spec.xLog ? "log" : "linear", axis: null },
    y: { ...y, type: "log", axis: null },
    marks: [
      ...axes(fewer(spec.xTicks ?? linearTicks(...x.domain, 7).filter(Number.isInteger), xAt), logTicks(...y.domain)),
      Plot.text([spec.yLabel], { frameAnchor: "top-left", dx: -46, dy: -20, text: (text) => `↑ ${text}`, fill: "var(--soft)" }),
      Plot.text([spec.xLabel], { frameAnchor: "bottom-right", dy: 32, text: (text) => `${text} →`, fill: "var(--soft)" }),
      Plot.ruleX(spec.borders ?? [], { ariaLabel: "border", stroke: "var(--border)", strokeWidth: 0.8 }),
      Plot.ruleY(shownRules, { y: "y", stroke: "var(--ink)", strokeDasharray: "6 3", strokeWidth: 1.1 }),
      Plot.text(shownRules, { y: "y", text: "text", frameAnchor: "left", textAnchor: "start", dx: 4, dy: 9, fill: "var(--soft)", stroke: "var(--paper)", strokeWidth: 4 }),
      Plot.areaY(chosen.filter((point) => point.low > 0 && point.high > point.low), { x: "x", y1: "low", y2: "high", fill: "colour", fillOpacity: 0.2 }),
      Plot.line(rest, { ...line, strokeWidth: 1.3 }),
      Plot.dot(rest.filter((_, __, all) => all.length <= 150), { x: "x", y: "y", r: 2, fill: "colour" }),
      Plot.line(others, { ...line, strokeWidth: 2, strokeDasharray: "1 4", strokeLinecap: "round" }),
      Plot.line(chosen, { ...line, strokeWidth: 2.8 }),
      Plot.dot(marked ? chosen : [], { x: "x", y: "y", r: 4, fill: "colour" }),
      Plot.dot(chosen.filter((point) => point.here), { x: "x", y: "y", r: 8, stroke: "var(--bad)", strokeWidth: 2 }),
      ...labels.flatMap((label) => [
        Plot.dot([label], { frameAnchor: "right", dx: 12, y: () => yAt.invert(label.at), r: label.chosen ? 4 : 3, fill: "colour" }),
        Plot.text([label], { frameAnchor: "right", textAnchor: "start", dx: 20, y: () => yAt.invert(label.at), text: "text", title: "title",
          fontWeight: label.chosen ? 700 : 400, fill: "var(--ink)" }),
      ]),
      Plot.tip([...points, ...others], Plot.pointer({ x: "x", y: "y", title: (point) => spoken(point, state, spec.where, point.source), fontSize: FONT, maxRadius: 1000,
        preferredAnchor: "bottom" })),
    ],
  });
  view.focused = undefined;
  view.place.replaceChildren(svg);
}

/** Ticks exactly here, with their texts: a library's own choice leaves out labels of a logarithmic axis. */
function axes(xTicks, yTicks, yText = ticked) {
  return [
    Plot.gridY(yTicks), Plot.axisY(yTicks, { text: yText, label: null, tickSize: 0 }),
    Plot.axisX(xTicks, { text: ticked, label: null }),
  ];
}

/** Pixels of a value, and back. */
function scaled({ domain, range }, log) {
  const way = (value) => (log ? Math.log(value) : value);
  const [a, b] = domain.map(way);
  const at = (value) => range[0] + (way(value) - a) / (b - a) * (range[1] - range[0]);
  at.invert = (pixel) => {
    const value = a + (pixel - range[0]) / (range[1] - range[0]) * (b - a);
    return log ? Math.exp(value) : value;
  };
  return at;
}

/** Ticks whose labels do not touch. */
function fewer(ticks, at) {
  if (!ticks) return undefined;
  const kept = [];
  for (const tick of ticks) if (!kept.length || at(tick) - at(kept.at(-1)) > 12 + 7 * String(tick).length) kept.push(tick);
  return kept;
}

/**
 * Dots: of each line one, or one for each category. spec: { points, xLabel, yLabel, xLog, categories, where, stair,
 * height, note, rule }. With categories the y axis names them, else it is logarithmic.
 */
function drawDots(view, state, spec) {
  const points = spec.points.filter((point) => drawable(point) && Number.isFinite(point.x) && (point.x > 0 || !spec.xLog));
  view.points = points;
  view.along = spec.along;
  view.say = (point) => spoken(point, state, spec.where);
  view.note.textContent = spec.note ?? "";
  if (!points.length) { view.place.replaceChildren(make("p", { className: "note", textContent: "Nothing to draw: no positive finite value." })); return; }
  const width = Math.max(260, view.place.clientWidth);
  const left = spec.categories ? Math.min(440, width * 0.42) : 52;
  const letters = Math.floor((left - 16) / 6.6);
  const height = spec.categories ? 72 + 22 * spec.categories.length : spec.height;
  const xs = [...points.map((point) => point.x), ...(spec.rule ? [spec.rule.x] : [])];
  const x = { domain: spec.xLog ? limits(xs) : [0, Math.max(...xs) * 1.12], range: [left, width - 30] };
  const y = { domain: limits(points.map((point) => point.y)), range: [height - 38, 26] };
  const [xAt, yAt] = [scaled(x, spec.xLog), scaled(y, true)];
  const band = (height - 64) / (spec.categories?.length ?? 1);
  view.pixel = (point) => [xAt(point.x), spec.categories ? 26 + band * (spec.categories.indexOf(point.category) + 0.5) : yAt(point.y)];
  const yOf = spec.categories ? "category" : "y";
  const named = spec.categories ? [] : roomy(points.filter((point) => point.series === state.series || spec.stair?.includes(point)), state.series, view.pixel);
  const svg = svgOf({ width, height, title: `${view.heading.textContent}. ${spec.yLabel} against ${spec.xLabel}.` }, {
    marginLeft: left, marginRight: 30,
    x: { ...x, type: spec.xLog ? "log" : "linear", axis: null },
    y: spec.categories ? { type: "point", domain: spec.categories, padding: 0.5, axis: null } : { ...y, type: "log", axis: null },
    marks: [
      ...axes(fewer(spec.xLog ? logTicks(...x.domain) : linearTicks(...x.domain, 5), xAt), spec.categories ?? logTicks(...y.domain),
        spec.categories && ((text) => shortened(spec.names?.get(text) ?? text, letters))),
      Plot.text([spec.yLabel], { frameAnchor: "top-left", dx: spec.categories ? 0 : -46, dy: -20, text: (text) => (spec.categories ? text : `↑ ${text}`), fill: "var(--soft)" }),
      Plot.text([spec.xLabel], { frameAnchor: "bottom-right", dy: 32, text: (text) => `${text} →`, fill: "var(--soft)" }),
      Plot.ruleX(spec.rule ? [spec.rule] : [], { x: "x", stroke: "var(--ink)", strokeDasharray: "6 3", strokeWidth: 1.1, title: "text" }),
      Plot.line(spec.stair ?? [], { x: "x", y: "y", curve: "step-after", stroke: "var(--floor)", strokeWidth: 1 }),
      Plot.dot(points.filter((point) => point.series !== state.series), { x: "x", y: yOf, r: 4, fill: "colour", stroke: "var(--paper)", strokeWidth: 0.5, symbol: (point) => (point.source ? "times" : "circle") }),
      Plot.dot(points.filter((point) => point.series === state.series), { x: "x", y: yOf, r: 6.5, fill: "colour", stroke: "var(--ink)", strokeWidth: 1.5 }),
      ...named.map((point) => Plot.text([point], { x: "x", y: "y", text: () => shortened(point.series, 22), dy: -13, fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 4,
        fontWeight: point.series === state.series ? 700 : 400, textAnchor: xAt(point.x) > width * 0.7 ? "end" : xAt(point.x) < left + 60 ? "start" : "middle" })),
      Plot.tip(points, Plot.pointer({ x: "x", y: yOf, title: (point) => spoken(point, state, spec.where, point.source), fontSize: FONT, maxRadius: 1000, preferredAnchor: "bottom" })),
    ],
  });
  view.focused = undefined;
  view.place.replaceChildren(svg);
}

/** The points whose names do not lie on another's, the chosen one first. */
function roomy(points, chosen, pixel) {
  const kept = [];
  for (const point of [...points].sort((a, b) => (b.series === chosen) - (a.series === chosen))) {
    const [x, y] = pixel(point);
    const free = kept.every((other) => Math.abs(pixel(other)[1] - y) > LINE || Math.abs(pixel(other)[0] - x) > 150);
    if (free) kept.push(point);
  }
  return kept;
}
