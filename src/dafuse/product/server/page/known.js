// "What it knows": the classes with their images; rename, forget, and the model as a file.

import { agreed, byId, count, make, say, when } from "./elements.js";
import { ask, searches } from "./classes.js";
import { answered, call } from "./server.js";

const FINDABLE = 10; // classes; where there are more, they can be searched
const SHOWN = 500; // lines at most: to see others, they are searched
const status = byId("known-status");
let knows = null;
let refresh = async () => {};

export function setUpKnown(now, whenChanged) {
  knows = now;
  refresh = whenChanged;
  const many = knows.total;
  byId("known-none").hidden = many > 0;
  byId("known-box").hidden = many === 0;
  byId("find-box").hidden = many <= FINDABLE;
  byId("export").hidden = !knows.teaching || many === 0;
  byId("known").classList.toggle("no-folder", knows.records === null);
  byId("known").classList.toggle("no-teacher", !knows.teaching);
  if (byId("find-box").hidden) byId("find").value = "";
  byId("known-classes").replaceChildren();
  if (byId("find").value.trim()) byId("find").dispatchEvent(new Event("input")); // look again
  else show(knows);
}

// The classes found, instead of those shown before.
function show(found) {
  byId("known-classes").replaceChildren();
  append(found);
}

function append({ classes, records, total, found }) {
  const body = byId("known-classes");
  body.append(...(records ?? classes.map((name) => ({ name }))).map(line));
  const shown = body.rows.length;
  const left = classes.length ? found - shown : 0;
  byId("known-count").textContent = `${shown.toLocaleString("en")} of ${count(total, "class", "classes")}`;
  byId("known-count").hidden = shown === total;
  byId("known-more").hidden = left <= 0 || shown >= SHOWN;
  byId("known-more").textContent = `Show more of ${found.toLocaleString("en")}`;
}

async function more() {
  try {
    append(await ask(byId("find").value.trim(), byId("known-classes").rows.length));
  } catch (error) {
    say(status, error.message, "error");
  }
}

function line(record) {
  const row = make("tr");
  const head = make("th", "name", record.name);
  head.scope = "row";
  const change = make("td", "of-teacher");
  change.append(
    button("Rename", record.name, () => rename(record)),
    button("Forget", record.name, () => forget(record)),
  );
  const images = make("td", "number of-folder", String(record.images ?? ""));
  const taught = make("td", "of-folder when");
  if (record.updated) taught.append(when(record.updated));
  row.append(head, images, taught, change);
  return row;
}

function button(text, name, act) {
  const made = make("button", "button small", text);
  made.type = "button";
  made.ariaLabel = `${text} ${name}`;
  made.addEventListener("click", act);
  return made;
}

async function rename({ name }) {
  byId("rename-title").textContent = `Rename ${name}`;
  byId("new-name").value = name;
  const asked = agreed(byId("rename-dialog"));
  byId("new-name").select();
  if (!(await asked)) return;
  const to = byId("new-name").value.trim();
  if (to === name) return;
  await change(async () => {
    const path = `/classes/${encodeURIComponent(name)}/rename?to=${encodeURIComponent(to)}`;
    const renamed = await call("POST", path);
    return `${name} is now called ${renamed.name}.`;
  });
}

async function forget({ name, images }) {
  byId("forget-title").textContent = `Forget ${name}?`;
  byId("forget-what").textContent = `It was learned from ${count(images, "image", "images")}.`;
  byId("for-good").checked = false; // to be chosen each time
  if (!(await agreed(byId("forget-dialog")))) return;
  const good = byId("for-good").checked;
  await change(async () => {
    const path = `/classes/${encodeURIComponent(name)}?for_good=${good}`;
    const { remains } = await call("DELETE", path);
    const left = remains ? ` But ${remains}.` : "";
    return good ? `${name} is forgotten for good.${left}` : `${name} is forgotten.${left}`;
  });
}

// Do something to the model, and show what it is then.
async function change(act) {
  let [text, kind] = ["", "good"];
  try {
    text = await act();
  } catch (error) {
    [text, kind] = [error.message, "error"];
  }
  await refresh();
  say(status, text, kind);
  byId("known-title").focus(); // the button that had the focus is gone
}

async function download() {
  byId("export").disabled = true;
  say(status, "Making the file ...");
  try {
    const file = await (await answered("GET", "/export")).blob();
    const link = Object.assign(make("a"), {
      href: URL.createObjectURL(file),
      download: `${knows.model}.onnx`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // when it has been saved
    say(status, `${link.download}: ${(file.size / 1e6).toFixed(1)} MB.`, "good");
  } catch (error) {
    say(status, error.message, "error");
  } finally {
    byId("export").disabled = false;
  }
}

searches(byId("find"), {
  show,
  fail: (error) => say(status, error.message, "error"),
  needed: () => true,
});
byId("known-more").addEventListener("click", more);
byId("export").addEventListener("click", download);
