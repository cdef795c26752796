// Formatting: states, sizes, times and credits.

export const MAX_LENGTH = 2000;
export const MAX_SEED = 2 ** 31 - 1;

export const STATUS = {
  queued: "Queued",
  running: "Drawing",
  completed: "Done",
  failed: "Retrying",
  rejected: "Rejected",
  dead_letter: "Failed",
};

export const SETTLEMENTS = {
  reserve: "reserved", capture: "used", forfeit: "rejected as unsafe, not refunded", release: "failed, refunded",
};

export const SUMS = [
  ["available", "Available"],
  ["reserved", "Reserved for open orders"],
  ["captured", "Used"],
  ["forfeited", "Not refunded after a rejection"],
  ["granted", "Granted in total"],
];

export const formatCredits = (amount) => `${amount} ${amount === 1 ? "credit" : "credits"}`;

/** The first part of an ID. The command line accepts it as a prefix. */
export const shortId = (id) => id.slice(0, 13);

export const formatSize = (size) => size.replace("x", " × ");

/** The length of a prompt in code points after normalization, as the server counts it. */
export const countCharacters = (prompt) => [...prompt.replaceAll("\r\n", "\n").trim().normalize("NFC")].length;

export const excerpt = (prompt) => {
  const letters = [...prompt.replace(/\s+/g, " ")];
  return letters.length > 60 ? `${letters.slice(0, 60).join("")}…` : letters.join("");
};

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export const formatTime = (at) => WHOLE.format(new Date(at));

export function formatAge(at, now = Date.now()) {
  const seconds = (now - new Date(at)) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  const day = new Date(at).toDateString() === new Date(now).toDateString();
  return day ? CLOCK.format(new Date(at)) : `${DAY.format(new Date(at))}, ${CLOCK.format(new Date(at))}`;
}

/** When a failed job is retried: as a duration within the next hour, else as a time. */
export function formatRetry(dueAt, now = Date.now()) {
  const seconds = dueAt === null ? 0 : Math.ceil((new Date(dueAt) - now) / 1000);
  if (seconds <= 0) return "Retrying in a moment.";
  if (seconds < 100) return `Retrying in ${seconds} s.`;
  if (seconds < 3600) return `Retrying in ${Math.round(seconds / 60)} min.`;
  return `Retrying at ${CLOCK.format(new Date(dueAt))}.`;
}

/** Why there is no picture, or not yet. A rejection names the credits that are not refunded. */
export function formatReason(job) {
  if (job.status !== "rejected") return job.reason;
  return `Rejected as unsafe. Its ${formatCredits(job.cost)} ${job.cost === 1 ? "is" : "are"} not refunded.`;
}

/** A file name from the first words of a prompt, in any script. The browser adds the extension. */
export const fileName = (prompt) => {
  const words = prompt.toLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu) ?? [];
  return [...words.slice(0, 6).join("-")].slice(0, 50).join("").replace(/-$/, "") || "picture";
};
