// The credits dialog: the balance and the history, one line per picture.

import { openDialog } from "./dialogs.js";
import { $, arrange, element, setText } from "./dom.js";
import { request } from "./api.js";
import { SETTLEMENTS, SUMS, excerpt, formatAge, formatCredits, formatTime, shortId } from "./formatting.js";

/** The newest entry of each picture, and all grants. */
function newestEntries(entries) {
  const known = new Set();
  return entries.filter(({ jobId }) => {
    if (jobId === null) return true;
    const first = !known.has(jobId);
    known.add(jobId);
    return first;
  });
}

function formatAmount({ entry, amount }) {
  if (entry === "grant") return `+${amount}`;
  return entry === "release" ? "±0" : `−${amount}`;
}

export class Credits {
  #promptOf;
  #changed;

  /** `promptOf` returns the prompt of a known job; `changed` is called with each new balance. */
  constructor(promptOf, changed) {
    this.#promptOf = promptOf;
    this.#changed = changed;
  }

  clear() {
    for (const id of ["sums", "entries"]) arrange($(id), []);
    $("more-entries").hidden = true;
  }

  showBalance(balance) {
    arrange($("sums"), SUMS.map(([name, title]) => {
      const row = element("div");
      row.append(element("dt", { text: title }), element("dd", { text: String(balance[name]) }));
      return row;
    }));
  }

  async open() {
    setText($("credits-problem"), null);
    openDialog($("credits-dialog"));
    const { data } = await request("/credits");
    this.#changed(data.balance);
    arrange($("entries"), newestEntries(data.entries).map((entry) => this.#row(entry)));
    // The oldest entry is a grant: if grants are missing, the list is incomplete.
    const grants = data.entries.filter(({ entry }) => entry === "grant");
    $("more-entries").hidden = grants.reduce((sum, { amount }) => sum + amount, 0) >= data.balance.granted;
  }

  #row(entry) {
    const row = element("li");
    const prompt = entry.jobId && this.#promptOf(entry.jobId);
    const what = entry.jobId ? (prompt ? excerpt(prompt) : `Picture ${shortId(entry.jobId)}`) : "Granted";
    const reason = entry.jobId ? SETTLEMENTS[entry.entry] : entry.note;
    const parts = [formatCredits(entry.amount), ...(reason ? [reason] : [])];
    const small = element("small", { text: `${parts.join(" · ")} · ` });
    small.append(element("time", { dateTime: entry.at, title: formatTime(entry.at), text: formatAge(entry.at) }));
    const name = element("span", { className: "what", text: what, title: prompt ?? "" });
    row.append(name, element("b", { text: formatAmount(entry) }), small);
    return row;
  }
}
