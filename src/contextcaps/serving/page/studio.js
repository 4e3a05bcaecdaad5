// The page: what a person does, in the order in which it happens.

import { Album, newPhoto } from "./album.js";
import { paint, place, strongest } from "./evidence.js";
import { drawFilter, drawGrid, drawProgress, thumbnailOf } from "./grid.js";
import { askQuestion, downloadRows, explainTags, fetchModels, forget, onTokenWanted, sendPhotograph, tellKnown } from "./server.js";
import { drawMoves, drawTags } from "./tags.js";

const $ = (id) => document.getElementById(id);
const album = new Album();
const AT_ONCE = 4; // requests that this page has under way
let models = [], largest = Infinity, shownClass = null, pinned = null, question = null;

// ---------- photographs come in

async function addFiles(files) {
  const photos = [...files].filter((file) => file.type.startsWith("image/") || /\.(hei[cf]|jpe?g|png|webp|avif|tiff?|gif|bmp|jp2)$/i.test(file.name)).map(newPhoto);
  if (!photos.length) return say("There is no photograph among these.");
  album.photos.push(...photos);
  if (!album.current) select(photos[0]);
  draw();
  await Promise.all([tagAll(photos), thumbnails(photos)]);
}

async function thumbnails(photos) {
  for (const photo of photos) {
    photo.thumbnail = await thumbnailOf(photo.file);
    drawAlbum();
  }
}

async function tagAll(photos) {
  await eachOf(photos, tagOne);
  drawAlbum();
}

async function tagOne(photo) {
  photo.state = "sending";
  const turn = ++photo.turn;
  try {
    if (photo.file.size > largest) throw new Error(`larger than ${Math.round(largest / 2 ** 20)} MB, which this server takes`);
    let row = await sendPhotograph(photo, album.model.name);
    if (album.model.takes_known && Object.keys(photo.known).length) row = await tellKnown(photo, album.model.name, photo.known, photo.known);
    if (turn !== photo.turn) return;
    Object.assign(photo, { scores: row.scores, state: "ready", error: null, before: null, moves: [] });
  } catch (error) {
    photo.error = error.message;
  }
  photo.reasons.clear();
  if (photo === album.current) { draw(); loadReasons(photo); } else drawAlbumSoon();
}

/** Run a function on each of many, some at once. */
async function eachOf(items, work) {
  const left = [...items];
  const run = async () => { while (left.length) await work(left.shift()); };
  await Promise.all(Array.from({ length: AT_ONCE }, run));
}

// ---------- answers

/** Say yes, no, or (null) nothing about a class of photographs. */
async function answer(photos, name, yes) {
  photos = photos.filter((photo) => photo.scores && (photo.known[name] ?? null) !== yes);
  if (!photos.length) return;
  album.remember(photos, `${name}: ${yes === null ? "nothing said" : yes ? "yes" : "no"}`);
  await eachOf(photos, (photo) => {
    const known = { ...photo.known };
    if (yes === null) delete known[name]; else known[name] = yes;
    return tell(photo, known);
  });
}

async function tell(photo, known) {
  const since = photo.known, before = photo.scores, turn = ++photo.turn;
  photo.known = known;
  photo.asking = (photo.asking ?? 0) + 1;
  busy(1);
  question = null;
  if (photo === album.current) drawPanel();
  if (album.model.takes_known) {
    try {
      const row = await tellKnown(photo, album.model.name, known, since);
      if (turn === photo.turn) { // otherwise another answer came meanwhile
        Object.assign(photo, { scores: row.scores, moves: row.moves ?? [], before });
        photo.reasons.clear();
      }
    } catch (error) {
      if (turn === photo.turn) photo.known = since;
      say(error.message);
    }
  }
  photo.asking -= 1;
  busy(-1);
  if (photo === album.current) { draw(); loadReasons(photo); } else drawAlbumSoon();
}

let asking = 0; // answers on their way

function busy(more) {
  asking += more;
  $("album").setAttribute("aria-busy", String(asking > 0));
}

async function undo() {
  const last = album.history.pop();
  if (!last) return;
  drawUndo();
  await eachOf(last.before.filter(([photo]) => album.photos.includes(photo)), ([photo, known]) => tell(photo, known));
}

async function ask() {
  const photo = album.current;
  try {
    question = await askQuestion(photo, album.model.name, photo.known);
    if (photo === album.current) drawQuestion();
  } catch (error) { say(error.message); }
}

// ---------- evidence

async function loadReasons(photo, classes = []) {
  if (!album.model.explains) return;
  const turn = photo.turn;
  try {
    const row = await explainTags(photo, album.model.name, photo.known, classes);
    if (turn !== photo.turn) return;
    for (const each of row.classes) photo.reasons.set(each.name, each);
    if (shownClass && photo === album.current && photo.reasons.has(shownClass)) show(shownClass);
  } catch (error) {
    if (error.status) say(error.message);
  }
}

