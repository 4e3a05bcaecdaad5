// Resizes as Pillow's BILINEAR does, bit for bit: a triangle filter, as wide as the reduction, in fixed point, first
// along rows, then along columns (libImaging/Resample.c). A browser's own resizing gives other pixels and so other scores.

const PRECISION = 22; // bits after the point: 32 - 8 - 2

/**
 * Return pixels [height, width, 3] of RGBA pixels [fromHeight, fromWidth, 4]; alpha is left out.
 *
 * `isStoredLying`: the file's rows are the columns here. They come first, as each pass rounds to bytes.
 */
export function resize(rgba, fromWidth, fromHeight, width, height, isStoredLying) {
  if (isStoredLying) {
    const columns = along(rgba, fromHeight, fromWidth, height, 4 * fromWidth, 4, 3, 3 * fromWidth);
    return along(columns, fromWidth, height, width, 3, 3 * fromWidth, 3 * width, 3); // [height, width, 3]
  }
  const rows = along(rgba, fromWidth, fromHeight, width, 4, 4 * fromWidth, 3 * width, 3); // [fromHeight, width, 3]
  return along(rows, fromHeight, width, height, 3 * width, 3, 3, 3 * width); // [height, width, 3]
}

/**
 * Resize along one side.
 *
 * `length` pixels, `step` apart, become `size`; there are `lines` of them, `between` apart, and in the result
 * `lineAfter` and pixels `stepAfter` apart.
 */
function along(pixels, length, lines, size, step, between, lineAfter, stepAfter) {
  const result = new Uint8Array(3 * lines * size);
  const kernels = length === size ? null : filters(length, size);
  for (let line = 0; line < lines; line++) {
    for (let place = 0; place < size; place++) {
      const to = line * lineAfter + place * stepAfter;
      if (kernels === null) {
        const from = line * between + place * step;
        for (let c = 0; c < 3; c++) result[to + c] = pixels[from + c];
        continue;
      }
      const { first, weights } = kernels[place];
      let r = 1 << (PRECISION - 1);
      let g = r;
      let b = r;
      let from = line * between + first * step;
      for (let index = 0; index < weights.length; index++, from += step) {
        const weight = weights[index];
        r += pixels[from] * weight;
        g += pixels[from + 1] * weight;
        b += pixels[from + 2] * weight;
      }
      result[to] = clip(r >> PRECISION);
      result[to + 1] = clip(g >> PRECISION);
      result[to + 2] = clip(b >> PRECISION);
    }
  }
  return result;
}

/** Return for each new pixel the first old one that counts, and the weights of it and those after it. */
function filters(length, size) {
  const scale = length / size;
  const reach = Math.max(scale, 1);
  const found = [];
  for (let place = 0; place < size; place++) {
    const centre = (place + 0.5) * scale;
    const first = Math.max(Math.trunc(centre - reach + 0.5), 0);
    const end = Math.min(Math.trunc(centre + reach + 0.5), length);
    const weights = [];
    let sum = 0;
    for (let x = 0; x < end - first; x++) {
      const distance = Math.abs((x + first - centre + 0.5) * (1 / reach));
      const weight = distance < 1 ? 1 - distance : 0;
      weights.push(weight);
      sum += weight;
    }
    found.push({ first, weights: weights.map((weight) => Math.trunc((weight / sum) * (1 << PRECISION) + 0.5)) });
  }
  return found;
}

function clip(value) {
  return value < 0 ? 0 : value > 255 ? 255 : value;
}
