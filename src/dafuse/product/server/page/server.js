// Talking to the server: JSON back, its sentence as the error, its token asked for once.

import { agreed, byId } from "./elements.js";

const KEPT = "dafuse-token"; // in the tab's own storage, gone when the tab is closed

// `dafuse serve` prints an address that ends in #token=...; the server never sees that part
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.has("token")) {
  sessionStorage.setItem(KEPT, fragment.get("token"));
  history.replaceState(null, "", location.pathname);
}

export const hasToken = () => sessionStorage.getItem(KEPT) !== null;

export async function call(method, path, body) {
  return (await answered(method, path, body)).json();
}

// Return what the server answers; throw its refusal as a sentence.
export async function answered(method, path, body) {
  for (;;) {
    const token = sessionStorage.getItem(KEPT);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(path, { method, body, headers });
    } catch {
      throw new Error("The server does not answer. Is it still running?");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw refusal(await response.json());
    await askForToken(token ? "That token was not right." : "What you ask for needs it.");
  }
}

function refusal({ error, skipped }) {
  return Object.assign(new Error(sentence(error)), { skipped });
}

// Send files. Where none of them can be read, return what is wrong with each, as `skipped`.
export async function send(path, form) {
  try {
    return await call("POST", path, form);
  } catch (error) {
    if (!error.skipped) throw error;
    return { skipped: error.skipped };
  }
}

let asking = null; // several calls may find at once that a token is missing

function askForToken(why) {
  asking ??= askOnce(why).finally(() => (asking = null));
  return asking;
}

async function askOnce(why) {
  byId("token-why").textContent = why;
  byId("token").value = "";
  if (!(await agreed(byId("token-dialog")))) throw new Error("Without the token it cannot.");
  sessionStorage.setItem(KEPT, byId("token").value.trim());
}

// Files as forms that keep to the server's limits.
export function* forms(files, limits) {
  let form = null;
  let bytes = 0;
  let count = 0;
  for (const file of files) {
    const size = file.size + 1000; // and what a form writes around it
    if (form && (count === limits.files || bytes + size > limits.body_bytes)) {
      yield { form, count };
      form = null;
    }
    if (!form) [form, bytes, count] = [new FormData(), 0, 0];
    form.append("files", file, file.name || "image");
    bytes += size;
    count += 1;
  }
  if (form) yield { form, count };
}

// What the server says, as a sentence; a file's name at its beginning stays as it is.
export function sentence(text) {
  const begun = text.replace(/^[a-z]+(?= )/, (word) => word[0].toUpperCase() + word.slice(1));
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
