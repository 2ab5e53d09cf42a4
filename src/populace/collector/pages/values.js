// From what a person types to a number, and from a number to its code: the rules of docs/collector-api.md, "GET /v1/study".

const DAY = 86_400_000;

// A number as people write it: "12", "-3.5", "3,5". Null for anything else. "1,000" could mean two things and is not taken.
export function parseNumber(text) {
  const plain = text.trim().replace(/^[\u2212\u2013]/, "-");
  if (/^[-+]?\d{1,3}(,\d{3})+$/.test(plain)) return null;
  if (!/^[-+]?(\d+([.,]\d*)?|[.,]\d+)$/.test(plain)) return null;
  const number = Number(plain.replace(",", "."));
  return Number.isFinite(number) ? number : null;
}

// A date, a date with a time, or a time, as the browser's own fields give it: days since 1970, seconds since then, or seconds
// since midnight. Null for anything else.
export function parseMoment(text, kind) {
  const found = /^(?:(\d{4,6})-(\d\d)-(\d\d))?T?(?:(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,3}))?)?)?$/.exec(text.trim());
  if (!found) return null;
  const [, year, month, day, hour, minute, second = "0", fraction = ""] = found;
  if ((year === undefined) !== (kind === "time") || (hour === undefined) !== (kind === "date")) return null;
  const clock = hour === undefined ? 0 : clockTime(Number(hour), Number(minute), Number(second), Number(fraction.padEnd(3, "0")));
  if (clock === null) return null;
  if (kind === "time") return clock / 1000;
  const midnight = calendarDay(Number(year), Number(month), Number(day));
  if (midnight === null) return null;
  return kind === "date" ? midnight / DAY : (midnight + clock) / 1000;
}

function clockTime(hour, minute, second, thousandth) {
  if (hour > 23 || minute > 59 || second > 59) return null;
  return ((hour * 60 + minute) * 60 + second) * 1000 + thousandth;
}

function calendarDay(year, month, day) {
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day);
  const exists = year >= 1 && year <= 9999 && date.getUTCMonth() === month - 1 && date.getUTCDate() === day;
  return exists ? date.getTime() : null;
}

// The whole number next to x; of two as near, the even one.
function nearestWhole(x) {
  const under = Math.floor(x);
  const rest = x - under;
  if (rest !== 0.5) return rest < 0.5 ? under : under + 1;
  return under % 2 === 0 ? under : under + 1;
}

function tickOf(scale, number) {
  if (scale.ticks === null) return number;
  const { times, over, round } = scale.ticks;
  const near = nearestWhole((number * times) / over);
  return round === "down" && (near * over) / times > number ? near - 1 : near;
}

// The code of a number in a column, or null where it lies outside.
export function codeOf(scale, number) {
  if (!Number.isFinite(number)) return null;
  let tick = tickOf(scale, number);
  if (!Number.isFinite(tick)) return null;
  const { edges, inner } = scale;
  if (edges !== null && edges[0] <= number && number <= edges[1]) tick = Math.min(Math.max(tick, inner[0]), inner[1]);
  for (const [first, last, code] of scale.pieces) {
    if (first <= tick && tick <= last) return code;
  }
  return scale.clip ? nearestCode(scale, tick) : null;
}

// The code of the nearest piece; of two as near, the lower code. Ticks are whole, and their distances exact as such.
function nearestCode(scale, tick) {
  const exact = scale.ticks === null ? (x) => x : BigInt;
  const at = exact(tick);
  let best = null;
  for (const [first, last, code] of scale.pieces) {
    const away = tick < first ? exact(first) - at : at - exact(last);
    if (best === null || away < best.away || (away === best.away && code < best.code)) best = { away, code };
  }
  return best.code;
}

// The smallest and the largest number that a column takes, for hints and for what a refusal says.
export function rangeOf(scale) {
  const number = (tick) => (scale.ticks === null ? tick : (tick * scale.ticks.over) / scale.ticks.times);
  const first = scale.pieces.reduce((least, piece) => Math.min(least, piece[0]), Infinity);
  const last = scale.pieces.reduce((most, piece) => Math.max(most, piece[1]), -Infinity);
  return [number(first), number(last)];
}

// A number of a column as its field writes it.
export function numberText(number, kind) {
  if (kind === "integer" || kind === "decimal") return String(number);
  if (kind === "date") return new Date(number * DAY).toISOString().slice(0, 10);
  const text = new Date(Math.round(number * 1000)).toISOString().replace(/:00\.000Z$|\.000Z$|Z$/, "");
  return kind === "time" ? text.slice(11) : text.slice(0, 10) + "T" + text.slice(11);
}
