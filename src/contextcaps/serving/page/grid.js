// The grid of photographs: thumbnails, progress, filter.

const SIDE = 224;

/** Make a small picture of a file; null where the browser cannot show it. */
export async function thumbnailOf(file) {
  try {
    const whole = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.min(whole.width, whole.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(scale * whole.width));
    canvas.height = Math.max(1, Math.round(scale * whole.height));
    canvas.getContext("2d").drawImage(whole, 0, 0, canvas.width, canvas.height);
    whole.close();
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.8));
    return URL.createObjectURL(blob);
  } catch {
    return null;
  }
}

/** Draw the grid; cells that are there are kept, so that nothing flickers. */
export function drawGrid(list, album, filter, choose) {
  const shown = album.shown(filter), cells = new Map([...list.children].map((cell) => [cell.dataset.key, cell]));
  const wanted = shown.map((photo) => updated(cells.get(photo.key) ?? newCell(photo, choose), album, photo));
  if (wanted.length !== list.children.length || wanted.some((cell, place) => list.children[place] !== cell)) list.replaceChildren(...wanted);
}

function newCell(photo, choose) {
  const cell = document.createElement("li"), button = document.createElement("button"), state = document.createElement("span");
  cell.dataset.key = photo.key;
  button.type = "button";
  button.addEventListener("click", () => choose(photo));
  state.className = "state";
  button.append(document.createElement("img"), state);
  button.firstChild.alt = "";
  button.firstChild.hidden = true;
  cell.append(button);
  return cell;
}

function updated(cell, album, photo) {
  const [picture, state] = cell.firstChild.children;
  if (photo.thumbnail && picture.hidden) {
    picture.src = photo.thumbnail;
    picture.hidden = false;
  }
  const says = photo.error ? "cannot be read" : photo.scores ? album.tagsOf(photo).slice(0, 3).join(", ") || "no tag" : photo.state;
  if (state.textContent !== says) state.textContent = says;
  cell.firstChild.classList.toggle("waiting", !photo.scores && !photo.error);
  cell.firstChild.setAttribute("aria-label", `${photo.name}: ${says}`);
  cell.firstChild.setAttribute("aria-current", String(photo === album.current));
  return cell;
}

/** Fill the menu of tags to filter by. */
export function drawFilter(menu, album) {
  const chosen = menu.value;
  const options = [["", `all ${album.photos.length}`], ...album.counts().map(([name, count]) => [name, `${name} (${count})`])];
  if (chosen && !options.some(([name]) => name === chosen)) options.push([chosen, `${chosen} (0)`]);
  const made = options.map(([name, text]) => new Option(text, name, false, name === chosen));
  menu.replaceChildren(...made);
}

/** Draw how many photographs are done. */
export function drawProgress(bar, says, album) {
  const all = album.photos.length, done = album.photos.filter((photo) => photo.scores || photo.error).length;
  const failed = album.photos.filter((photo) => photo.error).length;
  bar.hidden = done === all;
  bar.max = all || 1;
  bar.value = done;
  const text = done < all ? `${done} of ${all} tagged` : `${done - failed} tagged${failed ? `, ${failed} cannot be read` : ""}`;
  if (says.textContent !== text) says.textContent = text;
}
