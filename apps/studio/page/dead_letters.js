// The review, for administrators: dead letters that wait for a decision.

import { $, arrange, put, stamp, tell } from "./dom.js";
import { ask } from "./server.js";
import { ago, credits, excerpt, pixels, short } from "./words.js";

export class Review {
  #letters = new Map();
  #visit = 0;

  clear() {
    this.#visit += 1;
    this.#letters.clear();
    arrange($("dead"), []);
    put($("review-count"), null);
    put($("review-note"), null);
    $("no-dead").hidden = true;
  }

  async refresh() {
    const visit = this.#visit;
    try {
      const { told } = await ask("/dead-letters");
      // Who asked may have left meanwhile.
      if (visit !== this.#visit) return;
      put($("review-problem"), null);
      // One that is being written to keeps its element, and with it the note.
      this.#letters = new Map(told.deadLetters.map((letter) => [letter.job.id, this.#letters.get(letter.job.id) ?? this.#made(letter)]));
    } catch (error) {
      put($("review-problem"), error.message);
    }
    this.#arrange();
  }

  #arrange() {
    arrange($("dead"), [...this.#letters.values()]);
    put($("review-count"), this.#letters.size ? String(this.#letters.size) : null);
    $("no-dead").hidden = this.#letters.size > 0 || !$("review-problem").hidden;
  }

  #made({ job, userName, reason }) {
    const letter = stamp("letter");
    letter.dataset.id = job.id;
    letter.querySelector(".words").textContent = job.prompt;
    letter.querySelector(".why").textContent = reason ?? "";
    const facts = [userName, pixels(job.size), credits(job.cost), `${job.retryCount} of ${job.maxRetries} tries`, ago(job.finishedAt ?? job.updatedAt)];
    letter.querySelector(".facts").textContent = facts.join(" · ");
    const note = letter.querySelector("input");
    note.id = `note-${job.id}`;
    const label = letter.querySelector("label");
    label.htmlFor = note.id;
    label.querySelector(".unseen").textContent = ` on: ${excerpt(job.prompt)}`;
    note.addEventListener("input", () => put(letter.querySelector(".problem"), null));
    letter.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#decide(letter, job, event.submitter?.value ?? "close", note.value.trim());
    });
    return letter;
  }

  async #decide(letter, job, verb, note) {
    const buttons = [...letter.querySelectorAll("button")];
    for (const button of buttons) button.disabled = true;
    put($("review-note"), null);
    let answer;
    try {
      answer = await ask(`/dead-letters/${encodeURIComponent(job.id)}/${verb}`, { method: "POST", body: verb === "redrive" ? { reason: note } : { note } });
    } catch (error) {
      put(letter.querySelector(".problem"), error.message);
      for (const button of buttons) button.disabled = false;
      return;
    }
    const said = verb === "redrive" ? `Ordered again as ${short(answer.told.id)}: ${excerpt(job.prompt)}` : `Closed: ${excerpt(job.prompt)}`;
    tell(said);
    put($("review-note"), said);
    this.#letters.delete(job.id);
    this.#arrange();
    $("review-title").focus();
  }
}
