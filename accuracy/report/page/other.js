/** Another report's file: its rows are laid under this one's as dotted lines. */
async function openReport(file) {
  const text = await file.text();
  const found = text.match(/<script type="text\/plain" id="rows-data"[^>]*>([^<]*)<\/script>/);
  if (!found || !found[1].trim()) throw new Error(`${file.name} holds no rows of a report; choose a report.html`);
  const name = file.name.replace(/\.html?$/, "");
  return { name, data: await readRows(found[1]) };
}

/** The file's button, and a button that takes an opened one away again. */
function otherReports(say) {
  const input = make("input", { type: "file", accept: ".html,text/html", hidden: true, ariaLabel: "Open another report" });
  const open = button("Open another report", () => input.click());
  const away = button("Close it", () => { page.others = []; away.hidden = true; say(""); choose({}, true); });
  away.hidden = true;
  input.onchange = async () => {
    try {
      const other = await openReport(input.files[0]);
      page.others = [other];
      away.hidden = false;
      const same = other.data.index.has(page.state.facet);
      say(`Dotted: ${other.name}${same ? "" : ", which does not have this setting: its first of the same dtype is drawn"}.`);
      choose({}, true);
    } catch (error) { say(error.message); }
    input.value = "";
  };
  return [open, away, input];
}
