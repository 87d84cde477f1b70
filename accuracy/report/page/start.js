/** What a link leads to is opened. */
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target?.querySelector(":scope > details")?.setAttribute("open", "");
  target?.scrollIntoView();
}

/** Everything interactive is added here; without it the page is complete but for the single rows. */
async function start() {
  document.querySelectorAll("main > section").forEach(chooseFacets);
  document.querySelectorAll(".panel").forEach((panel) => { if (panel.querySelector(".charts")) pickLines(panel); });
  followReading();
  addEventListener("hashchange", unfold);
  unfold();
  const rows = document.getElementById("row-explorer");
  try {
    const data = await readRows();
    exploreRanks(data, document.getElementById("rank-explorer"));
    exploreRows(data, rows);
  } catch (error) {
    rows.hidden = false;
    rows.append(make("p", { className: "warning", textContent: `The rows cannot be shown in this browser (${error.message}). results.parquet has them.` }));
  }
}

start();