function show(name) {
  shownClass = name;
  const photo = album.current, reason = photo.reasons.get(name);
  for (const row of $("tags").querySelectorAll(".tag")) row.classList.toggle("shown", row.dataset.name === name);
  if (!reason) {
    if (album.model.explains && photo.state === "ready" && !photo.reasons.has(name)) loadReasons(photo, [name]);
    return;
  }
  $("why").textContent = reason.why;
  paint($("evidence"), $("photo"), reason.heat_map, strongest([...photo.reasons.values()]));
  $("frame").classList.add("shows");
  $("legend").hidden = false;
}

function leave() {
  if (pinned && album.current?.reasons.has(pinned)) return show(pinned);
  shownClass = null;
  $("evidence").hidden = true;
  $("frame").classList.remove("shows");
  $("legend").hidden = true;
  for (const row of $("tags").querySelectorAll(".shown")) row.classList.remove("shown");
  $("why").textContent = album.model?.explains ? "Hover or tap a tag to see its evidence." : "This model's scores have no exact parts to show.";
}

// ---------- drawing

function select(photo) {
  album.current = photo;
  pinned = question = null;
  $("search").value = "";
  if (photo) {
    photo.url ??= URL.createObjectURL(photo.file);
    $("photo").src = photo.url;
    $("photo").alt = `The photograph ${photo.name}`;
    $("photo-name").textContent = photo.name;
    if (photo.scores && !photo.reasons.size) loadReasons(photo);
  }
  leave();
  draw();
}

function draw() {
  $("welcome").hidden = album.photos.length > 0;
  $("work").hidden = !album.current;
  drawAlbum();
  drawPanel();
}

function drawUndo() {
  $("undo").disabled = !album.history.length;
  $("undo").title = album.history.length ? `Take back “${album.history.at(-1).what}”` : "";
}

let isDue = false;
function drawAlbumSoon() {
  if (isDue) return;
  isDue = true;
  setTimeout(() => { isDue = false; drawAlbum(); }, 100);
}

function drawAlbum() {
  $("album").hidden = album.photos.length === 0;
  for (const id of ["grid", "batch", "show"]) $(id).hidden = album.photos.length < 2;
  drawUndo();
  if (!album.photos.length || !album.model) return;
  drawFilter($("filter"), album);
  drawGrid($("grid"), album, $("filter").value, select);
  drawProgress($("progress"), $("progress-says"), album);
  const shown = album.shown($("filter").value), place = shown.indexOf(album.current);
  $("previous").disabled = place <= 0;
  $("next").disabled = place === shown.length - 1;
}

function drawPanel() {
  const photo = album.current;
  if (!photo) return;
  if (!photo.scores) {
    const item = document.createElement("li");
    item.className = "heading";
    item.textContent = photo.error ?? "Looking …";
    $("tags").replaceChildren(item);
  } else {
    drawTags($("tags"), album, photo, $("search").value.trim(), {
      show, leave, answer: (name, yes) => answer([photo], name, yes),
    });
    if (shownClass) for (const row of $("tags").querySelectorAll(".tag")) row.classList.toggle("shown", row.dataset.name === shownClass);
  }
  $("tags").setAttribute("aria-busy", String(Boolean(photo.asking)));
  drawMoves($("moved"), $("moves"), photo);
  drawQuestion();
}

function drawQuestion() {
  const photo = album.current, box = $("question");
  box.hidden = !album.model?.asks || !photo?.scores;
  if (box.hidden) return;
  if (!question) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Ask me";
    button.id = "ask";
    button.addEventListener("click", ask);
    const hint = document.createElement("span");
    hint.className = "quiet";
    hint.textContent = " what would settle most of the other classes";
    return box.replaceChildren(button, hint);
  }
  const text = document.createElement("p"), name = question.name;
  const worth = document.createElement("span");
  worth.className = "quiet";
  worth.textContent = question.bits < 0.005 ? " Whatever the answer is, it will hardly move the others." : ` The answer is expected to settle ${question.bits.toFixed(2)} bits of the others.`;
  text.textContent = name ? `Is there: ${name}?` : "Nothing is left to ask: you have said all.";
  if (name) text.append(worth);
  const buttons = name ? [["Yes", true], ["No", false]].map(([word, yes]) => {
    const each = document.createElement("button");
    each.type = "button";
    each.textContent = word;
    each.addEventListener("click", async () => { await answer([photo], name, yes); await ask(); });
    return each;
  }) : [];
  box.replaceChildren(text, ...buttons.flatMap((each) => [each, " "]));
}

let silence;
function say(text) {
  $("message").textContent = text;
  $("message").hidden = false;
  clearTimeout(silence);
  silence = setTimeout(() => { $("message").hidden = true; }, 6000);
}

// ---------- what a person does

function step(by) {
  const shown = album.shown($("filter").value), next = shown[shown.indexOf(album.current) + by];
  if (next) select(next);
}

