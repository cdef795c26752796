// The review view for administrators: dead letters without a decision.

import { $, announce, arrange, cloneTemplate, setText } from "./dom.js";
import { request } from "./api.js";
import { excerpt, formatAge, formatCredits, formatSize, shortId } from "./formatting.js";

export class DeadLetters {
  #letters = new Map();
  #visit = 0;

  clear() {
    this.#visit += 1;
    this.#letters.clear();
    arrange($("dead"), []);
    setText($("review-count"), null);
    setText($("review-note"), null);
    $("no-dead").hidden = true;
  }

  async refresh() {
    const visit = this.#visit;
    try {
      const { data } = await request("/dead-letters");
      // The user may have signed out in the meantime.
      if (visit !== this.#visit) return;
      setText($("review-problem"), null);
      // A known dead letter keeps its element, and with it the note that the user types.
      this.#letters = new Map(data.deadLetters.map((letter) => {
        const id = letter.job.id;
        return [id, this.#letters.get(id) ?? this.#create(letter)];
      }));
    } catch (error) {
      setText($("review-problem"), error.message);
    }
    this.#arrange();
  }

  #arrange() {
    arrange($("dead"), [...this.#letters.values()]);
    setText($("review-count"), this.#letters.size ? String(this.#letters.size) : null);
    $("no-dead").hidden = this.#letters.size > 0 || !$("review-problem").hidden;
  }

  #create({ job, userName, reason }) {
    const letter = cloneTemplate("letter");
    letter.dataset.id = job.id;
    letter.querySelector(".words").textContent = job.prompt;
    letter.querySelector(".why").textContent = reason ?? "";
    const tries = `${job.retryCount} of ${job.maxRetries} tries`;
    const ended = formatAge(job.finishedAt ?? job.updatedAt);
    const facts = [userName, formatSize(job.size), formatCredits(job.cost), tries, ended];
    letter.querySelector(".facts").textContent = facts.join(" · ");
    const note = letter.querySelector("input");
    note.id = `note-${job.id}`;
    const label = letter.querySelector("label");
    label.htmlFor = note.id;
    label.querySelector(".visually-hidden").textContent = ` on: ${excerpt(job.prompt)}`;
    note.addEventListener("input", () => setText(letter.querySelector(".problem"), null));
    letter.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#decide(letter, job, event.submitter?.value ?? "close", note.value.trim());
    });
    return letter;
  }

  async #decide(letter, job, verb, note) {
    const buttons = [...letter.querySelectorAll("button")];
    for (const button of buttons) button.disabled = true;
    setText($("review-note"), null);
    const path = `/dead-letters/${encodeURIComponent(job.id)}/${verb}`;
    let answer;
    try {
      answer = await request(path, { method: "POST", body: verb === "redrive" ? { reason: note } : { note } });
    } catch (error) {
      setText(letter.querySelector(".problem"), error.message);
      for (const button of buttons) button.disabled = false;
      return;
    }
    const done = verb === "redrive" ? `Ordered again as ${shortId(answer.data.id)}` : "Closed";
    const said = `${done}: ${excerpt(job.prompt)}`;
    announce(said);
    setText($("review-note"), said);
    this.#letters.delete(job.id);
    this.#arrange();
    $("review-title").focus();
  }
}
