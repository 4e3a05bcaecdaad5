// Reads what an ONNX file says of itself: a protocol buffer, whose field 14 holds keys and values.

const METADATA = 14;

/** Return the metadata of an ONNX file's bytes as an object of strings. */
export function readMetadata(bytes) {
  const found = {};
  const text = new TextDecoder();
  for (const [field, value] of fields(bytes)) {
    if (field !== METADATA) continue;
    const parts = Object.fromEntries(fields(value));
    found[text.decode(parts[1])] = text.decode(parts[2]);
  }
  return found;
}

/** Yield the number and the bytes of each field that has a length; others are passed over. */
function* fields(bytes) {
  let place = 0;
  const number = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      if (place >= bytes.length) throw new Error("the file is cut off");
      const byte = bytes[place++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (place < bytes.length) {
    const tag = number();
    const kind = tag % 8;
    if (kind === 0) {
      number();
    } else if (kind === 2) {
      const length = number();
      if (place + length > bytes.length) throw new Error("the file is cut off");
      yield [Math.floor(tag / 8), bytes.subarray(place, place + length)];
      place += length;
    } else if (kind === 1 || kind === 5) {
      place += kind === 1 ? 8 : 4;
    } else {
      throw new Error("no ONNX file");
    }
  }
}
