// Many answers in a table: how many images of each class, how sure, how many unknown.

import { byId, count, make, percent } from "./elements.js";

const MANY = 4; // answers; a table of fewer says no more than they do
const ALL = "all";
const UNKNOWN = "unknown";
const CLASS = "class:"; // and its name, which may be any word
const filter = byId("filter");

// Whether an answer is among those that are to be shown.
export function chosen(found) {
  if (filter.value === UNKNOWN) return found.unknown;
  return !filter.value.startsWith(CLASS) || CLASS + closest(found) === filter.value;
}

export function whenChosen(act) {
  filter.addEventListener("change", () => {
    mark();
    act();
  });
}

// Show the table where there are many answers; return whether there are.
export function showSummary(answers) {
  const many = answers.length >= MANY;
  byId("summary").hidden = !many;
  const rows = many ? grouped(answers) : [];
  byId("summary-title").textContent = count(answers.length, "image", "images");
  byId("summary-rows").replaceChildren(...rows.map(line));
  offer(rows, answers);
  mark();
  return many;
}

const closest = (found) => found.top[0].name;

function grouped(answers) {
  const rows = new Map();
  for (const found of answers) {
    const name = closest(found);
    const row = rows.get(name) ?? { name, images: 0, sum: 0, unknown: 0 };
    row.images += 1;
    row.sum += found.probability;
    row.unknown += found.unknown ? 1 : 0;
    rows.set(name, row);
  }
  return [...rows.values()].sort((a, b) => b.images - a.images || a.name.localeCompare(b.name));
}

function line({ name, images, sum, unknown }) {
  const row = make("tr");
  const head = make("th");
  head.scope = "row";
  const button = make("button", "choose", name);
  button.type = "button";
  button.dataset.value = CLASS + name;
  button.addEventListener("click", () => choose(filter.value === CLASS + name ? ALL : CLASS + name));
  head.append(button);
  row.append(head, ...[images, percent(sum / images), unknown || "–"].map(cell));
  return row;
}

const cell = (text) => make("td", "number", String(text));

function choose(value) {
  filter.value = value;
  filter.dispatchEvent(new Event("change"));
}

// The same choice as a list, which also has the unknown ones.
function offer(rows, answers) {
  const before = filter.value;
  const unknown = answers.filter((found) => found.unknown).length;
  const options = [[ALL, `all images (${answers.length})`]];
  if (unknown) options.push([UNKNOWN, `unknown (${unknown})`]);
  for (const { name, images } of rows) options.push([CLASS + name, `${name} (${images})`]);
  filter.replaceChildren(
    ...options.map(([value, text]) => Object.assign(make("option", "", text), { value })),
  );
  if (options.some(([value]) => value === before)) filter.value = before;
}

function mark() {
  for (const button of byId("summary-rows").querySelectorAll("button")) {
    button.ariaPressed = String(button.dataset.value === filter.value);
  }
}
