// Puts the page together: node build.mjs TAGGER.onnx [FOLDER]. The folder then works from any file server, without a
// network. TAGGER.onnx is what `contextcaps export MODEL --explain --out TAGGER.onnx` wrote.

import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const [model, folder = join(here, "dist")] = process.argv.slice(2);
if (model === undefined) {
  console.error("usage: node build.mjs TAGGER.onnx [FOLDER]; contextcaps export coco80 --explain writes coco80.onnx");
  process.exit(2);
}

await mkdir(folder, { recursive: true });
await build({
  entryPoints: [join(here, "src", "page.js")],
  outfile: join(folder, "page.js"),
  bundle: true,
  format: "esm",
  minify: true,
  legalComments: "linked",
});
const runtime = dirname(createRequire(import.meta.url).resolve("onnxruntime-web/wasm"));
await copyFile(join(runtime, "ort-wasm-simd-threaded.wasm"), join(folder, "ort-wasm-simd-threaded.wasm"));
await copyFile(model, join(folder, "tagger.onnx"));
for (const name of ["index.html", "page.css"]) {
  await copyFile(join(here, "src", name), join(folder, name));
}
console.log(`${folder}: serve it with any file server, such as python3 -m http.server --directory ${folder}`);
