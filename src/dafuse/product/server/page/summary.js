// Many answers in a table: how many images of each class, how sure, how many unknown.

import { byId, count, make, percent } from "./elements.js";

const MANY = 4; // answers; a table of fewer says no more than they do
const SHOWN = 50; // classes; those of fewer images are put together
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
  const all = many ? grouped(answers) : [];
  const rows = all.slice(0, SHOWN);
  byId("summary-title").textContent = count(answers.length, "image", "images");
  byId("summary-rows").replaceChildren(...rows.map(line), ...rest(all.slice(SHOWN)));
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

// The classes that have no line of their own.
function rest(rows) {
  if (!rows.length) return [];
  const sums = { images: 0, sum: 0, unknown: 0 };
  for (const row of rows) for (const key in sums) sums[key] += row[key];
  const line = make("tr");
  const head = make("th", "quiet", count(rows.length, "other class", "other classes"));
  head.scope = "row";
  const mean = percent(sums.sum / sums.images);
  line.append(head, ...[sums.images, mean, sums.unknown || "–"].map(cell));
  return [line];
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
