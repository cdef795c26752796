// The studio's addresses: questions with their answers, and the stream of what changes.

export class Refused extends Error {
  /** What the server says is wrong, as its sentence. Status 0 is a server that did not answer. */
  constructor(sentence, status, reason) {
    super(sentence);
    this.status = status;
    this.reason = reason;
  }
}

/** `even` names statuses that are answers too, and no refusals. */
export async function ask(address, { method = "GET", body, even = [] } = {}) {
  const sent = body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(address, { method, credentials: "same-origin", ...sent });
  } catch {
    throw new Refused("The studio did not answer: look at your connection, and try again.", 0, null);
  }
  const told = await answer.json().catch(() => null);
  if (answer.ok || even.includes(answer.status)) return { status: answer.status, told };
  throw new Refused(told?.error ?? `The studio answered ${answer.status}, and did not say why: try again.`, answer.status, told?.reason ?? null);
}

const SOONEST = 1000;
const LATEST = 15000;

/** What changes, as it happens. A connection that is lost is made anew, for as long as the session lives. */
export class Stream {
  #source = null;
  #timer = null;
  #wait = 0;
  #hears;

  /** `hears` has the functions job(job), credits(balance), connected(yes or no) and ended(), when the session is over. */
  constructor(hears) {
    this.#hears = hears;
  }

  open() {
    this.close();
    const source = new EventSource("/events");
    this.#source = source;
    source.addEventListener("open", () => {
      this.#wait = 0;
      this.#hears.connected(true);
    });
    source.addEventListener("job", (event) => this.#hears.job(JSON.parse(event.data)));
    source.addEventListener("credits", (event) => this.#hears.credits(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (this.#source !== source) return;
      this.#hears.connected(false);
      // The browser itself comes back after a cut, but gives up on any answer that is no stream.
      if (source.readyState === EventSource.CLOSED) this.#later();
    });
  }

  close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #later() {
    this.#timer = setTimeout(() => this.#again(), this.#wait);
    this.#wait = Math.min(Math.max(this.#wait * 2, SOONEST), LATEST);
  }

  async #again() {
    const source = this.#source;
    try {
      await ask("/session");
    } catch (error) {
      // Closed meanwhile, so that nobody waits for it any more.
      if (this.#source !== source) return;
      if (error.status === 401) this.#hears.ended();
      else this.#later();
      return;
    }
    if (this.#source === source) this.open();
  }
}
