/** The views: each says whether it has something to show of a state, its title, and how it is drawn. */
const HEIGHT = 300;
const ONE_ROUNDING = 6 ** -0.5; // of every term and of the sum, over the condition and u

const ranks = (size) => counted(size, "rank");
const of = (state) => `${state.tensor} of ${shortened(shortNames([...choicesOf(state.facet).series.keys()]).get(state.series), 44)}`;

/** Rows of the state's setting and tensor in this report; in another the same setting, else the first of that dtype. */
function rowsIn(data, state) {
  if (data === page.data || data.index.has(state.facet)) return rowsOf(data, state);
  const dtype = choicesOf(state.facet).dtype;
  const facet = [...data.index.keys()].find((name) => name.split(" · ")[0] === dtype);
  return facet === undefined ? [] : rowsOf(data, { ...state, facet });
}

/** Points of this report, and of each other one under its name. ratio: without single device, which is one by definition. */
function gathered(state, along, y, keepOf, beside = page.others) {
  const skip = (data) => (row) => !y.endsWith("single_device") || data.at("variant", row) !== SINGLE_DEVICE;
  const from = (data) => {
    const keep = keepOf(data), own = skip(data);
    const points = pointsOf(data, rowsIn(data, state), along, y, (row) => own(row) && keep(row));
    for (const point of points) {
      point.errors = point.rows.map((row) => data.at("error_rel", row)).filter((value) => value !== null);
      point.measure = y;
    }
    return points;
  };
  const points = from(page.data);
  const colours = new Map(points.map((point) => [point.series, point.colour]));
  const said = (name) => (point) => ({ ...point, source: name, colour: colours.get(point.series) ?? point.colour });
  return { points, others: beside.flatMap(({ name, data }) => from(data).map(said(name))) };
}

function ruled(state, y, whole = true) {
  const rows = rowsOf(page.data, state).filter((row) => page.data.at("rank", row) === ALL_RANKS && page.data.at("series", row) === state.series);
  const mean = (name) => {
    const values = rows.map((row) => page.data.at(name, row)).filter((value) => value !== null);
    return values.length ? joined(name, values) : NaN;
  };
  if (y === "x_single_device") return [{ y: 1, text: "single device" }];
  if (y === "x_floor") return [{ y: 1, text: "rounding floor" }];
  if (y === "x_condition") return [{ y: ONE_ROUNDING, text: "one rounding of every term" }];
  if (y !== "error_rel" || !whole) return [];
  return [{ y: mean("single_device_rel"), text: "single device" }, { y: mean("floor_rel"), text: "rounding floor" }];
}

