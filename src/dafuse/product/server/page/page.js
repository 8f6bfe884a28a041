// The page as a whole: what the model knows, and where pasted pictures go.

import { ask, setUpAsking } from "./ask.js";
import { byId, count, make, say } from "./elements.js";
import { call } from "./server.js";
import { add, setUpTeaching } from "./teach.js";

async function refresh() {
  try {
    const knows = await call("GET", "/classes");
    const many = count(knows.classes.length, "class", "classes");
    byId("about").textContent = knows.classes.length
      ? `A classifier of ${many} that keeps learning, and keeps no pictures.`
      : "A classifier that knows nothing yet. Teach it two things to tell apart.";
    byId("known-none").hidden = knows.classes.length > 0;
    byId("known-classes").replaceChildren(...knows.classes.map((name) => make("li", "", name)));
    say(byId("ask-status"), "");
    setUpAsking(knows);
    setUpTeaching(knows, refresh);
  } catch (error) {
    say(byId("ask-status"), error.message, "error");
  }
}

// Pasted pictures go to the half of the page that has the focus.
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
  if (!files.length) return;
  event.preventDefault();
  (byId("teach").contains(document.activeElement) ? add : ask)(files);
});

// A picture dropped beside the areas would replace the page.
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => event.preventDefault());
}

refresh();
