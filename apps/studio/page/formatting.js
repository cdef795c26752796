// How things are told to a person: states, sizes, moments, credits.

export const LONGEST = 2000;
export const LARGEST_SEED = 2 ** 31 - 1;

export const STATUS = {
  queued: "Queued",
  running: "Drawing",
  completed: "Done",
  failed: "Trying again",
  rejected: "Refused",
  dead_letter: "Not made",
};

export const SETTLED = {
  reserve: "set aside", capture: "used", forfeit: "refused as unsafe, not given back", release: "not made, given back",
};

export const SUMS = [
  ["available", "Available"],
  ["reserved", "Set aside for what is being made"],
  ["captured", "Used"],
  ["forfeited", "Not given back after a refusal"],
  ["granted", "Granted in all"],
];

export const credits = (amount) => `${amount} ${amount === 1 ? "credit" : "credits"}`;

/** The beginning of an id, as long as its moment: enough to find it by at the command line. */
export const short = (id) => id.slice(0, 13);

export const pixels = (size) => size.replace("x", " × ");

/** As many characters as the server counts: by code points, of the prompt as it is kept. */
export const length = (prompt) => [...prompt.replaceAll("\r\n", "\n").trim().normalize("NFC")].length;

export const excerpt = (prompt) => {
  const letters = [...prompt.replace(/\s+/g, " ")];
  return letters.length > 60 ? `${letters.slice(0, 60).join("")}…` : letters.join("");
};

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
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

/** When a failed job is tried again: how long that is, while it is not long. */
export function again(dueAt, now = Date.now()) {
  const seconds = dueAt === null ? 0 : Math.ceil((new Date(dueAt) - now) / 1000);
  if (seconds <= 0) return "Tries again in a moment.";
  if (seconds < 100) return `Tries again in ${seconds} s.`;
  return seconds < 3600 ? `Tries again in ${Math.round(seconds / 60)} min.` : `Tries again at ${CLOCK.format(new Date(dueAt))}.`;
}

/** Why it is not made, or not yet. The server's "credits are kept" could be read as the user's keeping them. */
export function reason(job) {
  if (job.status !== "rejected") return job.reason;
  return `Refused as unsafe. Its ${credits(job.cost)} ${job.cost === 1 ? "is" : "are"} not given back.`;
}

/** What a picture's file is called: its first words, in any script. The browser adds the ending. */
export const fileName = (prompt) => {
  const words = prompt.toLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu) ?? [];
  return [...words.slice(0, 6).join("-")].slice(0, 50).join("").replace(/-$/, "") || "picture";
};
