// Requests to the server: with its token, again where it is busy, and with the photograph where it has forgotten it.

let token = readToken();
let askForToken = async () => null;

/** Have a function give the token when the server wants one; it returns null where nobody knows it. */
export function onTokenWanted(ask) { askForToken = ask; }

function readToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return given ?? sessionStorage.getItem("token");
}

export class ServerError extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

/** Send a request and return the answer; a busy server is asked again when it says so. */
export async function send(path, options = {}, attempts = 12) {
  for (let attempt = 1; ; attempt++) {
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError" || attempt >= 3) throw error.name === "AbortError" ? error : new ServerError(0, "gone", "The server does not answer. Is it still running?");
      await pause(500 * attempt);
      continue;
    }
    if (answer.ok) return answer;
    if (answer.status === 401 && (token = await askForToken())) {
      sessionStorage.setItem("token", token);
      continue;
    }
    const after = Number(answer.headers.get("Retry-After"));
    if ((answer.status === 429 || answer.status === 503) && after && attempt < attempts) {
      await pause(1000 * after * (0.5 + Math.random()));
      continue;
    }
    const said = await answer.json().catch(() => ({}));
    throw new ServerError(answer.status, said.code, said.error ?? `The server answered ${answer.status}.`);
  }
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const asJson = (document) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(document) });

export async function fetchModels() { return (await send("/v1/models")).json(); }

/** Send a photograph; its scores come back, and its features are kept under its key. */
export async function sendPhotograph(photo, model) {
  const options = { method: "PUT", headers: { "Content-Type": "application/octet-stream" }, body: photo.file };
  return (await send(`/v1/photographs/${photo.key}?model=${encodeURIComponent(model)}`, options)).json();
}

/** Ask about a kept photograph; where it is not kept any more, send it once more. */
async function aboutKept(photo, model, path, document) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await (await send(`/v1/photographs/${photo.key}${path}`, asJson({ ...document, model }))).json();
    } catch (error) {
      if (error.code !== "not_kept" || attempt >= 4) throw error; // several workers: each may have to see it
      await sendPhotograph(photo, model);
    }
  }
}

export const tellKnown = (photo, model, known, since) => aboutKept(photo, model, "", { known, since });
export const explainTags = (photo, model, known, classes) => aboutKept(photo, model, "/explain", { known, classes });
export const askQuestion = (photo, model, known) => aboutKept(photo, model, "/question", { known });

export function forget(photo) { send(`/v1/photographs/${photo.key}`, { method: "DELETE" }, 1).catch(() => {}); }

export async function downloadRows(kind, rows) {
  const answer = await send(`/v1/files/${kind}`, asJson({ rows }));
  const name = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition"))?.[1] ?? "tags";
  return { name, content: await answer.blob() };
}
