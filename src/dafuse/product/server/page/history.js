// Everything that was done to the model, and taking back the last of it.

import { agreed, byId, count, localTime, make, say, when } from "./elements.js";
import { call } from "./server.js";

const SHOWN = 100; // steps
const box = byId("history");
let last = null; // the step that undo would take back
let refresh = async () => {};

export const undoable = () => last !== null;

export async function setUpHistory(knows, whenChanged) {
  refresh = whenChanged;
  last = knows.last_step;
  box.hidden = !knows.records?.length;
  if (box.open && !box.hidden) await load();
}

async function load() {
  try {
    const { steps, total } = await call("GET", `/history?limit=${SHOWN}`);
    byId("steps").replaceChildren(...steps.reverse().map(line));
    const earlier = total - steps.length;
    byId("earlier").hidden = !earlier;
    byId("earlier").textContent = `${count(earlier, "earlier step", "earlier steps")}: see dafuse info.`;
    say(byId("history-status"), "");
  } catch (error) {
    say(byId("history-status"), error.message, "error");
  }
}

function line(step) {
  const item = make("li");
  item.value = step.version;
  item.append(when(step.when), make("span", "what", step.what));
  if (step.version === last?.version) {
    const button = make("button", "button small", "Undo");
    button.type = "button";
    button.ariaLabel = `Undo: ${step.what}`;
    button.addEventListener("click", undo);
    item.append(button);
  }
  return item;
}

// The step that the dialog shows, and no other: a terminal may change the model meanwhile.
async function undo() {
  const status = byId("teach-status");
  try {
    const knows = await call("GET", "/classes?limit=0");
    if (knows.last_step === null) {
      await refresh();
      say(status, "There is nothing to undo any more.", "error");
      return;
    }
    const step = knows.last_step;
    byId("undo-what").textContent = `${localTime(step.when)}: ${step.what}`;
    if (!(await agreed(byId("undo-dialog")))) return;
    const { undone } = await call("POST", `/undo?version=${knows.version}`);
    byId("notes").replaceChildren();
    await refresh();
    say(status, `Undone: ${undone.what}.`, "good");
  } catch (error) {
    await refresh();
    say(status, error.message, "error");
  }
}

box.addEventListener("toggle", () => box.open && load());
byId("undo").addEventListener("click", undo);
