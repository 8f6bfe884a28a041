// "Teach it": name a class, add images, learn.

import { offerCamera } from "./camera.js";
import { searches } from "./classes.js";
import { byId, count, make, note, say, takesFiles, thumbnail } from "./elements.js";
import { undoable } from "./history.js";
import { call, forms, hasToken, send, sentence } from "./server.js";

const THUMBS = 24; // of a class; the rest is a number
const PAUSE = 400; // milliseconds between two looks at how far it is
const LOOKING = ["features", "reading"]; // phases; in all others it learns
const status = byId("teach-status");
const rows = new Map(); // class name -> its row in the list of what waits
let limits = { files: 1, body_bytes: 0 };
let learning = false;
let more = false; // classes than the names that are offered
let mirrored = null; // as the model's last lesson was
let refresh = async () => {};

export function setUpTeaching(knows, whenChanged) {
  const first = byId("teach").hidden;
  byId("teach").hidden = !knows.teaching;
  limits = knows.limits;
  refresh = whenChanged;
  byId("flip-option").hidden = knows.flip === null; // a method that does not train
  if (knows.flip !== mirrored) byId("flip").checked = mirrored = knows.flip; // else it stays
  more = knows.total > knows.classes.length;
  offer(knows);
  for (const name of rows.keys()) if (!(name in knows.staged)) forget(name);
  for (const [name, staged] of Object.entries(knows.staged)) row(name).set(staged);
  setButtons();
  if (first && knows.teaching && hasToken()) watch(false); // one may be under way
}

// Offer names of classes while one is typed.
function offer({ classes }) {
  byId("known-names").replaceChildren(
    ...classes.map((name) => Object.assign(make("option"), { value: name })),
  );
}

function setButtons() {
  byId("learn").disabled = learning || !rows.size;
  byId("undo").disabled = learning || !undoable();
}

// Return the name that is typed in; where there is none, ask for it.
function named() {
  const name = byId("class-name").value.trim();
  if (!name) {
    say(status, "Name the class first.", "error");
    byId("class-name").focus();
  }
  return name;
}

// Send images of the class that is named; return whether all of them arrived.
export async function add(files) {
  const name = named();
  if (!name) return false;
  const path = `/classes/${encodeURIComponent(name)}/images`;
  const skipped = []; // a sentence on each file that cannot be read
  let sent = 0;
  byId("notes").replaceChildren();
  try {
    for (const { form, count: size } of forms(files, limits)) {
      say(status, `Sending ${count(files.length, "image", "images")} of ${name} ...`);
      const kept = await send(path, form);
      if (kept.name) {
        // by the name it keeps: an accent can be spelt in two ways
        const these = files.slice(sent, sent + size);
        row(kept.name).show(these.filter((file) => !skips(kept.skipped, file)));
        row(kept.name).set(kept.staged);
        setButtons();
      }
      sent += size;
      skipped.push(...kept.skipped.map(sentence));
    }
    const added = `${count(sent - skipped.length, "image", "images")} of ${name} added`;
    if (skipped.length) say(status, `${added}, ${skipped.length} skipped:`, "error");
    else say(status, `${added}.`);
    return !skipped.length;
  } catch (error) {
    const added = sent - skipped.length;
    say(status, added ? `${added} added, then: ${error.message}` : error.message, "error");
    return false;
  } finally {
    note(byId("notes"), skipped);
  }
}

// Whether one of these sentences is on this file: they begin with its name.
function skips(sentences, file) {
  return sentences.some((text) => text.startsWith(`${file.name} `));
}

function row(name) {
  if (!rows.has(name)) {
    const item = make("li", "staged");
    const label = make("div");
    const number = make("span", "quiet");
    const thumbs = make("div", "thumbs");
    const remove = make("button", "button small", "Remove");
    remove.type = "button";
    remove.ariaLabel = `Remove the images of ${name}`;
    remove.addEventListener("click", () => drop(name));
    label.append(make("strong", "", name), " ", number);
    item.append(label, remove, thumbs);
    byId("staged").append(item);
    rows.set(name, {
      item,
      set: (staged) => {
        number.textContent = count(staged, "image", "images");
        const more = staged - thumbs.querySelectorAll("img").length;
        thumbs.querySelector("span")?.remove();
        if (more > 0 && thumbs.children.length) thumbs.append(make("span", "", `+${more}`));
      },
      show: (files) => {
        thumbs.querySelector("span")?.remove();
        const free = Math.max(0, THUMBS - thumbs.children.length);
        thumbs.append(...files.slice(0, free).map((file) => thumbnail(file, "")));
      },
    });
  }
  return rows.get(name);
}

