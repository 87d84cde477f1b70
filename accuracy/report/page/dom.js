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

/** A labelled select. choices: [value, text] pairs. */
function selector(label, choices, onchange) {
  const select = make("select", { onchange, ariaLabel: label });
  const offer = (pairs) => select.replaceChildren(...pairs.map(([value, text]) => make("option", { value, textContent: text })));
  offer(choices);
  return { select, offer, label: make("label", {}, label, select) };
}

function button(text, onclick) {
  return make("button", { type: "button", className: "plain", textContent: text, onclick });
}

/** Copies the text of an element; where the browser forbids that, selects it. */
function copyButton(code, name = "Copy") {
  const copy = button(name, async () => {
    try { await navigator.clipboard.writeText(code.textContent); copy.textContent = "Copied"; }
    catch { code.hidden = false; getSelection().selectAllChildren(code); copy.textContent = "Selected: press Ctrl+C"; }
  });
  return copy;
}

function download(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** The browser paints and listens before what follows: long work is done in short tasks. */
function pause() {
  return new Promise((done) => setTimeout(done));
}
