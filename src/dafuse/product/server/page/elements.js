// Small pieces that all parts of the page use. Text is set as text, never as HTML.

export const byId = (id) => document.getElementById(id);

export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

export function say(element, text, kind = "") {
  element.className = `status ${kind}`;
  element.textContent = text;
}

// Add lines of text to a list.
export function note(list, lines) {
  list.append(...lines.map((text) => make("li", "", text)));
}

export function count(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function percent(share) {
  const digits = share > 0.9995 || share < 0.0005 ? 0 : 1;
  return `${(100 * share).toFixed(digits)} %`;
}

// When something was done, by the reader's clock.
export function when(iso) {
  const time = make("time", "", localTime(iso));
  time.dateTime = iso;
  return time;
}

export function localTime(iso) {
  return new Date(iso).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

// Open a dialog, wait, and return whether it was closed by the button that says yes.
export async function agreed(dialog) {
  if (dialog.open) return false; // by a second click
  dialog.returnValue = "cancel"; // what Escape leaves
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "ok";
}

// An image as the browser shows it; its memory is given back as soon as it is drawn.
export function thumbnail(file, alt) {
  const image = make("img");
  image.alt = alt;
  image.src = URL.createObjectURL(file);
  const done = () => URL.revokeObjectURL(image.src);
  image.addEventListener("load", done, { once: true });
  image.addEventListener("error", done, { once: true });
  return image;
}

// Files from the button or dropped on the area around it.
export function takesFiles(area, input, take) {
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    if (files.length) take(files);
  });
  area.addEventListener("dragover", (event) => {
    event.preventDefault();
    area.classList.add("over");
  });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    area.classList.remove("over");
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
}