function forget(name) {
  rows.get(name)?.item.remove();
  rows.delete(name);
  setButtons();
}

async function drop(name) {
  try {
    await call("DELETE", `/classes/${encodeURIComponent(name)}/images`);
    forget(name);
    say(status, `The images of ${name} are gone.`);
    byId("class-name").focus(); // the button that had the focus is gone, too
  } catch (error) {
    say(status, error.message, "error");
  }
}

async function learn() {
  byId("notes").replaceChildren();
  learning = true; // from here on, so that a second click does nothing
  setButtons();
  try {
    await refresh(); // what waited may be gone: learned from another page, or lost with a server
    if (!rows.size) {
      end();
      say(status, "Add images first.", "error");
      await watch(false); // the lesson of another page, if there is one
      return;
    }
    await call("POST", mirrored === null ? "/learn" : `/learn?flip=${byId("flip").checked}`);
  } catch (error) {
    end();
    say(status, error.message, "error");
    return;
  }
  await watch(true);
}

async function watch(begun) {
  try {
    await follow(begun);
  } catch (error) {
    end();
    say(status, error.message, "error");
  }
}

// Show how far the lesson is until it ends; and then, if it was seen to run, how it went.
async function follow(begun) {
  let lesson = await call("GET", "/learn");
  if (lesson.state !== "running" && !begun) return;
  let said = null;
  begin(begun ? [...rows.values()] : []); // else what waits is for the next one
  while (lesson.state === "running") {
    const now = doing(lesson);
    if (now !== said) say(status, (said = now)); // else other messages stay
    byId("lesson-phase").textContent = phase(lesson);
    byId("lesson-bar").value = lesson.progress;
    byId("lesson-time").textContent = timeLeft(lesson.seconds_left);
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    lesson = await call("GET", "/learn");
  }
  end();
  await refresh();
  if (lesson.error) say(status, sentence(lesson.error), "error");
  else report(lesson.report);
}

function phase(lesson) {
  if (lesson.waiting_for) return "Waiting";
  if (!lesson.phase) return "Getting ready";
  return LOOKING.includes(lesson.phase) ? "Looking at the images" : "Learning";
}

function doing(lesson) {
  const names = Object.keys(lesson.pictures).join(", ");
  return lesson.waiting_for
    ? `Waiting for ${lesson.waiting_for}. Then ${names} will be learned.`
    : `Learning ${names}. You can go on asking meanwhile.`;
}

// What is being learned stays in sight, but it can no longer be removed.
function begin(taken) {
  learning = true;
  for (const { item } of taken) {
    item.classList.add("learning");
    item.querySelector("button").remove();
  }
  if (taken.length) rows.clear();
  setButtons();
  byId("lesson-bar").value = 0;
  byId("lesson").hidden = false;
}

function end() {
  learning = false;
  for (const item of document.querySelectorAll(".learning")) item.remove();
  byId("lesson").hidden = true;
  setButtons();
}

function timeLeft(seconds) {
  if (seconds === null) return "";
  if (seconds < 1.5) return "almost done";
  if (seconds < 90) return `about ${Math.round(seconds)} s left`;
  return `about ${Math.round(seconds / 60)} minutes left`;
}

function report(found) {
  const names = found.classes.map((one) => one.name).join(", ");
  say(status, `Learned ${names} in ${found.seconds.toFixed(1)} s. Try it now.`, "good");
  byId("class-name").value = "";
  const [, ...lines] = found.lines; // the first says the same
  byId("notes").replaceChildren();
  note(byId("notes"), [...lines, ...found.skipped].map((line) => sentence(line.trim())));
}

takesFiles(byId("teach-drop"), byId("teach-files"), add);
byId("teach-form").addEventListener("submit", (event) => {
  event.preventDefault(); // Enter in the name leads on to the images
  byId("teach-files").focus();
});
searches(byId("class-name"), {
  show: offer,
  fail: () => {}, // any name may be typed
  needed: () => more,
});
byId("learn").addEventListener("click", learn);
offerCamera(byId("teach-camera"), add, { many: true, ready: named });
