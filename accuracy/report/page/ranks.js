/** Any variant, setting and world size by rank: maximum and mean per tensor, a bar in each cell. */
function exploreRanks(data, place) {
  const at = (name, row) => data.columns.get(name).at(row);
  const rows = [];
  for (let row = 0; row < data.count; row++) if (at("rank", row) >= 0 && at("tensor", row)) rows.push(row);
  if (!rows.length) return;
  const kept = (name) => [...new Set(rows.map((row) => at(name, row)))];
  const plain = (values) => values.map((value) => [value, value]);
  const draw = () => table.replaceChildren(...rankTable());
  const sizes = kept("world_size").sort((a, b) => b - a);
  const against = selector("Against", [["error", "float64 (error)"], ["diff", "single device (diff)"]], draw);
  const series = selector("Variant", plain(kept("series").sort()), draw);
  const facet = selector("Setting", plain(kept("facet")), draw);
  const size = selector("World size", plain(sizes), draw);
  const seed = selector("Seed", [["", "all"], ...plain(kept("seed").sort((a, b) => a - b))], draw);
  const order = ["out", "lse", "dq", "dk", "dv", "delta"];
  const tensors = kept("tensor").sort((a, b) => (order.indexOf(a) + 99) % 99 - (order.indexOf(b) + 99) % 99);
  const table = make("table", { className: "data" });
  const panel = document.querySelector("#ranks > .panel");
  if (panel) facet.select.value = panel.dataset.facet;
  const first = rows.find((row) => at("world_size", row) === sizes[0] && at("facet", row) === facet.select.value);
  const accused = document.getElementById("main").dataset.series;
  if (first !== undefined) series.select.value = kept("series").includes(accused) ? accused : at("series", first);

  /** rank -> column -> value: greatest maximum, mean of means over the chosen seeds. */
  function profile() {
    const found = new Map();
    for (const row of rows) {
      if (at("series", row) !== series.select.value || at("facet", row) !== facet.select.value) continue;
      if (String(at("world_size", row)) !== size.select.value) continue;
      if (seed.select.value !== "" && String(at("seed", row)) !== seed.select.value) continue;
      const rank = at("rank", row);
      if (!found.has(rank)) found.set(rank, new Map());
      for (const kind of ["max", "mean"]) {
        const value = at(`${against.select.value}_${kind}`, row);
        if (value === null) continue;
        const key = `${at("tensor", row)} ${kind}`;
        found.get(rank).set(key, [...(found.get(rank).get(key) ?? []), value]);
      }
    }
    const joined = (key, values) => key.endsWith("max") ? Math.max(...values) : values.reduce((a, b) => a + b) / values.length;
    return new Map([...found].sort((a, b) => a[0] - b[0]).map(([rank, values]) =>
      [rank, new Map([...values].map(([key, list]) => [key, joined(key, list)]))]));
  }

  function rankTable() {
    const found = profile();
    const columns = tensors.flatMap((tensor) => [`${tensor} max`, `${tensor} mean`]);
    const greatest = new Map(columns.map((name) =>
      [name, Math.max(0, ...[...found.values()].map((values) => values.get(name)).filter(Number.isFinite))]));
    const caption = make("caption", { textContent: found.size
      ? `${series.select.value}, ${facet.select.value}, world size ${size.select.value}: ${against.select.selectedOptions[0].text}`
      : "Not measured, or its per-rank rows did not fit in this file." });
    const head = make("tr", {}, ...["rank", ...columns].map((name) => make("th", { scope: "col", textContent: name })));
    const body = [...found].map(([rank, values]) => make("tr", {},
      make("th", { scope: "row", textContent: rank }),
      ...columns.map((name) => {
        const cell = make("td", { textContent: written(name, values.get(name)) });
        if (greatest.get(name) > 0 && Number.isFinite(values.get(name))) {
          cell.className = "bar";
          cell.style.setProperty("--bar", `${(100 * values.get(name) / greatest.get(name)).toFixed(1)}%`);
        }
        return cell;
      })));
    return [caption, make("thead", {}, head), make("tbody", {}, ...body)];
  }

  const controls = [series, facet, size, seed, against].map((part) => part.label);
  const frame = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Profile by rank" }, table);
  place.append(make("div", { className: "controls" }, ...controls), frame);
  place.hidden = false;
  draw();
}
