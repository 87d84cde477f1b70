"use strict";

/** An element with properties, attributes and children; text is only ever set as text. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A section with several settings (dtypes) shows one at a time, or all of them. */
function chooseFacets(section) {
  const panels = [...section.querySelectorAll(":scope > .panel, :scope > details > .panel")];
  if (panels.length < 2) return;
  section.classList.add("choosing");
  const bar = make("div", { className: "segments", role: "group", ariaLabel: "Setting" });
  const choices = [...panels.map((panel) => panel.dataset.facet), null];
  const show = (choice) => {
    panels.forEach((panel) => panel.classList.toggle("away", choice !== null && panel.dataset.facet !== choice));
    [...bar.children].forEach((button, place) => button.setAttribute("aria-pressed", choices[place] === choice));
  };
  for (const choice of choices) {
    bar.append(make("button", { type: "button", textContent: choice ?? "all", onclick: () => show(choice) }));
  }
  panels[0].before(bar);
  show(choices[0]);
}

/** Legend entries become buttons that single out their line in the panel's charts. */
function pickLines(panel) {
  const charts = panel.querySelector("figure");
  const keys = [...panel.querySelectorAll(".key")];
  const picked = new Set();
  const paint = (extra) => {
    const shown = new Set([...picked, ...(extra ? [extra] : [])]);
    charts.classList.toggle("picking", shown.size > 0);
    charts.querySelectorAll("g[class]").forEach((group) => group.classList.toggle("picked", shown.has(group.classList[0])));
  };
  for (const key of keys) {
    const line = key.dataset.line;
    const button = make("button", { type: "button", ariaPressed: "false" }, ...key.childNodes);
    button.onclick = () => {
      if (!picked.delete(line)) picked.add(line);
      button.ariaPressed = String(picked.has(line));
      paint();
    };
    key.append(button);
    key.onmouseenter = () => paint(line);
    key.onmouseleave = () => paint();
  }
}

/** The section being read is marked in the list of contents. */
function followReading() {
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link, name) => {
        link.classList.toggle("here", name === entry.target.id);
        if (name === entry.target.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  document.querySelectorAll("main > section").forEach((section) => watch.observe(section));
}
