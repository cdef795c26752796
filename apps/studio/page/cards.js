// The cards of the jobs: one for each, which moves through the states as the server tells of them.

import { $, arrange, mark, put, stamp, tell } from "./dom.js";
import { thumbnail } from "./picture.js";
import { STATUS, again, ago, credits, excerpt, pixels, whole } from "./words.js";

const MARKS = { queued: "clock", running: "brush", failed: "again", rejected: "shield", dead_letter: "cross" };
const TOLD = {
  completed: (job) => `Done: ${excerpt(job.prompt)}`,
  rejected: (job) => `Refused: ${excerpt(job.prompt)}. ${job.reason ?? ""}`,
  dead_letter: (job) => `Not made: ${excerpt(job.prompt)}. ${job.reason ?? ""}`,
};

export class Cards {
  #cards = new Map();
  #jobs = new Map();
  #reuse;

  constructor(reuse) {
    this.#reuse = reuse;
    setInterval(() => this.#tick(), 5000);
  }

  clear() {
    this.#cards.clear();
    this.#jobs.clear();
    arrange($("jobs"), []);
    $("no-jobs").hidden = true;
  }

  get oldest() {
    return this.#sorted().at(-1)?.id;
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
    const seed = job.seed === null ? "" : ` · seed ${job.seed}`;
    card.querySelector(".size").textContent = `${pixels(job.size)} · ${credits(job.cost)}${seed}`;
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
    const when = job.status === "failed" ? again(job.dueAt) : null;
    put(card.querySelector(".reason"), [job.reason, when].filter(Boolean).join(" "));
    const time = card.querySelector("time");
    time.dateTime = job.createdAt;
    time.title = whole(job.createdAt);
    put(time, ago(job.createdAt));
  }

  #tick() {
    for (const [id, job] of this.#jobs) this.#text(this.#cards.get(id), job);
  }
}
