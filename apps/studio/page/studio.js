// The page: sign-in, views and the order form.

import { ApiError, EventStream, request } from "./api.js";
import { Credits } from "./credits.js";
import { DeadLetters } from "./dead_letters.js";
import { setupDialogs } from "./dialogs.js";
import { $, announce, element, setText } from "./dom.js";
import { MAX_LENGTH, MAX_SEED, countCharacters, formatCredits } from "./formatting.js";
import { Gallery } from "./gallery.js";
import { JobCards } from "./job_cards.js";
import { isRemembered, remember } from "./signed_in.js";
import { clearViewer, setupViewer } from "./viewer.js";

const PAGE_SIZE = 100;
const SESSION_ENDED = "Your session has ended. Sign in again.";
let user = null;
let balance = null;

const cards = new JobCards(reuse);
const creditsDialog = new Credits((id) => cards.promptOf(id), showBalance);
const gallery = new Gallery();
const deadLetters = new DeadLetters();
const stream = new EventStream({
  job(job) {
    cards.update([job]);
    if (job.status === "completed" && currentView() === "gallery") refreshSoon(gallery);
    if (job.status === "dead_letter" && user?.admin) refreshSoon(deadLetters);
  },
  credits: showBalance,
  connected(isConnected) {
    const wasConnected = $("connection").hidden;
    $("connection").hidden = isConnected;
    // Also after a lost connection: the session may have ended.
    if (isConnected || wasConnected) checkSession();
    if (isConnected) clearOrderError(0);
    if (isConnected && !wasConnected) refreshView();
  },
  ended: () => leave(SESSION_ENDED),
});

/** Combine several changes into one refresh. */
const timers = new Map();
function refreshSoon(part) {
  clearTimeout(timers.get(part));
  timers.set(part, setTimeout(() => user && part.refresh(), 200));
}

// ---------------------------------------------------------------- session
async function enter({ user: known, credits: theirs }) {
  user = known;
  lastJob = undefined;
  remember(true);
  $("who").textContent = user.name;
  $("review-link").hidden = !user.admin;
  $("account").hidden = $("views").hidden = false;
  showBalance(theirs);
  route();
  await Promise.all([loadOlder(), user.admin ? deadLetters.refresh() : null]);
  if (user === known && !document.hidden) stream.open();
}

/** Reload the page if another tab has signed in another user. */
async function checkSession() {
  try {
    const { data } = await request("/session");
    if (user && data.user.id !== user.id) location.reload();
  } catch (error) {
    if (error.status === 401 && user) leave(SESSION_ENDED);
  }
}

// Browsers limit the connections to one server, so a hidden page closes its stream.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.close();
  else if (user) stream.open();
});

function leave(why) {
  if (why === null || why === SESSION_ENDED) remember(false);
  user = null;
  stream.close();
  for (const part of [cards, gallery, deadLetters, creditsDialog]) part.clear();
  clearViewer();
  for (const id of ["announcements", "who"]) $(id).replaceChildren();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  $("account").hidden = $("views").hidden = $("connection").hidden = true;
  setText($("sign-in-problem"), why);
  route();
}

/** Show an error next to its form. If the session has ended, show the sign-in form instead. */
function showError(place, error) {
  if (error.status === 401 && user) return leave(SESSION_ENDED);
  setText(place, error.message);
  if (place.id === "order-problem") orderErrorStatus = error.status;
}

/** Hide the order form's error; with a status, only if the error has this status. */
let orderErrorStatus = null;
function clearOrderError(status) {
  if (status !== undefined && status !== orderErrorStatus) return;
  orderErrorStatus = null;
  setText($("order-problem"), null);
}

$("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  if (!key) return setText($("sign-in-problem"), "Enter your access key.");
  try {
    const { data } = await request("/session", { method: "POST", body: { key } });
    $("key").value = "";
    setText($("sign-in-problem"), null);
    await enter(data);
    $("prompt").focus();
  } catch (error) {
    setText($("sign-in-problem"), error.message);
    $("key").select();
  }
});
$("key").addEventListener("input", () => setText($("sign-in-problem"), null));

$("sign-out").addEventListener("click", async () => {
  try {
    await request("/session", { method: "DELETE" });
  } catch (error) {
    return showError($("order-problem"), error);
  }
  // Signing out clears the form. If the session merely ends, the form keeps its text.
  order.reset();
  edited();
  leave(null);
});

// ---------------------------------------------------------------- views
function currentView() {
  const wanted = location.hash.slice(1);
  return wanted === "gallery" || (wanted === "review" && user?.admin) ? wanted : "create";
}

