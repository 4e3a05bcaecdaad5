// The page: a photograph in, its tags with evidence, and answers that the model takes into account.

import { Tagger, pixelsOf } from "./tagger.js";

const POSITIVE = [194, 65, 12];
const NEGATIVE = [29, 95, 209];
const STRONGEST = 0.8; // opacity
const PALE = 50; // grey of the photograph's black, on which both colours are told apart
const SHOWN_BELOW = 5; // classes below their thresholds that are shown, too

const find = (id) => document.getElementById(id);
const state = { tagger: null, photo: null, known: new Map(), found: null, grey: null, chosen: null, turn: 0 };

async function start() {
  say("Loading the model…");
  try {
    const answer = await fetch("tagger.onnx");
    if (!answer.ok) throw new Error(`tagger.onnx: ${answer.status}`);
    state.tagger = await Tagger.open(new Uint8Array(await answer.arrayBuffer()));
  } catch (error) {
    say(`The model cannot be loaded: ${error.message}`, true);
    return;
  }
  const names = find("names");
  names.replaceChildren(...state.tagger.classes.map((name) => Object.assign(document.createElement("option"), { value: name })));
  find("file").disabled = false;
  find("asking").hidden = !state.tagger.takesKnown;
  say(`Ready: ${state.tagger.classes.length} classes. Drop a photograph, or choose one.`);
  document.body.dataset.ready = "yes";
}

async function open(file) {
  if (state.tagger === null || file === undefined) return;
  try {
    state.photo = await pixelsOf(file);
  } catch (error) {
    const why = error.name === "InvalidStateError" ? "this browser cannot read it as an image" : error.message;
    say(`${file.name}: ${why}`, true);
    return;
  }
  state.known.clear();
  state.chosen = null;
  await tag(file.name);
}

async function tag(name) {
  const turn = ++state.turn;
  delete document.body.dataset.tagged;
  say("Tagging…");
  const began = performance.now();
  let found;
  try {
    found = await state.tagger.tag(state.photo, state.known);
  } catch (error) {
    say(`It cannot be tagged: ${error.message}`, true);
    return;
  }
  if (turn !== state.turn) return; // another photograph or answer has come since
  state.found = found;
  show();
  find("result").hidden = false;
  say(`${name ? `${name}: ` : ""}tagged in ${Math.round(performance.now() - began)} ms, on this machine.`);
  document.body.dataset.tagged = "yes";
  document.body.dataset.scores = JSON.stringify(Array.from(found.scores));
}

function show() {
  const { classes, thresholds } = state.tagger;
  const { scores } = state.found;
  const order = classes.map((_, index) => index).sort((one, other) => scores[other] - scores[one]);
  const isTag = (index) => state.known.get(classes[index]) ?? scores[index] >= thresholds[index];
  const below = order.filter((index) => !isTag(index) && !state.known.has(classes[index])).slice(0, SHOWN_BELOW);
  const rows = order.filter((index) => isTag(index) || state.known.has(classes[index]));
  if (state.chosen === null) state.chosen = rows[0] ?? below[0];
  find("tags").replaceChildren(...rows.map((index) => rowOf(index, isTag(index))));
  find("below").replaceChildren(...below.map((index) => rowOf(index, false)));
  find("none").hidden = rows.length > 0;
  find("forget").hidden = state.known.size === 0;
  paint();
}

function rowOf(index, isTag) {
  const name = state.tagger.classes[index];
  const score = state.found.scores[index];
  const row = document.createElement("li");
  row.className = isTag ? "tag" : "other";
  const show_ = button(name, "name", state.chosen === index, () => {
    state.chosen = index;
    show();
  });
  show_.title = state.tagger.explains ? `Show what speaks for ${name}` : name;
  const bar = document.createElement("span");
  bar.className = "bar";
  bar.style.setProperty("--score", score);
  const value = document.createElement("span");
  value.className = "score";
  value.textContent = state.known.has(name) ? "told" : score.toFixed(2);
  row.append(show_, bar, value);
  if (state.tagger.takesKnown) {
    for (const [word, present] of [["yes", true], ["no", false]]) {
      const answer = button(word, "answer", state.known.get(name) === present, () => tell(name, present));
      answer.setAttribute("aria-label", `${name}: ${word}`);
      row.append(answer);
    }
  }
  return row;
}

function button(text, kind, pressed, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = kind;
  made.textContent = text;
  made.setAttribute("aria-pressed", String(pressed));
  made.addEventListener("click", act);
  return made;
}

function tell(name, present) {
  if (state.known.get(name) === present) state.known.delete(name);
  else state.known.set(name, present);
  tag("");
}

function paint() {
  const { width, height } = state.photo;
  const canvas = find("photo");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const cells = state.chosen === undefined ? null : state.found.heatMap(state.chosen);
  const isShown = cells !== null && find("evidence").checked;
  context.putImageData(isShown ? greyOf(state.photo) : state.photo, 0, 0);
  find("evidence").parentElement.hidden = cells === null;
  const name = state.tagger.classes[state.chosen];
  find("caption").textContent = isShown ? `What speaks for ${name} (orange) and against it (blue).` : "";
  if (!isShown) return;
  const most = Math.max(...cells.flat().map(Math.abs)) || 1;
  cells.forEach((row, y) =>
    row.forEach((value, x) => {
      const [left, right] = [x, x + 1].map((edge) => Math.round((edge * width) / row.length));
      const [top, bottom] = [y, y + 1].map((edge) => Math.round((edge * height) / cells.length));
      context.fillStyle = `rgba(${value > 0 ? POSITIVE : NEGATIVE}, ${(STRONGEST * Math.abs(value)) / most})`;
      context.fillRect(left, top, right - left, bottom - top);
    }),
  );
}

/** Return a photograph in pale grey, on which colours show. */
function greyOf(photo) {
  if (state.grey?.of === photo) return state.grey.pixels;
  const pixels = new ImageData(photo.width, photo.height);
  for (let place = 0; place < photo.data.length; place += 4) {
    const [r, g, b] = photo.data.subarray(place, place + 3);
    pixels.data.fill(PALE + (1 - PALE / 255) * (0.299 * r + 0.587 * g + 0.114 * b), place, place + 3);
    pixels.data[place + 3] = 255;
  }
  state.grey = { of: photo, pixels };
  return pixels;
}

function say(text, isError = false) {
  find("status").textContent = text;
  find("status").className = isError ? "error" : "";
}

find("file").addEventListener("change", (event) => open(event.target.files[0]));
find("evidence").addEventListener("change", paint);
find("forget").addEventListener("click", () => {
  state.known.clear();
  tag("");
});
find("asking").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = find("name").value.trim();
  if (!state.tagger.classes.includes(name)) {
    say(`The model has no class “${name}”.`, true);
    return;
  }
  find("name").value = "";
  state.known.set(name, event.submitter.value === "yes");
  tag("");
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  open(event.dataTransfer.files[0]);
});
start();
