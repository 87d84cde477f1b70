/** The one bar: every choice is a select, and every view follows. */
function buildBar(place, shown) {
  const parts = {
    dtype: selector("dtype", [], () => choose({ facet: sibling(parts.dtype.select.value) })),
    facet: selector("setting", [], () => choose({ facet: parts.facet.select.value })),
    tensor: selector("tensor", [], () => choose({ tensor: parts.tensor.select.value })),
    series: selector("variant", [], () => choose({ series: parts.series.select.value })),
    world_size: selector("ranks", [], () => choose({ world_size: Number(parts.world_size.select.value) })),
    y: selector("measure", [], () => choose({ y: parts.y.select.value })),
    cost: selector("cost", [...COSTS], () => choose({ cost: parts.cost.select.value })),
  };
  const rows = () => rowsOf(page.data, page.state);
  const save = button("Download what is shown", () => download(`${stem()}_shown.csv`, "text/csv", asCsv(page.data, rows())));
  const back = button("Reset", () => choose({ cost: "seconds", ...page.preset }));
  const say = (text) => { shown.textContent = text; shown.hidden = !text; };
  const filters = button("Filters", () => { filters.ariaExpanded = String(place.classList.toggle("open")); });
  filters.id = "filters";
  filters.ariaExpanded = "false";
  place.append(filters, ...Object.values(parts).map((part) => part.label), make("span", { className: "buttons" }, save, ...otherReports(say), back));
  page.listeners.push((state) => fillBar(parts, state));
}

/** The same setting in another dtype, or the first of it. */
function sibling(dtype) {
  const rest = page.state.facet.split(" · ").slice(1).join(" · ");
  const among = facetsOf(dtype);
  return among.find((facet) => facet.split(" · ").slice(1).join(" · ") === rest) ?? among[0];
}

function fillBar(parts, state) {
  const choices = choicesOf(state.facet);
  const dtypes = [...new Set([...page.data.index.keys()].map((facet) => choicesOf(facet).dtype))];
  const settings = facetsOf(choices.dtype);
  const plainPairs = (values) => values.map((value) => [value, String(value)]);
  const names = settingNames(settings);
  const offers = {
    dtype: [plainPairs(dtypes), choices.dtype], facet: [settings.map((facet) => [facet, names.get(facet)]), state.facet],
    tensor: [plainPairs(choices.tensors), state.tensor], series: [plainPairs([...choices.series.keys()]), state.series],
    world_size: [plainPairs([...choices.series.get(state.series)].sort((a, b) => a - b)), state.world_size],
    y: [measuresOf(state).map((name) => [name, MEASURES.get(name)]), state.y],
    cost: [[...COSTS], state.cost],
  };
  for (const [name, [pairs, value]] of Object.entries(offers)) {
    parts[name].offer(pairs);
    parts[name].select.value = value ?? "";
    parts[name].label.hidden = name === "cost" ? !VIEWS.find((each) => each.id === "cost").has(state) : name !== "dtype" && pairs.length < 2;
  }
}

/** The first view with something to show stands in the key picture's place, the others below. */
function buildViews() {
  const key = document.getElementById("view-key"), grid = document.getElementById("views");
  const made = new Map();
  const viewOf = (each) => {
    if (!made.has(each.id)) made.set(each.id, figureOf(`view-${each.id}`));
    return made.get(each.id);
  };
  return async (state, current) => {
    const able = VIEWS.filter((each) => each.has(state));
    const first = key && able[0];
    const below = able.filter((each) => each !== first && !each.key);
    for (const each of able) viewOf(each).figure.classList.toggle("wide", each.id === "setting" && each !== first);
    if (first) place(key, [viewOf(first).figure]);
    place(grid, below.map((each) => viewOf(each).figure));
    grid.hidden = !below.length;
    for (const each of [first, ...below].filter(Boolean)) {
      if (!current()) return;
      const view = viewOf(each);
      view.tall = each === first;
      view.heading.textContent = each.title(state);
      each.draw(view, state);
      view.refresh();
      await pause();
    }
  };
}

function place(parent, children) {
  if (children.length !== parent.children.length || children.some((child, index) => child !== parent.children[index])) parent.replaceChildren(...children);
}

/** What a link leads to is opened; a link that names a case sets the state. */
function goTo(scroll) {
  const { section, said } = readAddress();
  if (page.data && Object.keys(said).length) choose({ ...page.preset, ...said }, true);
  const target = document.getElementById(section);
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target?.querySelector(":scope > details")?.setAttribute("open", "");
  if (scroll) target?.scrollIntoView();
  if (page.data && section && !location.hash.includes("?")) history.replaceState(null, "", addressOf(page.state, section));
}

/** Everything interactive is added here; without it the page has the answer and its reasons. */
async function start() {
  for (const code of document.querySelectorAll("main section:not(#environment) pre.command code")) code.after(copyButton(code));
  const explorer = document.getElementById("explorer"), rows = document.getElementById("row-explorer");
  addEventListener("hashchange", () => goTo(true));
  try {
    page.data = await readRows(document.getElementById("rows-data").textContent);
    page.preset = JSON.parse(explorer.dataset.preset);
    if (page.data.index.size) await explore();
    await pause();
    page.listeners.push(exploreRows(page.data, rows));
  } catch (error) {
    rows.hidden = false;
    rows.append(make("p", { className: "warning", textContent: `The rows cannot be shown in this browser (${error.message}). results.parquet has them.` }));
  }
  await pause();
  for (const table of document.querySelectorAll("main section:not(#explorer):not(#rows) table.data")) { sortable(table); }
  goTo(Boolean(location.hash));
}

async function explore() {
  const bar = document.getElementById("bar"), matrix = document.getElementById("matrix");
  bar.hidden = false;
  buildBar(bar, document.getElementById("shown"));
  if (matrix) page.listeners.push((state) => drawMatrix(matrix, state));
  page.listeners.push(buildViews());
  await pause();
  await choose({ ...page.preset, ...readAddress().said }, true);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; follow(page.state); } });
}

start();
