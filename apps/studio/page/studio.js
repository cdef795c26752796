// The page: who is signed in, which view is shown, and what its forms send.

import { Cards } from "./cards.js";
import { $, arrange, dialogs, element, put, tell } from "./dom.js";
import { Gallery } from "./gallery.js";
import { forget, viewer } from "./picture.js";
import { Review } from "./review.js";
import { Stream, ask } from "./server.js";
import { ENTRIES, LONGEST, SUMS, ago, credits, length, whole } from "./words.js";

const PAGE = 100;
const ENDED = "Your session has ended: sign in again.";
let user = null;
let balance = null;

const cards = new Cards(reuse);
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
    $("connection").hidden = yes;
    if (yes) same();
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
  user = null;
  stream.close();
  for (const part of [cards, gallery, review]) part.clear();
  forget();
  for (const id of ["told", "who", "entries"]) $(id).replaceChildren();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  $("account").hidden = $("views").hidden = $("connection").hidden = true;
  put($("sign-in-problem"), why);
  route();
}

/** What went wrong, beside the form that caused it; when the session is over, that is said at the door. */
function wrong(place, error) {
  if (error.status === 401 && user) leave(ENDED);
  else put(place, error.message);
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

$("sign-out").addEventListener("click", async () => {
  try {
    await ask("/session", { method: "DELETE" });
  } catch (error) {
    return wrong($("order-problem"), error);
  }
  // Who leaves by themselves leaves nothing behind. A session that just ended keeps what is written.
  order.reset();
  measure();
  put($("order-problem"), null);
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
  if (shown === "gallery") gallery.refresh();
  if (shown === "review") review.refresh();
  if (shown === "sign-in") $("key").focus();
}

addEventListener("hashchange", route);
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
  measure();
  $("prompt").focus();
}

function wish() {
  const seed = $("seed").value.trim();
  // What is no number goes as it is: the server says what is wrong with it.
  return { prompt: $("prompt").value, size: order.elements.size.value, ...(seed && { seed: /^-?\d{1,15}$/.test(seed) ? Number(seed) : seed }) };
}

order.addEventListener("input", measure);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) order.requestSubmit();
});
order.addEventListener("submit", async (event) => {
  event.preventDefault();
  put($("order-problem"), null);
  const whose = user;
  // The button stays as it is: sent twice within a minute, the same wish is one job, and the page shows one card.
  try {
    const { status, told } = await ask("/jobs", { method: "POST", body: wish() });
    if (user !== whose) return;
    cards.take([told]);
    cards.point(told.id);
    tell(status === 201 ? "Ordered." : "You have ordered this already, a moment ago.");
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
  const place = $("order-problem");
  place.replaceChildren(element("span", { text: error.message }), element("b", { text: `Your balance: ${credits(balance.available)}.` }));
}

async function older() {
  const before = cards.oldest;
  const whose = user;
  try {
    const { told } = await ask(`/jobs?${new URLSearchParams({ limit: PAGE, ...(before && { before }) })}`);
    if (user !== whose) return;
    cards.take(told.jobs);
    $("older-jobs").hidden = told.jobs.length < PAGE;
  } catch (error) {
    wrong($("order-problem"), error);
  }
}

$("older-jobs").addEventListener("click", older);

// ---------------------------------------------------------------- credits
function showBalance(told) {
  balance = told;
  $("available").textContent = balance.available;
  $("available-word").textContent = balance.available === 1 ? "credit" : "credits";
  arrange($("sums"), SUMS.map(([name, title]) => {
    const row = element("div");
    row.append(element("dt", { text: title }), element("dd", { text: String(balance[name]) }));
    return row;
  }));
}

$("credits").addEventListener("click", async () => {
  put($("book-problem"), null);
  $("account-book").showModal();
  try {
    const { told } = await ask("/credits");
    showBalance(told.balance);
    arrange($("entries"), told.entries.map((entry) => {
      const row = element("li");
      const time = element("time", { dateTime: entry.at, title: whole(entry.at), text: ago(entry.at) });
      const what = element("span", { text: [ENTRIES[entry.entry] ?? entry.entry, entry.note].filter(Boolean).join(" · ") });
      row.append(what, time, element("b", { text: String(entry.amount) }));
      return row;
    }));
  } catch (error) {
    wrong($("book-problem"), error);
  }
});

// ---------------------------------------------------------------- the beginning
dialogs();
viewer(reuse);
measure();
// What others' orders came to is no part of this user's stream.
setInterval(() => user?.admin && !document.hidden && review.refresh(), 20_000);
try {
  await enter((await ask("/session")).told);
} catch (error) {
  leave(error.status === 401 ? null : error.message);
}
