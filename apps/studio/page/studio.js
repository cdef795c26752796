// The page: who is signed in, which view is shown, and what its forms send.

import { Book } from "./book.js";
import { Cards } from "./cards.js";
import { dialogs } from "./dialogs.js";
import { $, element, put, tell } from "./dom.js";
import { Gallery } from "./gallery.js";
import { remember, remembered } from "./memory.js";
import { forget, viewer } from "./picture.js";
import { Review } from "./review.js";
import { Refused, Stream, ask } from "./server.js";
import { LARGEST_SEED, LONGEST, credits, length } from "./words.js";

const PAGE = 100;
const ENDED = "Your session has ended: sign in again.";
let user = null;
let balance = null;

const cards = new Cards(reuse);
const book = new Book((id) => cards.promptOf(id), showBalance);
const gallery = new Gallery();
const review = new Review();
const stream = new Stream({
  job(job) {
    cards.take([job]);
    if (job.status === "completed" && view() === "gallery") soon(gallery);
    if (job.status === "dead_letter" && user?.admin) soon(review);
  },
  credits: showBalance,
  connected(yes) {
    const before = $("connection").hidden;
    $("connection").hidden = yes;
    // At once when it is cut, too: it may be that the session has ended.
    if (yes || before) same();
    if (yes) mended(0);
    if (yes && !before) refreshView();
  },
  ended: () => leave(ENDED),
});

/** Many changes at once are one question. */
const asked = new Map();
function soon(part) {
  clearTimeout(asked.get(part));
  asked.set(part, setTimeout(() => user && part.refresh(), 200));
}

// ---------------------------------------------------------------- who is signed in
async function enter({ user: known, credits: theirs }) {
  user = known;
  paged = undefined;
  remember(true);
  $("who").textContent = user.name;
  $("review-link").hidden = !user.admin;
  $("account").hidden = $("views").hidden = false;
  showBalance(theirs);
  route();
  await Promise.all([older(), user.admin ? review.refresh() : null]);
  if (user === known && !document.hidden) stream.open();
}

/** Another tab may have signed in somebody else: what is shown here would be two people's. */
async function same() {
  try {
    const { told } = await ask("/session");
    if (user && told.user.id !== user.id) location.reload();
  } catch (error) {
    if (error.status === 401 && user) leave(ENDED);
  }
}

// A browser has few connections to one server: a page that nobody sees holds none.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.close();
  else if (user) stream.open();
});

function leave(why) {
  if (why === null || why === ENDED) remember(false);
  user = null;
  stream.close();
  for (const part of [cards, gallery, review, book]) part.clear();
  forget();
  for (const id of ["told", "who"]) $(id).replaceChildren();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  $("account").hidden = $("views").hidden = $("connection").hidden = true;
  put($("sign-in-problem"), why);
  route();
}

/** What went wrong, beside the form that caused it; when the session is over, that is said at the door. */
function wrong(place, error) {
  if (error.status === 401 && user) return leave(ENDED);
  put(place, error.message);
  if (place.id === "order-problem") trouble = error.status;
}

/** What is said beside the order ends with its cause, which is known by the status of the answer; without one, anything does. */
let trouble = null;
function mended(status) {
  if (status !== undefined && status !== trouble) return;
  trouble = null;
  put($("order-problem"), null);
}

$("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  if (!key) return put($("sign-in-problem"), "Give your access key.");
  try {
    const { told } = await ask("/session", { method: "POST", body: { key } });
    $("key").value = "";
    put($("sign-in-problem"), null);
    await enter(told);
    $("prompt").focus();
  } catch (error) {
    put($("sign-in-problem"), error.message);
    $("key").select();
  }
});
$("key").addEventListener("input", () => put($("sign-in-problem"), null));

$("sign-out").addEventListener("click", async () => {
  try {
    await ask("/session", { method: "DELETE" });
  } catch (error) {
    return wrong($("order-problem"), error);
  }
  // Who leaves by themselves leaves nothing behind. A session that just ended keeps what is written.
  order.reset();
  edited();
  leave(null);
});

// ---------------------------------------------------------------- which view is shown
function view() {
  const wanted = location.hash.slice(1);
  return wanted === "gallery" || (wanted === "review" && user?.admin) ? wanted : "create";
}

function route() {
  const shown = user ? view() : "sign-in";
  for (const id of ["sign-in", "create", "gallery", "review"]) $(id).hidden = id !== shown;
  for (const link of $("views").children) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refreshView();
  if (!user) $("key").focus();
}

