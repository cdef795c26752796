// The job cards: one per job, updated from the event stream.

import { $, announce, arrange, cloneTemplate, icon, setText } from "./dom.js";
import { thumbnail } from "./viewer.js";
import { request } from "./api.js";
import {
  STATUS, excerpt, formatAge, formatCredits, formatReason, formatRetry, formatSize, formatTime,
} from "./formatting.js";

const ICONS = { queued: "clock", running: "brush", failed: "again", rejected: "shield", dead_letter: "cross" };
const ANNOUNCEMENTS = {
  completed: (job) => `Done: ${excerpt(job.prompt)}`,
  rejected: (job) => `Rejected: ${excerpt(job.prompt)}. ${formatReason(job) ?? ""}`,
  dead_letter: (job) => `Failed: ${excerpt(job.prompt)}. ${formatReason(job) ?? ""}`,
};
const HEALTH_CHECK_AFTER = 10_000;
const NO_WORKER = "No worker is running.";

export class JobCards {
  #cards = new Map();
  #jobs = new Map();
  #reuse;
  #waitingSince = new Map();
  #checkedAt = 0;
  #noWorker = false;

  constructor(reuse) {
    this.#reuse = reuse;
    setInterval(() => this.#tick(), 1000);
  }

  clear() {
    this.#cards.clear();
    this.#jobs.clear();
    this.#waitingSince.clear();
    this.#noWorker = false;
    arrange($("jobs"), []);
    $("no-jobs").hidden = true;
  }

  promptOf(id) {
    return this.#jobs.get(id)?.prompt;
  }

  /** Show these jobs. An older version of a job than the shown one is ignored. */
  update(jobs) {
    for (const job of jobs) this.#updateOne(job);
    const sorted = this.#sorted();
    arrange($("jobs"), sorted.map((job) => this.#cards.get(job.id)));
    $("no-jobs").hidden = sorted.length > 0;
  }

  /** Scroll to a card and highlight it, after an order. */
  highlight(id) {
    const card = this.#cards.get(id);
    card.classList.remove("highlighted");
    // Reading a layout property restarts the animation.
    void card.offsetWidth;
    card.classList.add("highlighted");
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    card.scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
  }

  #sorted() {
    const newestFirst = (a, b) => new Date(b.createdAt) - new Date(a.createdAt) || (a.id < b.id ? 1 : -1);
    return [...this.#jobs.values()].sort(newestFirst);
  }

  #updateOne(job) {
    const known = this.#jobs.get(job.id);
    if (known && known.version > job.version) return;
    this.#jobs.set(job.id, job);
    const card = this.#cards.get(job.id) ?? this.#create(job);
    if (known && known.status !== job.status) {
      const text = ANNOUNCEMENTS[job.status]?.(job);
      if (text) announce(text);
    }
    if (!known || known.status !== job.status) this.#setFrame(card, job);
    this.#setText(card, job);
  }

  #create(job) {
    const card = cloneTemplate("card");
    card.dataset.id = job.id;
    card.querySelector(".words").textContent = job.prompt;
    card.querySelector(".size").textContent = `${formatSize(job.size)} · ${formatCredits(job.cost)}`;
    setText(card.querySelector(".seed"), job.seed === null ? null : `seed ${job.seed}`);
    const use = card.querySelector(".again");
    use.setAttribute("aria-label", `Use again: ${excerpt(job.prompt)}`);
    use.addEventListener("click", () => this.#reuse(job));
    this.#cards.set(job.id, card);
    return card;
  }

  #setFrame(card, job) {
    card.dataset.status = job.status;
    const frame = card.querySelector(".frame");
    if (job.status === "completed") {
      const { id, resultUrl: link, prompt, size, seed, cost, createdAt: at } = job;
      frame.replaceChildren(thumbnail({ id, link, prompt, size, seed, cost, at }));
    } else {
      frame.replaceChildren(icon(ICONS[job.status] ?? "clock"));
    }
  }

  #setText(card, job) {
    setText(card.querySelector(".status"), STATUS[job.status] ?? job.status);
    const trying = ["queued", "running", "failed"].includes(job.status) && job.retryCount > 0;
    setText(card.querySelector(".try"), trying ? `${job.retryCount} of ${job.maxRetries} tries failed` : null);
    const noWorker = this.#noWorker && this.#waitingSince.has(job.id);
    // An interrupted job has not failed and waits only for a worker.
    const retry = job.status === "failed" && job.retryCount > 0 && !noWorker ? formatRetry(job.dueAt) : null;
    const waiting = noWorker && `${NO_WORKER} Your order stays in the queue.`;
    setText(card.querySelector(".reason"), [formatReason(job), retry, waiting].filter(Boolean).join(" "));
    const time = card.querySelector("time");
    time.dateTime = job.createdAt;
    time.title = formatTime(job.createdAt);
    setText(time, formatAge(job.createdAt));
  }

  #tick() {
    if (document.hidden) return;
    for (const [id, job] of this.#jobs) {
      // Counted from when this page first saw the job wait, because the server's clock may differ.
      const waits = job.status === "queued" || (job.status === "failed" && new Date(job.dueAt) <= Date.now());
      if (!waits) this.#waitingSince.delete(id);
      else if (!this.#waitingSince.has(id)) this.#waitingSince.set(id, Date.now());
      this.#setText(this.#cards.get(id), job);
    }
    this.#checkHealth();
  }

  /** If jobs wait for long, check whether a worker is running. */
  async #checkHealth(now = Date.now()) {
    if (!this.#waitingSince.size) this.#noWorker = false;
    if (now - this.#checkedAt < HEALTH_CHECK_AFTER) return;
    if (Math.min(...this.#waitingSince.values()) > now - HEALTH_CHECK_AFTER) return;
    this.#checkedAt = now;
    try {
      const { data } = await request("/health", { alsoAccept: [503] });
      const noWorker = data?.worker === false && this.#waitingSince.size > 0;
      if (noWorker && !this.#noWorker) announce(NO_WORKER);
      this.#noWorker = noWorker;
    } catch {
      // The event stream reports a lost connection.
    }
  }
}
