const FONT = 12;
const LINE = 15; // px between two labels
const ALIKE = 1.04; // ends within 4% share a label

/** Limits of a logarithmic axis around values, never so narrow that noise looks large. */
function limits(values, least = 1.15) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const grown = Math.max(1.04, (high / low) ** 0.05, Math.sqrt(least / (high / low)));
  return [low / grown, high * grown];
}

/** Labels at the ends of lines: the value, and the name or how many share it; from the top down, none on another. */
function endLabels(points, chosen, yOf, height, room, valued) {
  const ends = [...seriesOf(points).values()].map((line) => line.at(-1)).sort((a, b) => b.y - a.y);
  const groups = [];
  for (const end of ends) {
    const last = groups.at(-1);
    const alone = end.series === chosen || last?.[0].series === chosen;
    if (last && !alone && last[0].y < ALIKE * end.y) last.push(end);
    else groups.push([end]);
  }
  const names = shortNames(ends.map((end) => end.series));
  const letters = Math.floor((room - 14) / 6.3);
  const labels = groups.map((group) => ({
    y: yOf(group[0].y), group, colour: group.length === 1 ? group[0].colour : "var(--floor)", chosen: group[0].series === chosen,
    text: shortened(`${valued ? `${plain(group[0].y)} ` : ""}${group.length > 1 ? counted(group.length, "variant") : names.get(group[0].series)}`, letters),
    title: group.map((end) => `${end.series}: ${plain(end.y)} at ${end.x}`).join("\n"),
  }));
  const top = yOf.top;
  labels.forEach((label, place) => { label.at = Math.max(label.y, place ? labels[place - 1].at + LINE : top); });
  for (let place = labels.length - 1, low = height; place >= 0; place--) {
    labels[place].at = Math.min(labels[place].at, low);
    low = labels[place].at - LINE;
  }
  return labels;
}

function shortened(text, letters) {
  return text.length <= letters ? text : `${text.slice(0, Math.max(1, letters - 1)).trimEnd()}…`;
}

/** What a reader sees of a point: its line, where it is, its value with the seeds' range, its relative error. */
function spoken(point, state, where, source = "") {
  const lines = [`${point.series}${source && ` (${source})`}, ${where(point)}`, `${MEASURES.get(point.measure) ?? point.label}: ${written(point.measure, point.y).replace("×", "")}`];
  if (point.seeds?.length > 1) lines.push(`${point.seeds.length} seeds: ${plain(point.low)} to ${plain(point.high)}`);
  if (point.errors?.length && state.y !== "error_rel") lines.push(`relative error ${scientific(joined("error_rel", point.errors))}`);
  return lines.join("\n");
}

/** The svg of a chart, which fills its frame. */
function svgOf(frame, options) {
  const svg = Plot.plot({
    width: frame.width, height: frame.height, marginLeft: 52, marginRight: 20, marginTop: 26, marginBottom: 38,
    style: { fontSize: `${FONT}px`, background: "none", color: "var(--ink)", overflow: "visible" },
    color: { type: "identity" }, ...options,
  });
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", frame.title);
  svg.classList.add("live");
  return svg;
}

/** A figure with its heading, its place for the drawing, and its numbers, which are only made when they are opened. */
function figureOf(id) {
  const heading = make("h3");
  const note = make("p", { className: "note" });
  const place = make("div", { className: "plot", tabIndex: 0, role: "group" });
  const said = make("p", { className: "visually-hidden", role: "status" });
  const details = make("details", { className: "numbers" }, make("summary", { textContent: "Numbers, image, link" }));
  const figure = make("figure", { className: "view", id }, make("figcaption", {}, heading, note), place, said, details);
  const view = { figure, heading, note, place, said, details, points: [] };
  const link = make("code", { hidden: true });
  const copy = copyButton(link, "Copy link");
  copy.onfocus = copy.onpointerenter = () => { link.textContent = location.href.split("#")[0] + addressOf(page.state); };
  const save = ["SVG", "PNG"].map((kind) => button(kind, () => saveChart(place.querySelector("svg"), heading.textContent, kind)));
  const ways = make("div", { className: "offered" }, ...save, copy, link);
  details.ontoggle = view.refresh = () => { if (details.open) details.replaceChildren(details.firstChild, ways, numbersTable(view)); };
  place.onkeydown = (event) => stepThrough(view, event);
  place.onclick = () => { const point = place.querySelector("svg")?.value; if (point?.click) choose(point.click); };
  return view;
}

/** The drawing alone, with the colours and letters that it has in the page: SVG, or a PNG of twice its size. */
async function saveChart(svg, title, kind) {
  const copy = svg.cloneNode(true), shown = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((part, number) => {
    const style = getComputedStyle(shown[number]);
    for (const name of ["fill", "stroke", "color", "font-family", "font-size", "font-weight"]) part.style.setProperty(name, style.getPropertyValue(name));
  });
  copy.style.background = getComputedStyle(document.body).getPropertyValue("--paper");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const text = new XMLSerializer().serializeToString(copy), name = `${stem()}_${title.replace(/\W+/g, "_")}`;
  if (kind === "SVG") { download(`${name}.svg`, "image/svg+xml", text); return; }
  const image = make("img", { src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}` });
  await image.decode();
  const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(`${name}.png`, "image/png", blob));
}

/** The chart's points as a table. */
function numbersTable({ points, heading, along }) {
  const head = ["variant", along, "value", "least seed", "greatest seed"];
  const rows = points.slice(0, 1000).map((point) => make("tr", {}, make("th", { scope: "row", textContent: point.series }),
    ...[point.at ?? point.x, plain(point.y), plain(point.low ?? point.y), plain(point.high ?? point.y)].map((text) => make("td", { textContent: text }))));
  const table = make("table", { className: "data" }, make("caption", { textContent: heading.textContent }),
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col", textContent: text })))), make("tbody", {}, ...rows));
  sortable(table);
  return make("div", { className: "scroll long", tabIndex: 0, role: "region", ariaLabel: heading.textContent }, table);
}

/** Arrow keys go from point to point and from line to line, Enter chooses; the tip and a status line follow. */
function stepThrough(view, event) {
  const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  const svg = view.place.querySelector("svg");
  if (!svg || (!step && event.key !== "Enter") || !view.points.length) return;
  event.preventDefault();
  if (!step) { view.place.onclick(); return; }
  const lines = [...seriesOf(view.points)];
  const here = view.focused ?? view.points.find((point) => point.series === page.state.series) ?? view.points[0];
  let row = lines.findIndex(([name]) => name === here.series);
  const column = Math.max(0, lines[row][1].indexOf(here));
  row = (row + step[1] + lines.length) % lines.length;
  const line = lines[row][1];
  view.focused = line[Math.min(line.length - 1, Math.max(0, column + (view.focused ? step[0] : 0)))];
  const [x, y] = view.pixel(view.focused);
  const box = svg.getBoundingClientRect();
  const at = { clientX: box.left + x, clientY: box.top + y, pointerType: "mouse", bubbles: true };
  svg.dispatchEvent(new PointerEvent("pointerenter", at));
  svg.dispatchEvent(new PointerEvent("pointermove", at));
  view.said.textContent = view.say(view.focused);
}
