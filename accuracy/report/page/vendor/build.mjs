/** Observable Plot -> ../plot.min.js: one script that sets `Plot`, with the licences of what is in it. */
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { build } from "esbuild";

const OUT = "../plot.min.js";
// Maps, colour schemes, dates and legends are imported by Plot but reached by no chart of ours.
const UNREACHED = /^(d3-geo|d3-scale-chromatic|d3-time-format|d3-axis|isoformat)$/;

const emptied = {
  name: "emptied",
  setup(bundle) {
    bundle.onResolve({ filter: UNREACHED }, ({ path }) => ({ path, namespace: "emptied", sideEffects: false }));
    bundle.onLoad({ filter: /.*/, namespace: "emptied" }, async ({ path }) => {
      const names = Object.keys(await import(path)).filter((name) => name !== "default");
      return { contents: names.map((name) => `export const ${name} = () => {};`).join("\n") };
    });
  },
};

const made = await build({
  entryPoints: ["plot.js"], bundle: true, minify: true, format: "iife", globalName: "Plot", target: "es2022",
  legalComments: "none", metafile: true, write: false, outfile: OUT, plugins: [emptied],
});
const inputs = Object.values(made.metafile.outputs)[0].inputs;
const used = Object.keys(inputs).filter((path) => inputs[path].bytesInOutput > 0);
const names = [...new Set(used.map((path) => path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean))];

/** Packages by the text of their licence. */
const licences = new Map();
for (const name of names.sort()) {
  const { version } = JSON.parse(await readFile(`node_modules/${name}/package.json`, "utf8"));
  const text = (await readFile(`node_modules/${name}/LICENSE`, "utf8")).trim();
  licences.set(text, [...(licences.get(text) ?? []), `${name} ${version}`]);
}
const header = [...licences].map(([text, packages]) => `${packages.join(", ")}\n${text}`).join("\n\n");
const script = `/*!\n${header.replaceAll("*/", "* /")}\n*/\n${made.outputFiles[0].text}`;
if (/<\/script/i.test(script)) throw new Error("the bundle would end the script element that holds it");
await writeFile(OUT, script);
console.log(`${OUT}: ${script.length} bytes, of them ${header.length} of licences`);
