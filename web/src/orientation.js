// Reads from a JPEG file's EXIF whether it lies on its side: browsers turn it, and do not say so.

/** Return whether the photograph is stored lying (EXIF orientation 5 to 8); false for other files and without EXIF. */
export function isStoredLying(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  try {
    if (view.getUint16(0) !== 0xffd8) return false;
    for (let place = 2; view.getUint8(place) === 0xff; place += 2 + view.getUint16(place + 2)) {
      const isExif = view.getUint8(place + 1) === 0xe1 && view.getUint32(place + 4) === 0x45786966;
      if (isExif) return orientation(view, place + 10) >= 5;
      if (view.getUint8(place + 1) === 0xda) return false; // the pixels begin
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // cut off: no reason to refuse the pixels
  }
  return false;
}

/** Return the orientation in the TIFF header that EXIF is; 1 without one. */
function orientation(view, start) {
  const little = view.getUint16(start) === 0x4949;
  const directory = start + view.getUint32(start + 4, little);
  for (let entry = 0; entry < view.getUint16(directory, little); entry++) {
    const place = directory + 2 + 12 * entry;
    if (view.getUint16(place, little) === 0x0112) return view.getUint16(place + 8, little);
  }
  return 1;
}
