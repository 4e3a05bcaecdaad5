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

/** Lay the canvas exactly over the photograph, which is as large as fits into its element. */
export function place(canvas, image) {
  const scale = Math.min(image.clientWidth / image.naturalWidth, image.clientHeight / image.naturalHeight) || 0;
  const width = scale * image.naturalWidth, height = scale * image.naturalHeight;
  canvas.style.left = `${image.offsetLeft + (image.clientWidth - width) / 2}px`;
  canvas.style.top = `${image.offsetTop + (image.clientHeight - height) / 2}px`;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

export const strongest = (reasons) => Math.max(...reasons.flatMap((each) => each.heat_map.flat().map(Math.abs)), 0);