function refreshView() {
  if (user && view() === "gallery") gallery.refresh();
  if (user && view() === "review") review.refresh();
}

addEventListener("hashchange", () => {
  route();
  scrollTo(0, 0);
});
$("skip").addEventListener("click", (event) => {
  // It leads into the view that is shown: its own address would be another view's.
  event.preventDefault();
  $("content").focus();
});

// ---------------------------------------------------------------- the order
const order = $("order");

function measure() {
  const written = length($("prompt").value);
  $("length").textContent = `${written} of ${LONGEST} characters`;
  $("length").classList.toggle("beyond", written > LONGEST);
  $("price").textContent = credits(Number(order.querySelector("[name=size]:checked").dataset.cost));
}

function reuse({ prompt, size, seed }) {
  location.hash = "#create";
  route();
  $("prompt").value = prompt;
  for (const each of order.elements.size) each.checked = each.value === size;
  $("seed").value = seed ?? "";
  edited();
  $("prompt").focus();
}

/** Another wish: what was said of the last one is not of this. */
function edited() {
  measure();
  mended();
  note(null);
}

let noted;
function note(sentence) {
  clearTimeout(noted);
  put($("order-note"), sentence);
}

/** The same wish again is the same order until the minute is over. */
function already() {
  const sentence = "You have ordered this already, a moment ago.";
  tell(sentence);
  note(`${sentence} For another one, change the seed, or wait for the next minute.`);
  noted = setTimeout(note, 60_000 - (Date.now() % 60_000), null);
}

function wish() {
  const seed = $("seed").value.trim();
  if (seed && !(/^\d{1,10}$/.test(seed) && Number(seed) <= LARGEST_SEED)) {
    throw new Refused(`The seed cannot be used: give a whole number from 0 to ${LARGEST_SEED}, or none.`, 400, "params_invalid");
  }
  return { prompt: $("prompt").value, size: order.elements.size.value, ...(seed && { seed: Number(seed) }) };
}

order.addEventListener("input", edited);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) order.requestSubmit();
});
order.addEventListener("submit", async (event) => {
  event.preventDefault();
  mended();
  note(null);
  const whose = user;
  // The button stays as it is: sent twice within a minute, the same wish is one job, and the page shows one card.
  try {
    const { status, told } = await ask("/jobs", { method: "POST", body: wish() });
    if (user !== whose) return;
    cards.take([told]);
    cards.point(told.id);
    if (status === 201) tell("Ordered.");
    else already();
  } catch (error) {
    wrong($("order-problem"), error);
    if (error.status === 402) await poor(error);
  }
});

/** Too few credits: how they stand is shown with the reason. */
async function poor(error) {
  try {
    showBalance((await ask("/credits")).told.balance);
  } catch {
    // The reason is shown all the same; the balance comes with the stream.
    return;
  }
  wrong($("order-problem"), error);
  $("order-problem").replaceChildren(element("span", { text: error.message }), element("b", { text: `Your balance: ${credits(balance.available)}.` }));
}

/** The last job of the last page: the stream shows older ones too, if they have not ended. */
let paged;

async function older() {
  const before = paged;
  const whose = user;
  try {
    const { told } = await ask(`/jobs?${new URLSearchParams({ limit: PAGE, ...(before && { before }) })}`);
    if (user !== whose) return;
    cards.take(told.jobs);
    paged = told.jobs.at(-1)?.id ?? paged;
    $("older-jobs").hidden = told.jobs.length < PAGE;
  } catch (error) {
    wrong($("order-problem"), error);
  }
}

$("older-jobs").addEventListener("click", older);

// ---------------------------------------------------------------- credits
function showBalance(told) {
  if (balance && balance.available !== told.available) mended(402);
  balance = told;
  $("available").textContent = balance.available;
  $("available-word").textContent = balance.available === 1 ? "credit" : "credits";
  book.sums(balance);
}

$("credits").addEventListener("click", () => book.open().catch((error) => wrong($("book-problem"), error)));

// ---------------------------------------------------------------- the beginning
dialogs();
viewer(reuse);
measure();
// What others' orders came to is no part of this user's stream.
setInterval(() => user?.admin && !document.hidden && review.refresh(), 20_000);
try {
  if (remembered()) await enter((await ask("/session")).told);
  else leave(null);
} catch (error) {
  leave(error.status === 401 ? null : error.message);
}
