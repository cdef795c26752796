// The HTTP API: requests and the event stream.

export class ApiError extends Error {
  /** The server's error message. Status 0 means that the server did not respond. */
  constructor(sentence, status, reason) {
    super(sentence);
    this.status = status;
    this.reason = reason;
  }
}

/** Send a request. `alsoAccept` lists error statuses that are returned and not thrown. */
export async function request(address, { method = "GET", body, alsoAccept = [] } = {}) {
  const json = { "Content-Type": "application/json" };
  const sent = body === undefined ? {} : { headers: json, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(address, { method, credentials: "same-origin", ...sent });
  } catch {
    throw new ApiError("The studio did not respond. Check your connection and try again.", 0, null);
  }
  const data = await answer.json().catch(() => null);
  if (answer.ok || alsoAccept.includes(answer.status)) return { status: answer.status, data };
  const sentence = data?.error ?? `The studio responded with status ${answer.status}. Try again.`;
  throw new ApiError(sentence, answer.status, data?.reason ?? null);
}

const MIN_WAIT = 1000;
const MAX_WAIT = 15000;

/** The event stream. It reconnects until the session ends. */
export class EventStream {
  #source = null;
  #timer = null;
  #wait = 0;
  #handlers;

  /** `handlers` has the functions job(job), credits(balance), connected(isConnected) and ended(). */
  constructor(handlers) {
    this.#handlers = handlers;
  }

  open() {
    this.close();
    const source = new EventSource("/events");
    this.#source = source;
    source.addEventListener("open", () => {
      this.#wait = 0;
      this.#handlers.connected(true);
    });
    source.addEventListener("job", (event) => this.#handlers.job(JSON.parse(event.data)));
    source.addEventListener("credits", (event) => this.#handlers.credits(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (this.#source !== source) return;
      this.#handlers.connected(false);
      // The browser reconnects by itself, but gives up after an error response.
      if (source.readyState === EventSource.CLOSED) this.#reconnectLater();
    });
  }

  close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #reconnectLater() {
    this.#timer = setTimeout(() => this.#reconnect(), this.#wait);
    this.#wait = Math.min(Math.max(this.#wait * 2, MIN_WAIT), MAX_WAIT);
  }

  async #reconnect() {
    const source = this.#source;
    try {
      await request("/session");
    } catch (error) {
      // The stream was closed in the meantime.
      if (this.#source !== source) return;
      if (error.status === 401) this.#handlers.ended();
      else this.#reconnectLater();
      return;
    }
    if (this.#source === source) this.open();
  }
}
