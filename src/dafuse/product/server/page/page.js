// The page as a whole: what the model knows, and where pasted images go.

import { ask, setUpAsking } from "./ask.js";
import { ask as askClasses } from "./classes.js";
import { byId, count, say } from "./elements.js";
import { setUpHistory } from "./history.js";
import { setUpKnown } from "./known.js";
import { add, setUpTeaching } from "./teach.js";

async function refresh() {
  try {
    const knows = await askClasses();
    const many = count(knows.total, "class", "classes");
    byId("model").textContent = knows.model;
    document.title = `${knows.model} · dafuse`;
    byId("about").textContent = knows.total
      ? `A classifier of ${many} that keeps learning, and keeps no images.`
      : "A classifier that knows nothing yet. Teach it two things to tell apart.";
    say(byId("ask-status"), "");
    setUpAsking(knows);
    setUpKnown(knows, refresh);
    const told = setUpHistory(knows, refresh);
    setUpTeaching(knows, refresh);
    await told;
  } catch (error) {
    say(byId("ask-status"), error.message, "error");
  }
}

// Pasted images go to the half of the page that has the focus.
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
  if (!files.length) return;
  event.preventDefault();
  (byId("teach").contains(document.activeElement) ? add : ask)(files);
});

// An image dropped beside the areas would replace the page.
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => event.preventDefault());
}

refresh();
