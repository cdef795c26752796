// Thumbnails and the picture viewer. Signed links expire, so a new one is requested when an image does not load.

import { closeAndShow, openDialog } from "./dialogs.js";
import { $, element, setText } from "./dom.js";
import { request } from "./api.js";
import { fileName, formatCredits, formatSize, formatTime } from "./formatting.js";

const SLACK = 10_000;
const newLinks = new Map();
const pictures = new WeakMap();

/** Whether a link has not expired. */
export function isValid(link, now = Date.now()) {
  if (!link) return false;
  const expires = Number(new URL(link, location.href).searchParams.get("expires"));
  return !expires || expires * 1000 - now > SLACK;
}

/** A valid link to a picture: a known one, or a new one from the server. */
export async function findLink(id, link, { renew = false } = {}) {
  const known = [link, newLinks.get(id)].find((each) => isValid(each));
  if (known && !renew) return known;
  const { data } = await request(`/jobs/${encodeURIComponent(id)}`);
  if (data.resultUrl) newLinks.set(id, data.resultUrl);
  return data.resultUrl;
}

/** Load a picture into an <img>. If that fails, try once with a new link, then call `failed`. */
export async function loadImage(image, id, link, failed) {
  let tried = false;
  image.onerror = async () => {
    if (tried) return failed();
    tried = true;
    try {
      image.src = await findLink(id, null, { renew: true });
    } catch {
      failed();
    }
  };
  try {
    image.src = await findLink(id, link);
  } catch {
    failed();
  }
}

/** A button with a picture that opens the viewer. */
export function thumbnail(picture) {
  const button = element("button", { type: "button", className: "open" });
  button.setAttribute("aria-label", `Open picture: ${picture.prompt}`);
  loadThumbnail(button, picture);
  pictures.set(button, picture);
  button.addEventListener("click", () => {
    if (button.classList.contains("gone")) loadThumbnail(button, picture);
    else open(button);
  });
  return button;
}

function loadThumbnail(button, picture) {
  button.classList.remove("gone");
  const image = element("img", { alt: "", loading: "lazy", decoding: "async", className: "arriving" });
  image.addEventListener("load", () => image.classList.remove("arriving"));
  button.replaceChildren(image);
  loadImage(image, picture.id, picture.link, () => {
    button.classList.add("gone");
    button.replaceChildren(element("span", { text: "The picture did not load. Try again." }));
  });
}

let opened = null;
let shown = null;

function open(button) {
  showPicture(button);
  openDialog($("large"));
}

/** The picture this many places further in the list, if there is one. */
function neighbour(steps) {
  const all = [...(shown?.closest("ul")?.querySelectorAll(".open:not(.gone)") ?? [])];
  return all[all.indexOf(shown) + steps];
}

function step(steps) {
  const next = neighbour(steps);
  if (next) showPicture(next);
}

function showPicture(button) {
  const picture = pictures.get(button);
  [opened, shown] = [picture, button];
  const image = $("large-picture");
  for (const [place, name] of [[image, "src"], [$("large-save"), "href"]]) place.removeAttribute(name);
  image.alt = picture.prompt;
  [image.width, image.height] = picture.size.split("x").map(Number);
  $("large-prompt").textContent = picture.prompt;
  const seed = picture.seed == null ? [] : [`seed ${picture.seed}`];
  const cost = picture.cost == null ? [] : [formatCredits(picture.cost)];
  const facts = [formatSize(picture.size), ...cost, ...seed, formatTime(picture.at)];
  $("large-facts").textContent = facts.join(" · ");
  setText($("large-problem"), null);
  $("large-save").download = fileName(picture.prompt);
  for (const [id, steps] of [["large-before", -1], ["large-after", 1]]) $(id).disabled = !neighbour(steps);
  const problem = "The picture did not load. Close it and open it again.";
  loadImage(image, picture.id, picture.link, () => setText($("large-problem"), problem));
}

/** Remove all data of the user who signed out. */
export function clearViewer() {
  opened = shown = null;
  newLinks.clear();
  for (const name of ["src", "alt"]) $("large-picture").removeAttribute(name);
  for (const name of ["href", "download"]) $("large-save").removeAttribute(name);
  for (const id of ["large-prompt", "large-facts"]) $(id).textContent = "";
}

/** `reuse` is called with a picture whose prompt the user wants to use again. */
export function setupViewer(reuse) {
  const save = $("large-save");
  $("large-picture").addEventListener("load", (event) => save.setAttribute("href", event.target.src));
  save.addEventListener("click", async (event) => {
    if (isValid(save.href)) return;
    event.preventDefault();
    try {
      element("a", { href: await findLink(opened.id, null), download: save.download }).click();
    } catch (error) {
      setText($("large-problem"), error.message);
    }
  });
  $("large-again").addEventListener("click", () => {
    closeAndShow($("large"), "#create");
    reuse(opened);
  });
  $("large-before").addEventListener("click", () => step(-1));
  $("large-after").addEventListener("click", () => step(1));
  $("large").addEventListener("keydown", ({ key }) => {
    if (key === "ArrowLeft") step(-1);
    if (key === "ArrowRight") step(1);
  });
}