const VIEWS = [
  {
    id: "growth",
    has: (state) => [...choicesOf(state.facet).series.values()].some((sizes) => sizes.size > 1),
    title: (state) => `${single(state) ? shortened(state.series, 44) : of(state)}, over the ranks`,
    draw(view, state, y = null) {
      if (!y && single(state)) return drawPanels(view, state, this);
      const keep = (data) => (row) => data.at("rank", row) === ALL_RANKS;
      const found = gathered(state, "world_size", state.y, keep);
      for (const point of found.points) { point.click = { series: point.series, world_size: point.x }; point.here = point.x === state.world_size; }
      const row = rowsOf(page.data, state).find((each) => page.data.at("series", each) === state.series && page.data.at("growth", each));
      drawLines(view, state, { ...found, along: "ranks", xLabel: "ranks", xLog: true, xTicks: [...new Set(found.points.map((point) => point.x))].sort((a, b) => a - b),
        yLabel: MEASURES.get(state.y), rules: ruled(state, state.y), where: (point) => ranks(point.x), height: y ? (innerWidth < 760 ? 170 : 220) : view.tall ? 380 : HEIGHT, labels: !y, yDomain: y,
        note: row === undefined ? "" : `${page.data.at("growth", row)}.` });
    },
  },
  {
    id: "ranking",
    key: true, // only where nothing else can be the key picture
    has: (state) => choicesOf(state.facet).series.size > 1,
    title: (state) => `${state.tensor}, variant by variant`,
    draw(view, state) {
      const size = (data, row) => nearest(choicesOf(data.at("facet", row)).series.get(data.at("series", row)), state.world_size);
      const keep = (data) => (row) => data.at("rank", row) === ALL_RANKS && (data !== page.data || data.at("world_size", row) === size(data, row));
      const { points } = gathered(state, "world_size", state.y, keep, []);
      const ranked = points.sort((a, b) => (b.series === state.series) - (a.series === state.series) || b.y - a.y).slice(0, 14).sort((a, b) => b.y - a.y);
      const dots = ranked.map((point) => ({ ...point, size: point.x, x: point.y, category: point.series, at: point.x, click: { series: point.series } }));
      const [rule] = ruled(state, state.y);
      drawDots(view, state, { points: dots, categories: dots.map((point) => point.category), names: shortNames(dots.map((point) => point.category)), xLog: true, along: "ranks",
        xLabel: MEASURES.get(state.y), yLabel: "", where: (point) => ranks(point.size), rule: rule && { x: rule.y, text: rule.text },
        note: points.length > 14 ? `14 of ${points.length} variants: the chosen one and the furthest.` : "" });
    },
  },
  {
    id: "rank",
    has: (state) => rowsOf(page.data, state).some((row) => page.data.at("rank", row) >= 0 && page.data.at("world_size", row) > 1),
    title: (state) => `${of(state)}, rank by rank, ${ranks(state.world_size)}`,
    draw(view, state) {
      const keep = (data) => (row) => data.at("rank", row) >= 0 && data.at("world_size", row) === state.world_size && state.world_size > 1;
      let y = state.y, found = gathered(state, "rank", y, keep);
      if (!found.points.length) { y = "error_rel"; found = gathered(state, "rank", y, keep); }
      for (const point of found.points) point.click = { series: point.series };
      const missing = found.points.some((point) => point.series === state.series) ? "" : `No rows of single ranks of ${state.series} at ${ranks(state.world_size)}.`;
      drawLines(view, state, { ...found, along: "rank", xLabel: "rank", yLabel: MEASURES.get(y), rules: ruled(state, y, false),
        where: (point) => `rank ${point.x} of ${state.world_size}`, height: HEIGHT, note: missing, valued: false });
    },
  },
  {
    id: "token",
    has: () => Boolean(page.data.positions?.count),
    title: (state) => `${of(state)}, token by token${profileRows(page.data, state).length ? `, ${ranks(profileSize(state))}` : ""}`,
    draw(view, state) {
      if (!profileRows(page.data, state).length) return offerProfiles(view, state);
      const points = tokenPoints(page.data, state);
      const others = page.others.flatMap(({ name, data }) => tokenPoints(data, state).map((point) => ({ ...point, source: name })));
      const ratio = points.some((point) => point.ratio);
      const borders = points.filter((point, place) => place && point.rank !== points[place - 1].rank && point.rank >= 0).map((point) => point.begin);
      const size = profileSize(state);
      drawLines(view, state, { points, others, along: "token", xLabel: "global token", yLabel: ratio ? "rms error, times single device" : "rms error", labels: false,
        rules: ratio ? [{ y: 1, text: "single device" }] : [], borders: borders.length <= 64 ? borders : [], where: (point) => `tokens ${point.begin} to ${point.end - 1}, rank ${point.rank < 0 ? "several" : point.rank}`,
        height: HEIGHT, note: size === state.world_size ? "" : `Recorded at ${ranks(size)}.` });
    },
  },
  {
    id: "cost",
    has: (state) => new Set(rowsOf(page.data, state).filter((row) => page.data.at(state.cost, row) !== null).map((row) => page.data.at("series", row))).size > 1,
    title: (state) => `${state.tensor}: time and memory beside error`,
    draw(view, state) {
      const at = page.data.at, sizes = choicesOf(state.facet).series;
      const rows = rowsOf(page.data, state).filter((row) => at("rank", row) === ALL_RANKS && at("world_size", row) === nearest(sizes.get(at("series", row)), state.world_size));
      const y = state.y === "x_single_device" ? "error_rel" : state.y; // single device has a place beside the others
      const unit = state.cost === "peak_bytes" ? 2 ** 20 : 1;
      const points = pointsOf(page.data, rows, "world_size", y, () => true).map((point) => {
        const spent = point.rows.map((row) => at(state.cost, row)).filter((value) => value !== null).sort((a, b) => a - b);
        const cost = state.cost === "seconds" ? spent[0] : spent[Math.floor(spent.length / 2)];
        return { ...point, measure: y, size: point.x, at: point.x, x: cost === undefined ? NaN : cost / unit, click: { series: point.series } };
      });
      const widest = points.filter((point) => point.size === state.world_size && Number.isFinite(point.x) && drawable(point)).sort((a, b) => a.x - b.x || a.y - b.y);
      const stair = widest.filter((point, place) => widest.slice(0, place).every((before) => before.y > point.y));
      const named = (point) => `${ranks(point.size)}, ${state.cost === "seconds" ? `${plain(point.x)} s` : `${plain(point.x)} MiB`}`;
      drawDots(view, state, { points, xLabel: COSTS.get(state.cost), yLabel: MEASURES.get(y), where: named, along: "ranks", stair: stair.length > 1 ? stair : [],
        height: HEIGHT, note: "Stair: no variant is both cheaper and nearer. Simulated ranks share one device: compare schedules." });
    },
  },
  {
    id: "setting",
    has: (state) => [...seriesOf(settingPoints(state)).values()].some((points) => points.some((point) => point.y !== points[0].y)),
    title: (state) => `${state.tensor}, every setting in ${choicesOf(state.facet).dtype}`,
    draw(view, state) {
      const facets = facetsOf(choicesOf(state.facet).dtype);
      const names = settingNames(facets), points = settingPoints(state);
      const furthest = (facet) => Math.max(0, ...points.filter((point) => point.category === facet && drawable(point)).map((point) => point.y));
      facets.sort((a, b) => furthest(b) - furthest(a));
      const [rule] = ruled(state, state.y);
      drawDots(view, state, { points, categories: facets, names, xLog: true, xLabel: MEASURES.get(state.y), yLabel: "", along: "setting",
        where: (point) => `${point.category}, ${ranks(point.size)}`, rule: rule && { x: rule.y, text: rule.text } });
    },
  },
];

