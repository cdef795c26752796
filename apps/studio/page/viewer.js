// Pictures by signed links. A link ends after a while, so a fresh one is asked for when it has ended or an image will not load.

import { leaveFor, raise } from "./dialogs.js";
import { $, element, put } from "./dom.js";
import { ask } from "./server.js";
import { credits, fileName, pixels, whole } from "./words.js";

const SLACK = 10_000;
const fresh = new Map();
const hanging = new WeakMap();

/** Whether a link still opens its picture. */
export function lives(link, now = Date.now()) {
  if (!link) return false;
  const expires = Number(new URL(link, location.href).searchParams.get("expires"));
  return !expires || expires * 1000 - now > SLACK;
}

/** A link that opens the picture now: the one at hand, or a new one. */
export async function linkOf(id, link, { anew = false } = {}) {
  const known = [link, fresh.get(id)].find((each) => lives(each));
  if (known && !anew) return known;
  const { told } = await ask(`/jobs/${encodeURIComponent(id)}`);
  if (told.resultUrl) fresh.set(id, told.resultUrl);
  return told.resultUrl;
}

/** Show a picture in an <img>, and ask for another link, once, if it does not come. `failed` hears when that did not help. */
export async function show(image, id, link, failed) {
  let tried = false;
  image.onerror = async () => {
    if (tried) return failed();
    tried = true;
    try {
      image.src = await linkOf(id, null, { anew: true });
    } catch {
      failed();
    }
  };
  try {
    image.src = await linkOf(id, link);
  } catch {
    failed();
  }
}

/** A picture that opens large, for a list. */
export function thumbnail(picture) {
  const button = element("button", { type: "button", className: "open" });
  button.setAttribute("aria-label", `Open the picture: ${picture.prompt}`);
  hang(button, picture);
  hanging.set(button, picture);
  button.addEventListener("click", () => {
    if (button.classList.contains("gone")) hang(button, picture);
    else open(button);
  });
  return button;
}

function hang(button, picture) {
  button.classList.remove("gone");
  const image = element("img", { alt: "", loading: "lazy", decoding: "async", className: "arriving" });
  image.addEventListener("load", () => image.classList.remove("arriving"));
  button.replaceChildren(image);
  show(image, picture.id, picture.link, () => {
    button.classList.add("gone");
    button.replaceChildren(element("span", { text: "The picture did not load. Try again" }));
  });
}

let opened = null;
let shown = null;

function open(button) {
  turn(button);
  raise($("large"));
}

/** The one so many places further in its list, if there is one. */
function beside(steps) {
  const all = [...(shown?.closest("ul")?.querySelectorAll(".open:not(.gone)") ?? [])];
  return all[all.indexOf(shown) + steps];
}

function step(steps) {
  const next = beside(steps);
  if (next) turn(next);
}

/** Show this one large. */
function turn(button) {
  const picture = hanging.get(button);
  [opened, shown] = [picture, button];
  const image = $("large-picture");
  for (const [place, name] of [[image, "src"], [$("large-save"), "href"]]) place.removeAttribute(name);
  image.alt = picture.prompt;
  [image.width, image.height] = picture.size.split("x").map(Number);
  $("large-prompt").textContent = picture.prompt;
  const seed = picture.seed == null ? [] : [`seed ${picture.seed}`];
  const cost = picture.cost == null ? [] : [credits(picture.cost)];
  $("large-facts").textContent = [pixels(picture.size), ...cost, ...seed, whole(picture.at)].join(" · ");
  put($("large-problem"), null);
  $("large-save").download = fileName(picture.prompt);
  for (const [id, steps] of [["large-before", -1], ["large-after", 1]]) $(id).disabled = !beside(steps);
  show(image, picture.id, picture.link, () => put($("large-problem"), "The picture did not load: close it, and open it again."));
}

/** Nothing of who was here stays. */
export function forget() {
  opened = shown = null;
  fresh.clear();
  for (const [id, name] of [["large-picture", "src"], ["large-picture", "alt"], ["large-save", "href"], ["large-save", "download"]]) {
    $(id).removeAttribute(name);
  }
  for (const id of ["large-prompt", "large-facts"]) $(id).textContent = "";
}

/** `reuse` hears of a picture whose prompt is wanted again. */
export function viewer(reuse) {
  const save = $("large-save");
  $("large-picture").addEventListener("load", (event) => save.setAttribute("href", event.target.src));
  save.addEventListener("click", async (event) => {
    if (lives(save.href)) return;
    event.preventDefault();
    try {
      element("a", { href: await linkOf(opened.id, null), download: save.download }).click();
    } catch (error) {
      put($("large-problem"), error.message);
    }
  });
  $("large-again").addEventListener("click", () => {
    leaveFor($("large"), "#create");
    reuse(opened);
  });
  $("large-before").addEventListener("click", () => step(-1));
  $("large-after").addEventListener("click", () => step(1));
  $("large").addEventListener("keydown", ({ key }) => {
    if (key === "ArrowLeft") step(-1);
    if (key === "ArrowRight") step(1);
  });
}
