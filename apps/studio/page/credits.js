// The account: how the credits stand, and what became of them, one line for each picture.

import { raise } from "./dialogs.js";
import { $, arrange, element, put } from "./dom.js";
import { ask } from "./server.js";
import { SETTLED, SUMS, ago, credits, excerpt, short, whole } from "./words.js";

/** The newest entry of each picture, and every grant: what was reserved and then used is paid once, and reads so. */
function newest(entries) {
  const known = new Set();
  return entries.filter(({ jobId }) => {
    if (jobId === null) return true;
    const first = !known.has(jobId);
    known.add(jobId);
    return first;
  });
}

function signed({ entry, amount }) {
  if (entry === "grant") return `+${amount}`;
  return entry === "release" ? "±0" : `−${amount}`;
}

export class Book {
  #promptOf;
  #changed;

  /** `promptOf` knows the prompts of some jobs by their ids; `changed` hears of each balance. */
  constructor(promptOf, changed) {
    this.#promptOf = promptOf;
    this.#changed = changed;
  }

  clear() {
    for (const id of ["sums", "entries"]) arrange($(id), []);
    $("more-entries").hidden = true;
  }

  sums(balance) {
    arrange($("sums"), SUMS.map(([name, title]) => {
      const row = element("div");
      row.append(element("dt", { text: title }), element("dd", { text: String(balance[name]) }));
      return row;
    }));
  }

  async open() {
    put($("book-problem"), null);
    raise($("account-book"));
    const { told } = await ask("/credits");
    this.#changed(told.balance);
    arrange($("entries"), newest(told.entries).map((entry) => this.#line(entry)));
    // The first of all entries is a grant: without all the grants, the list was cut.
    const granted = told.entries.filter(({ entry }) => entry === "grant").reduce((sum, { amount }) => sum + amount, 0);
    $("more-entries").hidden = granted >= told.balance.granted;
  }

  #line(entry) {
    const row = element("li");
    const prompt = entry.jobId && this.#promptOf(entry.jobId);
    const what = entry.jobId ? (prompt ? excerpt(prompt) : `Picture ${short(entry.jobId)}`) : "Granted";
    const how = [credits(entry.amount), entry.jobId ? SETTLED[entry.entry] : entry.note].filter(Boolean).join(" · ");
    const small = element("small", { text: `${how} · ` });
    small.append(element("time", { dateTime: entry.at, title: whole(entry.at), text: ago(entry.at) }));
    row.append(element("span", { className: "what", text: what, title: prompt ?? "" }), element("b", { text: signed(entry) }), small);
    return row;
  }
}