/** Whether one variant was measured: its tensors stand beside each other. */
function single(state) {
  const { series, tensors } = choicesOf(state.facet);
  return tensors.length > 1 && [...series.keys()].filter((name) => !(name === SINGLE_DEVICE || name.startsWith(`${SINGLE_DEVICE} `))).length === 1;
}

/** A panel for each tensor, the chosen one first, on one scale. */
function drawPanels(view, state, { draw }) {
  view.panels ??= new Map();
  view.details.hidden = true;
  view.place.onkeydown = view.place.onclick = null;
  view.place.removeAttribute("tabindex");
  view.note.hidden = true;
  const tensors = [state.tensor, ...choicesOf(state.facet).tensors.filter((name) => name !== state.tensor)];
  const states = tensors.map((tensor) => ({ ...state, tensor })).filter((each) => measuresOf(each).includes(state.y));
  const panels = states.map(({ tensor }) => {
    if (!view.panels.has(tensor)) view.panels.set(tensor, figureOf(`view-growth-${tensor}`));
    return view.panels.get(tensor);
  });
  const keep = (data) => (row) => data.at("rank", row) === ALL_RANKS;
  const values = states.flatMap((each) => gathered(each, "world_size", state.y, keep).points.filter(drawable).map((point) => point.y));
  place(view.place, panels.map((each) => each.figure));
  view.place.classList.add("panels");
  panels.forEach((panel, number) => {
    panel.heading.textContent = states[number].tensor;
    draw(panel, states[number], values);
    panel.refresh();
  });
}

