// "What is this?": images in, classes as bars out; of many images also a summary.

import { offerCamera } from "./camera.js";
import { byId, count, make, note, percent, say, takesFiles, thumbnail } from "./elements.js";
import { forms, send, sentence } from "./server.js";
import { chosen, showSummary, whenChosen } from "./summary.js";

const SHOWN = 24; // cards at once
const KEPT = 5000; // answers on the page
const status = byId("ask-status");
let limits = { files: 1, body_bytes: 0 };
let answers = []; // {file, found, card, list}, the newest list first
let lists = 0; // of files so far; several may be under way at once
let shown = SHOWN;

export function setUpAsking(knows) {
  limits = knows.limits;
  const nothing = !knows.total;
  byId("ask-files").disabled = byId("ask-camera").disabled = nothing;
  if (nothing) {
    say(status, knows.teaching ? "It knows nothing yet: teach it first." : "It knows nothing yet.");
  }
}

export async function ask(files) {
  if (byId("ask-files").disabled) return;
  say(status, files.length === 1 ? "Looking ..." : `Looking at ${files.length} images ...`);
  const list = (lists += 1);
  const now = []; // its answers
  const skipped = []; // and a sentence on each file that cannot be read
  byId("ask-skipped").replaceChildren();
  try {
    for (const { form } of forms(files, limits)) {
      const predictions = await look(form);
      const rest = files.slice(now.length + skipped.length);
      const both = predictions.map((found, i) => ({ file: rest[i], found, card: null, list }));
      const more = both.filter(({ found }) => !found.error);
      now.push(...more);
      skipped.push(...predictions.flatMap(({ error }) => (error ? [sentence(error)] : [])));
      const looked = now.length + skipped.length;
      if (looked < files.length) say(status, `Looked at ${looked} of ${files.length} ...`);
      // sorting is stable: answers to one list stay in the order of its files
      answers = [...answers, ...more].sort((a, b) => b.list - a.list).slice(0, KEPT);
      render();
    }
    const all = `${count(now.length, "image", "images")} answered`;
    if (skipped.length) say(status, `${all}, ${skipped.length} skipped:`, "error");
    else say(status, files.length === 1 ? said(now[0].found) : `${all}.`, "spoken"); // answers are shown
  } catch (error) {
    say(status, now.length ? `${now.length} answered, then: ${error.message}` : error.message, "error");
  } finally {
    note(byId("ask-skipped"), skipped);
  }
}

// What the server says to each file of a form.
async function look(form) {
  const { predictions, skipped } = await send("/predict?top=5", form);
  return predictions ?? skipped.map((error) => ({ error }));
}

function render() {
  const many = showSummary(answers.map((one) => one.found));
  byId("answers").classList.toggle("many", many);
  const fitting = answers.filter((one) => chosen(one.found));
  const cards = fitting.slice(0, shown).map((one) => (one.card ??= card(one)));
  byId("answers").replaceChildren(...cards);
  const more = fitting.length - cards.length;
  byId("more").hidden = more <= 0;
  byId("more").textContent = `Show ${Math.min(more, SHOWN)} more of ${fitting.length}`;
}

function said(found) {
  const best = found.top[0];
  return found.unknown
    ? `Unknown. The closest class is ${best.name}.`
    : `${best.name}, ${percent(best.probability)}.`;
}

function card({ file, found }) {
  const item = make("li", "answer");
  const text = make("div");
  text.append(make("h3", found.unknown ? "unknown" : "", found.name));
  if (found.unknown) {
    text.append(make("p", "quiet", "Unlike every class it knows. The closest:"));
  }
  const bars = make("ul", "bars");
  bars.append(...found.top.map(bar));
  text.append(bars);
  item.append(thumbnail(file, file.name || "the image"), text);
  return item;
}

function bar({ name, probability }) {
  const line = make("li");
  const track = make("div", "track");
  const fill = make("div", "fill");
  fill.style.width = `${100 * probability}%`;
  track.ariaHidden = "true"; // the number says it
  track.append(fill);
  line.append(make("span", "name", name), make("span", "share", percent(probability)), track);
  return line;
}

takesFiles(byId("ask-drop"), byId("ask-files"), ask);
offerCamera(byId("ask-camera"), ask);
whenChosen(() => {
  shown = SHOWN;
  render();
});
byId("more").addEventListener("click", () => {
  shown += SHOWN;
  render();
});
byId("clear").addEventListener("click", () => {
  answers = [];
  byId("ask-skipped").replaceChildren();
  render();
  say(status, "");
  byId("ask-files").focus();
});
