// The classes that the model knows: a page of them at a time, for there may be very many.

import { call } from "./server.js";

const AT_ONCE = 50; // classes in an answer
const PAUSE = 200; // milliseconds after the last key

export function ask(query = "", offset = 0) {
  return call("GET", `/classes?${new URLSearchParams({ query, limit: AT_ONCE, offset })}`);
}

// Whatever stands in a field is searched for, a moment after the last key. An answer that comes
// after that to something typed later is not shown.
export function searches(input, { show, fail, needed }) {
  let last = 0;
  let timer = null;
  const search = async (now) => {
    try {
      const found = await ask(input.value.trim());
      if (now === last) show(found);
    } catch (error) {
      if (now === last) fail(error);
    }
  };
  input.addEventListener("input", () => {
    const now = (last += 1);
    clearTimeout(timer);
    if (needed()) timer = setTimeout(() => search(now), PAUSE);
  });
}