function removeCurrent() {
  const photo = album.current, place = album.photos.indexOf(photo);
  album.photos.splice(place, 1);
  forget(photo);
  for (const url of [photo.url, photo.thumbnail]) if (url) URL.revokeObjectURL(url);
  select(album.photos[Math.min(place, album.photos.length - 1)] ?? null);
}

async function download(kind) {
  try {
    const { name, content } = await downloadRows(kind, album.rows());
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  } catch (error) { say(error.message); }
}

function chooseModel(name) {
  album.model = models.find((model) => model.name === name);
  album.history = [];
  $("classes").replaceChildren(...album.model.classes.map((each) => new Option(each, each)));
  $("filter").value = "";
  for (const photo of album.photos) {
    const known = Object.fromEntries(Object.entries(photo.known).filter(([name]) => album.model.classes.includes(name)));
    Object.assign(photo, { scores: null, known, moves: [], before: null, error: null });
  }
  leave();
  draw();
  return tagAll(album.photos);
}

function turnTheme() {
  const next = { undefined: "light", light: "dark", dark: undefined }[document.documentElement.dataset.theme];
  if (next) document.documentElement.dataset.theme = next; else delete document.documentElement.dataset.theme;
  localStorage.setItem("theme", next ?? "");
  $("theme").setAttribute("aria-label", `Colours: ${next ?? "as the system has them"}`);
}

function keys(event) {
  const isTyping = event.target.matches("input:not([type=range]), select");
  const row = document.activeElement?.closest?.(".tag");
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !isTyping) { event.preventDefault(); undo(); return; }
  if (event.target.id === "search" && ["ArrowDown", "Enter"].includes(event.key)) { event.preventDefault(); $("tags").querySelector(".name")?.focus(); return; }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  if (event.key === "/") { event.preventDefault(); $("search").focus(); }
  else if (event.key === "ArrowRight") step(1);
  else if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const names = [...$("tags").querySelectorAll(".tag .name")];
    if (!names.length) return;
    event.preventDefault();
    const at = row ? names.indexOf(row.querySelector(".name")) + (event.key === "ArrowDown" ? 1 : -1) : 0;
    names[Math.max(0, Math.min(names.length - 1, at))].focus();
  } else if (row && (event.key === "y" || event.key === "n")) {
    row.querySelector(event.key === "y" ? ".yes" : ".no").click();
  } else if (event.key === "Escape") { pinned = null; leave(); }
}

function wire() {
  const files = $("files");
  for (const id of ["add", "choose"]) $(id).addEventListener("click", () => files.click());
  files.addEventListener("change", () => { addFiles(files.files); files.value = ""; });
  for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    if (event.dataTransfer.files.length) addFiles(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) addFiles(event.clipboardData.files); });
  document.addEventListener("keydown", keys);
  $("tags").addEventListener("click", (event) => {
    const name = event.target.closest(".answers") ? null : event.target.closest(".tag")?.dataset.name;
    if (!name) return;
    pinned = pinned === name ? null : name;
    show(name);
  });
  $("undo").addEventListener("click", undo);
  $("theme").addEventListener("click", turnTheme);
  $("remove").addEventListener("click", removeCurrent);
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  $("search").addEventListener("input", drawPanel);
  $("filter").addEventListener("change", drawAlbum);
  $("model").addEventListener("change", () => chooseModel($("model").value));
  $("threshold").addEventListener("input", () => {
    const value = Number($("threshold").value);
    album.threshold = value ? value / 100 : null;
    $("threshold-says").textContent = value ? `${(value / 100).toFixed(2)} for all` : "each class's own";
    draw();
  });
  for (const [id, yes] of [["batch-yes", true], ["batch-no", false]]) {
    $(id).addEventListener("click", () => {
      const name = $("batch-class").value.trim();
      if (!album.model.classes.includes(name)) return say(name ? `The model has no class ${name}.` : "Which class? Write its name beside the buttons.");
      answer(album.shown($("filter").value), name, yes);
    });
  }
  for (const button of document.querySelectorAll("[data-download]")) button.addEventListener("click", () => download(button.dataset.download));
  new ResizeObserver(() => { if (!$("evidence").hidden) place($("evidence"), $("photo")); }).observe($("photo"));
}

onTokenWanted(() => new Promise((resolve) => {
  const dialog = $("secret");
  if (dialog.open) return resolve(null);
  dialog.showModal();
  dialog.addEventListener("close", () => resolve($("token").value || null), { once: true });
}));

async function start() {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  wire();
  try {
    const found = await fetchModels();
    models = found.models;
    largest = found.limits.bytes;
    $("model").replaceChildren(...models.map((model) => new Option(`${model.name} (${model.classes.length} classes)`, model.name)));
    await chooseModel(models[0].name);
    document.body.dataset.ready = "yes";
  } catch (error) { say(error.message); }
}

start();
