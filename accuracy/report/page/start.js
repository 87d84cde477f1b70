/** Everything interactive is added here; without it the page is complete but for the single rows. */
async function start() {
  document.querySelectorAll("main > section").forEach(chooseFacets);
  document.querySelectorAll(".panel").forEach((panel) => { if (panel.querySelector(".charts")) pickLines(panel); });
  followReading();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
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
