// How are values written? Unknown is a dash, never zero.

const UNKNOWN = "–";
const known = (value) => value !== null && value !== undefined;

function number(value, digits = 0) {
  if (!known(value)) return UNKNOWN;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// With as many digits as a person reads: 0.042, 1.3, 27, 1,250.
function rough(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 10 ? 0 : size >= 1 ? 1 : 3 });
}

const percent = (ratio) => (known(ratio) ? `${Math.round(100 * ratio)}%` : UNKNOWN);

function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 0.995) return `${Math.round(1000 * value)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 1 : 0)} s` : span(value);
}

function span(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 100) return `${Math.round(value)} s`;
  if (value < 6000) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

const clock = (unix) => new Date(1000 * unix).toLocaleTimeString("en-GB");
const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

// By state: its sign, how bad it is, and how it is coloured. The word always stands beside the sign.
const STATES = {
  expired: ["⚠", 0, "bad"],
  unhealthy: ["✕", 1, "bad"],
  returning: ["↻", 2, "fair"],
  draining: ["◐", 3, "fair"],
  starting: ["◌", 4, "fair"],
  drained: ["○", 5, "rest"],
  ready: ["●", 6, "good"],
};
const stateOf = (name) => STATES[name] ?? ["?", 0, "fair"];
const OUTCOMES = {
  ok: ["✓", "good"],
  backpressure: ["◐", "fair"],
  failed: ["✕", "bad"],
  cancelled: ["○", "rest"],
  unknown: ["?", "rest"],
  in_flight: ["…", "rest"],
};
const LEVELS = { critical: ["✕", "bad"], warning: ["⚠", "fair"], note: ["i", "rest"] };
