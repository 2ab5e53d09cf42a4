// Names, labels and figures as people read them.

const YES_NO = { false: "no", true: "yes", 0: "no", 1: "yes" };

// "years_in_town" is "years in town".
export function columnName(name) {
  return name.replace(/[_]+/g, " ").trim() || name;
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function listed(names, last = "and") {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} ${last} ${names.at(-1)}`;
}

// At most so many names, then how many more there are.
export function someOf(names, most) {
  return names.length <= most + 1 ? listed(names) : `${names.slice(0, most).join(", ")} and ${names.length - most} more`;
}

// A category as it stands in the form.
export function categoryText(column, category) {
  return (column.kind === "boolean" && YES_NO[category]) || category;
}

const INTERVAL = /^\[(.+), (.+)([)\]])$/;

// The label of a group of codes: "[16, 25)" is "16 to 24" where numbers are whole, else "16 to under 25".
export function groupText(column, asked, group) {
  const codes = asked.groups.flatMap((each, code) => (each === group && code !== column.null_code ? [code] : []));
  const isSilent = column.null_code !== null && asked.groups[column.null_code] === group;
  if (codes.length === 0) return isSilent ? "no answer" : asked.labels[group];
  const text = valuesText(column, asked.labels[group], codes);
  return isSilent ? `${text} or no answer` : text;
}

function valuesText(column, label, codes) {
  if (column.number) return intervalText(column, column.labels[codes[0]], column.labels[codes.at(-1)]);
  return codes.length === 1 ? categoryText(column, column.labels[codes[0]]) : label;
}

// "2024-01-01T10:30:00" is "2024-01-01 10:30".
export function momentText(text, kind) {
  return kind === "datetime" || kind === "time" ? text.replace("T", " ").replace(/(\d\d:\d\d):00$/, "$1") : text;
}

export function intervalText(column, first, last) {
  const low = INTERVAL.exec(first)?.[1] ?? first;
  const [, , high = last, bracket = "]"] = INTERVAL.exec(last) ?? [];
  const whole = column.kind === "integer" && column.number.step === 1;
  const shown = (text) => momentText(text, column.kind);
  if (bracket === "]") return low === high ? shown(low) : `${shown(low)} to ${shown(high)}`;
  if (!whole) return `${shown(low)} to under ${shown(high)}`;
  return Number(low) === Number(high) - 1 ? low : `${low} to ${Number(high) - 1}`;
}

// The label of a group where only its text is at hand: "[16, 25) to [35, 45)" is "16 to 44".
export function labelText(column, label) {
  if (!column?.number) return column ? categoryText(column, label) : label;
  if (column.null_code !== null && label === column.labels[column.null_code]) return "no answer";
  const parts = label.split(" to ");
  return intervalText(column, parts[0], parts.at(-1));
}

// A probability in per cent; never "0 %" or "100 %" of what can happen, or fail to.
export function percent(share) {
  const whole = Math.round(share * 100);
  if (share > 0 && share < 1 && (whole === 0 || whole === 100)) return share < 0.5 ? "less than 1\u00a0%" : "more than 99\u00a0%";
  return `${whole}\u00a0%`;
}

// A factor, rounded up: what is promised is at most this.
export function factor(number) {
  if (number >= 100) return Math.ceil(number).toLocaleString("en");
  return (Math.ceil(number * 10 - 1e-6) / 10).toLocaleString("en");
}

export function count(number) {
  return number.toLocaleString("en");
}

// How long: "1 second", "40 seconds", "5 minutes".
export function duration(seconds) {
  const [number, unit] = seconds >= 90 ? [Math.round(seconds / 60), "minute"] : [Math.round(seconds), "second"];
  return `${number} ${unit}${number === 1 ? "" : "s"}`;
}

export function clock(date) {
  return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
