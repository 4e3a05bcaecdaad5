// The list of tags: scores, yes and no, what changed; rows glide to their new places.

const LESS_LIKELY = 6, FOUND = 12;

/** Draw the list. `says` has what happens: show(name), leave(), answer(name, yes or no). */
export function drawTags(list, album, photo, search, says) {
  const before = new Map([...list.querySelectorAll(".tag")].map((row) => [row.dataset.name, row.getBoundingClientRect().top]));
  const focused = document.activeElement?.closest?.("#tags") ? [document.activeElement.closest(".tag")?.dataset.name, document.activeElement.dataset.part] : null;
  const rows = [];
  const ranked = album.ranked(photo);
  if (search) {
    const found = ranked.filter((name) => name.toLowerCase().includes(search.toLowerCase())).slice(0, FOUND);
    rows.push(...found.map((name) => rowOf(album, photo, name, says)));
    if (!found.length) rows.push(heading("No class has such a name"));
  } else {
    const tags = ranked.filter((name) => album.isTag(photo, name));
    const said = ranked.filter((name) => photo.known[name] === false);
    const others = ranked.filter((name) => !album.isTag(photo, name) && !(name in photo.known)).slice(0, LESS_LIKELY);
    rows.push(...(tags.length ? tags.map((name) => rowOf(album, photo, name, says)) : [heading("No tag: nothing is above its threshold")]));
    if (said.length) rows.push(heading("You said no"), ...said.map((name) => rowOf(album, photo, name, says)));
    if (others.length) rows.push(heading("Less likely"), ...others.map((name) => rowOf(album, photo, name, says)));
  }
  list.replaceChildren(...rows);
  glide(list, before);
  if (focused?.[0]) list.querySelector(`.tag[data-name="${CSS.escape(focused[0])}"] [data-part="${focused[1]}"]`)?.focus({ preventScroll: true });
}

function heading(text) {
  const item = document.createElement("li");
  item.className = "heading";
  item.textContent = text;
  return item;
}

function rowOf(album, photo, name, says) {
  const row = document.createElement("li"), score = photo.scores[name], known = photo.known[name];
  row.className = `tag ${album.isTag(photo, name) ? "" : "low"} ${known === false ? "rejected" : ""}`;
  row.dataset.name = name;
  const label = button("name", name);
  label.dataset.part = "name";
  label.setAttribute("aria-label", `${name}, ${known === undefined ? `score ${score.toFixed(2)}` : known ? "you said yes" : "you said no"}: show its evidence`);
  const what = document.createElement("span"), number = document.createElement("span");
  what.className = "what";
  what.append(label);
  number.className = "score";
  const change = photo.before && known === undefined ? score - photo.before[name] : 0;
  if (Math.abs(change) >= 0.005) {
    const chip = document.createElement("span");
    chip.className = `change ${change > 0 ? "up" : "down"}`;
    chip.textContent = `${change > 0 ? "▲" : "▼"} ${Math.abs(change).toFixed(2)} `;
    number.append(chip);
    const [through] = Object.keys(photo.moves.find((move) => move.name === name)?.through ?? {});
    if (through) {
      const cause = document.createElement("span");
      cause.className = "through";
      cause.textContent = `through ${through}`;
      what.append(cause);
    }
  }
  number.append(known === undefined ? score.toFixed(2) : known ? "yes" : "no");
  const answers = document.createElement("span");
  answers.className = "answers";
  for (const [word, yes] of [["Yes", true], ["No", false]]) {
    const each = button(word.toLowerCase(), word, () => says.answer(name, known === yes ? null : yes));
    each.dataset.part = word.toLowerCase();
    each.setAttribute("aria-pressed", String(known === yes));
    each.setAttribute("aria-label", `${word}, ${name} is ${yes ? "" : "not "}there`);
    answers.append(each);
  }
  const gauge = document.createElement("span"), bar = document.createElement("i"), mark = document.createElement("b");
  gauge.className = "gauge";
  gauge.setAttribute("aria-hidden", "true");
  bar.style.width = `${100 * score}%`;
  mark.style.left = `${100 * album.thresholdOf(name)}%`;
  gauge.append(bar, mark);
  row.append(what, number, answers, gauge);
  row.addEventListener("mouseenter", () => says.show(name));
  row.addEventListener("mouseleave", () => says.leave());
  row.addEventListener("focusin", () => says.show(name));
  return row;
}

function button(kind, text, press) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = kind;
  made.textContent = text;
  if (press) made.addEventListener("click", press);
  return made;
}

/** Let rows glide from where they were, unless the reader wants no motion. */
function glide(list, before) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const row of list.querySelectorAll(".tag")) {
    const was = before.get(row.dataset.name), is = row.getBoundingClientRect().top;
    if (was !== undefined && Math.abs(was - is) > 1) {
      row.animate([{ transform: `translateY(${was - is}px)` }, { transform: "none" }], { duration: 260, easing: "ease-out" });
    }
  }
}

/** Draw what moved since the last answer, and through which classes. */
export function drawMoves(box, list, photo) {
  box.hidden = !photo.moves.length;
  list.replaceChildren(...photo.moves.slice(0, 8).map((move) => {
    const item = document.createElement("li"), name = document.createElement("b");
    name.textContent = move.name;
    item.append(name, ` ${move.before.toFixed(2)} → ${move.after.toFixed(2)} through ${move.sentence}`);
    return item;
  }));
}
