// The cards of the jobs: one for each, which moves through the states as the server tells of them.

import { $, arrange, mark, put, stamp, tell } from "./dom.js";
import { thumbnail } from "./picture.js";
import { ask } from "./server.js";
import { STATUS, again, ago, credits, excerpt, pixels, reason, whole } from "./words.js";

const MARKS = { queued: "clock", running: "brush", failed: "again", rejected: "shield", dead_letter: "cross" };
const TOLD = {
  completed: (job) => `Done: ${excerpt(job.prompt)}`,
  rejected: (job) => `Refused: ${excerpt(job.prompt)}. ${reason(job) ?? ""}`,
  dead_letter: (job) => `Not made: ${excerpt(job.prompt)}. ${reason(job) ?? ""}`,
};
const PATIENCE = 10_000;
const NOBODY = "Nobody is drawing at the moment.";

export class Cards {
  #cards = new Map();
  #jobs = new Map();
  #reuse;
  #waiting = new Map();
  #asked = 0;
  #nobody = false;

  constructor(reuse) {
    this.#reuse = reuse;
    setInterval(() => this.#tick(), 1000);
  }

  clear() {
    this.#cards.clear();
    this.#jobs.clear();
    this.#waiting.clear();
    this.#nobody = false;
    arrange($("jobs"), []);
    $("no-jobs").hidden = true;
  }

  promptOf(id) {
    return this.#jobs.get(id)?.prompt;
  }

  /** Show these as they are now. What is older than what is shown already changes nothing. */
  take(jobs) {
    for (const job of jobs) this.#one(job);
    const sorted = this.#sorted();
    arrange($("jobs"), sorted.map((job) => this.#cards.get(job.id)));
    $("no-jobs").hidden = sorted.length > 0;
  }

  /** Bring one into sight, as the answer to an order. */
  point(id) {
    const card = this.#cards.get(id);
    card.classList.remove("pointed");
    // Reading a measure ends the old animation, so that the new one begins.
    void card.offsetWidth;
    card.classList.add("pointed");
    card.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }

  #sorted() {
    return [...this.#jobs.values()].sort((a, b) => new Date(b.createdAt) - new Date(a.createdAt) || (a.id < b.id ? 1 : -1));
  }

  #one(job) {
    const known = this.#jobs.get(job.id);
    if (known && known.version > job.version) return;
    this.#jobs.set(job.id, job);
    const card = this.#cards.get(job.id) ?? this.#made(job);
    if (known && known.status !== job.status && TOLD[job.status]) tell(TOLD[job.status](job));
    if (!known || known.status !== job.status) this.#frame(card, job);
    this.#text(card, job);
  }

  #made(job) {
    const card = stamp("card");
    card.dataset.id = job.id;
    card.querySelector(".words").textContent = job.prompt;
    card.querySelector(".size").textContent = `${pixels(job.size)} · ${credits(job.cost)}`;
    put(card.querySelector(".seed"), job.seed === null ? null : `seed ${job.seed}`);
    const use = card.querySelector(".again");
    use.setAttribute("aria-label", `Use again: ${excerpt(job.prompt)}`);
    use.addEventListener("click", () => this.#reuse(job));
    this.#cards.set(job.id, card);
    return card;
  }

  #frame(card, job) {
    card.dataset.status = job.status;
    const frame = card.querySelector(".frame");
    if (job.status === "completed") {
      const { id, resultUrl: link, prompt, size, seed, cost, createdAt: at } = job;
      frame.replaceChildren(thumbnail({ id, link, prompt, size, seed, cost, at }));
    } else {
      frame.replaceChildren(mark(MARKS[job.status] ?? "clock"));
    }
  }

  #text(card, job) {
    put(card.querySelector(".status"), STATUS[job.status] ?? job.status);
    const trying = ["queued", "running", "failed"].includes(job.status) && job.retryCount > 0;
    put(card.querySelector(".try"), trying ? `${job.retryCount} of ${job.maxRetries} tries failed` : null);
    const nobody = this.#nobody && this.#waiting.has(job.id);
    // What was only interrupted has not been tried in vain, and waits for nothing but a worker.
    const when = job.status === "failed" && job.retryCount > 0 && !nobody ? again(job.dueAt) : null;
    put(card.querySelector(".reason"), [reason(job), when, nobody && `${NOBODY} It keeps its place.`].filter(Boolean).join(" "));
    const time = card.querySelector("time");
    time.dateTime = job.createdAt;
    time.title = whole(job.createdAt);
    put(time, ago(job.createdAt));
  }

  #tick() {
    if (document.hidden) return;
    for (const [id, job] of this.#jobs) {
      // Counted from when this page saw it wait: the server's clock is another.
      const waits = job.status === "queued" || (job.status === "failed" && new Date(job.dueAt) <= Date.now());
      if (!waits) this.#waiting.delete(id);
      else if (!this.#waiting.has(id)) this.#waiting.set(id, Date.now());
      this.#text(this.#cards.get(id), job);
    }
    this.#look();
  }

  /** What waits for long is asked about: it may be that nobody draws. */
  async #look(now = Date.now()) {
    if (!this.#waiting.size) this.#nobody = false;
    if (now - this.#asked < PATIENCE || Math.min(...this.#waiting.values()) > now - PATIENCE) return;
    this.#asked = now;
    try {
      const { told } = await ask("/health", { even: [503] });
      const nobody = told?.worker === false && this.#waiting.size > 0;
      if (nobody && !this.#nobody) tell(NOBODY);
      this.#nobody = nobody;
    } catch {
      // That the studio does not answer is told by the stream.
    }
  }
}
