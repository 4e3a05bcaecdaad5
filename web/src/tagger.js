// Tags photographs with an ONNX file that `contextcaps export` wrote: pixels in, scores and evidence out.

import * as ort from "onnxruntime-web/wasm";
import { readMetadata } from "./metadata.js";
import { isStoredLying } from "./orientation.js";
import { resize } from "./resize.js";

const FORMAT = "contextcaps-onnx-1";
const MOST_PIXELS = 100e6;

ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send
ort.env.wasm.wasmPaths = { wasm: new URL("ort-wasm-simd-threaded.wasm", document.baseURI).href };
ort.env.logLevel = "error";

export class Tagger {
  /** Open a file's bytes. */
  static async open(bytes) {
    const description = JSON.parse(readMetadata(bytes).contextcaps ?? "null");
    if (description?.format !== FORMAT) throw new Error("not a file that contextcaps export wrote");
    return new Tagger(description, await ort.InferenceSession.create(bytes));
  }

  constructor({ config, trained }, session) {
    this.session = session;
    this.config = config;
    this.classes = config.class_names ?? Array.from({ length: config.num_classes }, (_, index) => String(index));
    this.thresholds = this.classes.map((name) => trained?.thresholds[name] ?? 0.5);
    this.takesKnown = session.inputNames.includes("known");
    this.explains = session.outputNames.includes("evidence");
  }

  /**
   * Return the scores of a photograph, and a function that gives a class's evidence by position.
   *
   * @param {ImageData} pixels as `pixelsOf` gives them.
   * @param {Map<string, boolean>} known labels that are known.
   */
  async tag(pixels, known = new Map()) {
    const [height, width] = this.config.image_size;
    const small = resize(pixels.data, pixels.width, pixels.height, width, height, pixels.isStoredLying); // [H, W, 3]
    const planes = new Uint8Array(small.length); // [3, H, W]
    const area = width * height;
    for (let place = 0; place < area; place++) {
      for (let c = 0; c < 3; c++) planes[c * area + place] = small[3 * place + c];
    }
    const inputs = { images: new ort.Tensor("uint8", planes, [1, 3, height, width]) };
    if (this.takesKnown) {
      const row = Float32Array.from(this.classes, (name) => (known.has(name) ? Number(known.get(name)) : NaN));
      inputs.known = new ort.Tensor("float32", row, [1, row.length]);
    }
    const names = ["scores", ...["evidence", "branch"].filter((name) => this.session.outputNames.includes(name))];
    const outputs = await this.session.run(inputs, names);
    return { scores: outputs.scores.data, heatMap: (index) => heatMap(outputs, index) };
  }
}

/** Return a class's evidence as rows of cells: of all capsules there, and of the global branch. */
function heatMap({ evidence, branch }, index) {
  if (evidence === undefined) return null;
  const [, , types, height, width] = evidence.dims;
  let cells = Array.from({ length: height }, () => new Array(width).fill(0));
  for (let type = 0; type < types; type++) {
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        cells[y][x] += evidence.data[((index * types + type) * height + y) * width + x];
      }
    }
  }
  if (branch === undefined) return cells;
  const [, , rows, columns] = branch.dims;
  const tall = multiple(height, rows);
  const wide = multiple(width, columns);
  const at = (y, x) => branch.data[(index * rows + y) * columns + x];
  return Array.from({ length: tall }, (_, y) =>
    Array.from({ length: wide }, (_, x) => {
      const own = cells[Math.floor((y * height) / tall)][Math.floor((x * width) / wide)];
      const other = at(Math.floor((y * rows) / tall), Math.floor((x * columns) / wide));
      return (own * height * width + other * rows * columns) / (tall * wide);
    }),
  );
}

function multiple(a, b) {
  let x = a;
  for (let y = b; y !== 0; ) [x, y] = [y, x % y];
  return (a / x) * b;
}

/** Return the pixels of an image file, upright and on white, without the colour profile: as Python reads it. */
export async function pixelsOf(file) {
  const image = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" });
  if (image.width * image.height > MOST_PIXELS) throw new Error("more than 100 million pixels are not decoded");
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, image.width, image.height);
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height);
  pixels.isStoredLying = isStoredLying(new Uint8Array(await file.arrayBuffer()));
  return pixels;
}