function route() {
  const shown = user ? currentView() : "sign-in";
  for (const id of ["sign-in", "create", "gallery", "review"]) $(id).hidden = id !== shown;
  for (const link of $("views").children) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refreshView();
  if (!user) $("key").focus();
}

function refreshView() {
  if (user && currentView() === "gallery") gallery.refresh();
  if (user && currentView() === "review") deadLetters.refresh();
}

addEventListener("hashchange", () => {
  route();
  scrollTo(0, 0);
});
$("skip").addEventListener("click", (event) => {
  // Focus the current view: the link's own hash would select another view.
  event.preventDefault();
  $("content").focus();
});

// ---------------------------------------------------------------- order form
const order = $("order");

function updateForm() {
  const length = countCharacters($("prompt").value);
  $("length").textContent = `${length} of ${MAX_LENGTH} characters`;
  $("length").classList.toggle("beyond", length > MAX_LENGTH);
  $("price").textContent = formatCredits(Number(order.querySelector("[name=size]:checked").dataset.cost));
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

/** The order has changed: hide the messages about the previous one. */
function edited() {
  updateForm();
  clearOrderError();
  showNote(null);
}

let noteTimer;
function showNote(sentence) {
  clearTimeout(noteTimer);
  setText($("order-note"), sentence);
}

/** An identical order within the same minute is the same job. */
function showDuplicate() {
  const sentence = "You already ordered this picture.";
  announce(sentence);
  showNote(`${sentence} To get another one, change the seed or wait until the next minute.`);
  noteTimer = setTimeout(showNote, 60_000 - (Date.now() % 60_000), null);
}

function readOrder() {
  const seed = $("seed").value.trim();
  if (seed && !(/^\d{1,10}$/.test(seed) && Number(seed) <= MAX_SEED)) {
    throw new ApiError(`The seed must be a whole number from 0 to ${MAX_SEED}.`, 400, "params_invalid");
  }
  return { prompt: $("prompt").value, size: order.elements.size.value, ...(seed && { seed: Number(seed) }) };
}

order.addEventListener("input", edited);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) order.requestSubmit();
});
order.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearOrderError();
  showNote(null);
  const sender = user;
  // The button is not disabled: an identical order within a minute is the same job and the same card.
  try {
    const { status, data } = await request("/jobs", { method: "POST", body: readOrder() });
    if (user !== sender) return;
    cards.update([data]);
    cards.highlight(data.id);
    if (status === 201) announce("Ordered.");
    else showDuplicate();
  } catch (error) {
    showError($("order-problem"), error);
    if (error.status === 402) await showBalanceWith(error);
  }
});

/** Too few credits: show the balance with the error. */
async function showBalanceWith(error) {
  try {
    showBalance((await request("/credits")).data.balance);
  } catch {
    // The error is shown anyway; the balance arrives with the event stream.
    return;
  }
  showError($("order-problem"), error);
  const available = element("b", { text: `Your balance: ${formatCredits(balance.available)}.` });
  $("order-problem").replaceChildren(element("span", { text: error.message }), available);
}

/** The last job of the last loaded page. The event stream may also show older jobs that are open. */
let lastJob;

async function loadOlder() {
  const before = lastJob;
  const sender = user;
  try {
    const query = new URLSearchParams({ limit: PAGE_SIZE, ...(before && { before }) });
    const { data } = await request(`/jobs?${query}`);
    if (user !== sender) return;
    cards.update(data.jobs);
    lastJob = data.jobs.at(-1)?.id ?? lastJob;
    $("older-jobs").hidden = data.jobs.length < PAGE_SIZE;
  } catch (error) {
    showError($("order-problem"), error);
  }
}

$("older-jobs").addEventListener("click", loadOlder);

// ---------------------------------------------------------------- credits
function showBalance(newBalance) {
  if (balance && balance.available !== newBalance.available) clearOrderError(402);
  balance = newBalance;
  $("available").textContent = balance.available;
  $("available-word").textContent = balance.available === 1 ? "credit" : "credits";
  creditsDialog.showBalance(balance);
}

$("credits").addEventListener("click", () => {
  creditsDialog.open().catch((error) => showError($("credits-problem"), error));
});

// ---------------------------------------------------------------- start
setupDialogs();
setupViewer(reuse);
updateForm();
// The event stream contains only the user's own jobs, so dead letters of others are polled.
setInterval(() => user?.admin && !document.hidden && deadLetters.refresh(), 20_000);
try {
  if (isRemembered()) await enter((await request("/session")).data);
  else leave(null);
} catch (error) {
  leave(error.status === 401 ? null : error.message);
}
