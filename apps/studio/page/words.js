// How things are told to a person: states, sizes, moments, credits.

export const LONGEST = 2000;

export const STATUS = {
  queued: "Queued",
  running: "Drawing",
  completed: "Done",
  failed: "Trying again",
  rejected: "Refused",
  dead_letter: "Not made",
};

export const ENTRIES = { grant: "Granted", reserve: "Reserved", capture: "Used", forfeit: "Kept", release: "Given back" };

export const SUMS = [
  ["available", "Available"],
  ["reserved", "Reserved for what is being made"],
  ["captured", "Used"],
  ["forfeited", "Kept after a refusal"],
  ["granted", "Granted in all"],
];

export const credits = (amount) => `${amount} ${amount === 1 ? "credit" : "credits"}`;

export const pixels = (size) => size.replace("x", " × ");

/** As many characters as the server counts: by code points, of the prompt as it is kept. */
export const length = (prompt) => [...prompt.replaceAll("\r\n", "\n").trim().normalize("NFC")].length;

export const excerpt = (prompt) => {
  const letters = [...prompt.replace(/\s+/g, " ")];
  return letters.length > 60 ? `${letters.slice(0, 60).join("")}…` : letters.join("");
};

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const EXACT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export const whole = (at) => WHOLE.format(new Date(at));

export function ago(at, now = Date.now()) {
  const seconds = (now - new Date(at)) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  const day = new Date(at).toDateString() === new Date(now).toDateString();
  return day ? CLOCK.format(new Date(at)) : `${DAY.format(new Date(at))}, ${CLOCK.format(new Date(at))}`;
}

/** When a failed job is tried again: the moment, to the second if it is near. */
export function again(dueAt, now = Date.now()) {
  const wait = dueAt === null ? 0 : new Date(dueAt) - now;
  if (wait <= 0) return "Tries again in a moment.";
  return `Tries again at ${(wait < 600_000 ? EXACT : CLOCK).format(new Date(dueAt))}.`;
}