/** Of each line in each setting of the dtype one point, at the state's ranks or as many as the line has. */
function settingPoints(state) {
  const facets = facetsOf(choicesOf(state.facet).dtype), names = settingNames(facets);
  return facets.flatMap((facet) => {
    const sizes = choicesOf(facet).series, here = { ...state, facet };
    const keep = (data) => (row) => data.at("rank", row) === ALL_RANKS && data.at("world_size", row) === nearest(sizes.get(data.at("series", row)), state.world_size);
    return gathered(here, "world_size", state.y, keep, []).points.map((point) => ({ ...point, size: point.x, x: point.y, category: facet, at: names.get(facet), click: { facet, series: point.series } }));
  });
}

/** Settings of one dtype by what tells them apart. */
function settingNames(facets) {
  const rest = (facet) => facet.split(" · ").slice(1).join(" · ") || facet;
  const names = shortNames(facets.map(rest));
  return new Map(facets.map((facet) => [facet, names.get(rest(facet))]));
}

function facetsOf(dtype) {
  return [...page.data.index.keys()].filter((facet) => choicesOf(facet).dtype === dtype).sort(new Intl.Collator("en", { numeric: true }).compare);
}

/** Rows of the recorded errors along the sequence, of the state's setting, tensor and line. */
function profileRows(data, state, series = state.series) {
  return data.positions?.index.get(state.facet)?.get(state.tensor)?.filter((row) => data.positions.at("series", row) === series) ?? [];
}

/** The chosen line was not recorded by token: which lines were. */
function offerProfiles(view, state) {
  const { at, index } = page.data.positions;
  const linesOf = (facet) => [...new Set((index.get(facet)?.get(state.tensor) ?? []).map((row) => at("series", row)))].map((series) => ({ facet, series }));
  const near = [state.facet, ...[...index.keys()].filter((facet) => facet !== state.facet)].flatMap(linesOf).slice(0, 8);
  const named = ({ facet, series }) => (facet === state.facet ? series : `${series}, ${facet}`);
  view.points = [];
  view.note.textContent = "The table has no errors by token of this line. It has those of:";
  view.place.replaceChildren(make("p", { className: "offered" }, ...near.map((each) => Object.assign(button(shortened(named(each), 40), () => choose(each)), { title: named(each) }))));
}

function profileSize(state) {
  return nearest(new Set(profileRows(page.data, state).map((row) => page.data.positions.at("world_size", row))), state.world_size);
}

/** Rms errors by token, over single device's where the measure is a ratio and single device was recorded. */
function tokenPoints(data, state) {
  if (!data.positions) return [];
  const at = data.positions.at, size = profileSize(state);
  const rows = profileRows(data, state).filter((row) => at("world_size", row) === size);
  const compared = new Map();
  if (state.y.startsWith("x_") && state.series !== SINGLE_DEVICE) {
    const name = singleDeviceOf(data, state);
    if (name !== undefined) for (const row of profileRows(data, state, name)) compared.set(at("token_begin", row), at("error_rms", row));
  }
  const ratio = rows.every((row) => compared.get(at("token_begin", row)) > 0);
  const known = data.at("colour", rowsOf(data, state).find((row) => data.at("series", row) === state.series) ?? 0);
  return rows.map((row) => {
    const begin = at("token_begin", row), end = at("token_end", row), rms = at("error_rms", row);
    return { series: state.series, colour: tint(known), x: (begin + end) / 2, y: ratio ? rms / compared.get(begin) : rms, begin, end, at: begin,
      rank: at("rank", row), ratio, measure: "rms", label: ratio ? "rms error, times single device" : "rms error" };
  }).sort((a, b) => a.x - b.x);
}

/** The single-device line with the state's kernel, if there is one. */
function singleDeviceOf(data, state) {
  const rows = rowsOf(data, state);
  const mine = rows.find((row) => data.at("series", row) === state.series);
  const found = rows.find((row) => data.at("variant", row) === SINGLE_DEVICE && (mine === undefined || data.at("kernel", row) === data.at("kernel", mine)));
  return found === undefined ? undefined : data.at("series", found);
}
