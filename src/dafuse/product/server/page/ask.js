// "What is this?": pictures in, classes as bars out.

import { byId, count, make, percent, picture, say, takesFiles } from "./elements.js";
import { call, forms } from "./server.js";

const SHOWN = 12; // answers on the page, the newest first
const status = byId("ask-status");
const answers = byId("answers");
let limits = { files: 1, body_bytes: 0 };

export function setUpAsking(knows) {
  limits = knows.limits;
  byId("ask-files").disabled = !knows.classes.length;
  if (!knows.classes.length) {
    say(status, knows.teaching ? "It knows nothing yet: teach it first." : "It knows nothing yet.");
  }
}

export async function ask(files) {
  if (byId("ask-files").disabled) return;
  say(status, files.length === 1 ? "Looking ..." : `Looking at ${files.length} pictures ...`);
  let shown = 0;
  try {
    for (const { form, count: size } of forms(files, limits)) {
      const { predictions } = await call("POST", "/predict?top=5", form);
      predictions.forEach((found, i) => show(files[shown + i], found));
      shown += size;
    }
    const [first] = answers.children;
    const all = `${count(shown, "picture", "pictures")} answered.`;
    say(status, shown === 1 ? first.dataset.said : all, "spoken"); // it is there to be seen
  } catch (error) {
    say(status, error.message, "error");
  }
}

function show(file, found) {
  const item = make("li", "answer");
  const best = found.top[0];
  item.dataset.said = found.unknown
    ? `Unknown. The closest class is ${best.name}.`
    : `${best.name}, ${percent(best.probability)}.`;
  const text = make("div");
  text.append(make("h3", found.unknown ? "unknown" : "", found.unknown ? "unknown" : found.name));
  if (found.unknown) {
    text.append(make("p", "quiet", "Unlike every class it knows. The closest:"));
  }
  const bars = make("ul", "bars");
  bars.append(...found.top.map(bar));
  text.append(bars);
  item.append(picture(file, file.name || "the picture"), text);
  answers.prepend(item);
  while (answers.children.length > SHOWN) answers.lastChild.remove();
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
