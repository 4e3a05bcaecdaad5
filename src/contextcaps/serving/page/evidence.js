// The evidence of a tag over its photograph: the parts of its logit, cell by cell as they were computed.

const RAISES = [194, 65, 12], LOWERS = [29, 95, 209], MOST = 0.82;

/** Paint cells [rows][columns] on a canvas that lies over an image; `scale` is the part with the strongest colour. */
export function paint(canvas, image, cells, scale) {
  const rows = cells.length, columns = cells[0].length;
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), pixels = context.createImageData(columns, rows);
  cells.flat().forEach((part, place) => {
    const colour = part > 0 ? RAISES : LOWERS;
    pixels.data.set([...colour, 255 * MOST * Math.min(1, Math.abs(part) / (scale || 1))], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
  place(canvas, image);
  canvas.hidden = false;
}

/** Lay the canvas exactly over the image. */
export function place(canvas, image) {
  canvas.style.left = `${image.offsetLeft}px`;
  canvas.style.top = `${image.offsetTop}px`;
  canvas.style.width = `${image.clientWidth}px`;
  canvas.style.height = `${image.clientHeight}px`;
}

export const strongest = (reasons) => Math.max(...reasons.flatMap((each) => each.heat_map.flat().map(Math.abs)), 0);
