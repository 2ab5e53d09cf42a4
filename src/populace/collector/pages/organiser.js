// The organiser's page: how many answers there are, and what they say about single columns. There is no row to be shown.

import { checkStudy } from "./check.js";
import { byId, make, makeSvg } from "./dom.js";
import { Refused, Unreachable, get } from "./exchange.js";
import { clock, columnName, count, labelText } from "./words.js";

const SECONDS = 5;
const TOKEN = "populace organiser";
const MOST_SHOWN = 20; // shares of a column; the others open on demand
const cards = new Map();
let token = recall();
let timer = 0;
let asking = null;
let form = null; // the columns as the study declares them, for readable labels

function recall() {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return null; // then it is typed in again after a reload
  }
}

function remember(text) {
  token = text;
  try {
    if (text === null) sessionStorage.removeItem(TOKEN);
    else sessionStorage.setItem(TOKEN, text);
  } catch {
    // It lives as long as the page.
  }
}

function tell(sentence, kind = "alarm") {
  if (byId("notice-text").textContent !== sentence) byId("notice-text").textContent = sentence;
  byId("notice").className = sentence ? kind : "";
}

function showEntrance(problem) {
  byId("study").hidden = true;
  byId("enter").hidden = false;
  byId("token-problem").textContent = problem;
  if (problem) byId("token").setAttribute("aria-invalid", "true");
  else byId("token").removeAttribute("aria-invalid");
  byId("token").focus();
}

// Ask once, then again after a while, as long as somebody looks. An answer that a later question has overtaken is dropped.
async function refresh() {
  clearTimeout(timer);
  if (token === null || document.hidden) return;
  const mine = (asking = {});
  try {
    form ??= checkStudy(await get("v1/study")).columns;
    const found = checkProgress(await get(`v1/progress?error=${byId("error").value}`, { bearer: token }));
    if (asking !== mine) return;
    tell("");
    render(found);
  } catch (error) {
    if (asking !== mine) return;
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      remember(null);
      return showEntrance(error.message);
    }
    const known = error instanceof Refused || error instanceof Unreachable;
    const why = known ? error.message : "This page failed to show what came.";
    tell(`${why} What is shown is from before; it is tried again every ${SECONDS} seconds.`);
  }
  timer = setTimeout(refresh, SECONDS * 1000);
}

const isCount = (x) => Number.isSafeInteger(x) && x >= 0;
const isNumbers = (x, length) => Array.isArray(x) && x.length === length && x.every((each) => Number.isFinite(each));

function checkProgress(found) {
  const column = (one) =>
    typeof one?.name === "string" && Array.isArray(one.labels) && isNumbers(one.shares, one.labels.length) &&
    isNumbers(one.half_widths, one.labels.length) && isCount(one.answers);
  const counts = [found?.answers, found?.planned_answers, found?.invitations].every(isCount);
  const lists = [found?.rounds, found?.in_words, found?.columns].every(Array.isArray);
  if (!counts || !lists || !found.columns.every(column)) throw new Refused("The server sent something that this page does not understand.");
  return found;
}

function render(found) {
  byId("enter").hidden = true;
  byId("study").hidden = false;
  const title = found.title || "The study";
  document.title = `${count(found.answers)} answers: ${title}`;
  byId("title").textContent = title;
  byId("refreshed").textContent = `Last refreshed at ${clock(new Date())}.`;
  byId("state").textContent = found.state === "closed" ? "The study is closed." : "The study is open for answers.";
  renderTiles(found);
  renderColumns(found.columns);
  const rows = found.rounds.map(roundRow);
  byId("rounds").querySelector("tbody").replaceChildren(...rows);
  byId("epsilon").textContent = String(found.epsilon);
  byId("words").replaceChildren(...found.in_words.map((sentence) => make("li", {}, String(sentence))));
}

function renderTiles(found) {
  byId("answers").textContent = count(found.answers);
  byId("planned").textContent = `of ${count(found.planned_answers)} planned`;
  byId("progress").max = Math.max(1, found.planned_answers);
  byId("progress").value = Math.min(found.answers, found.planned_answers);
  const known = isCount(found.answers_needed);
  byId("enough").textContent = !known ? "Not known yet" : found.enough ? "Yes" : "Not yet";
  byId("enough").classList.toggle("good", found.enough === true);
  const points = Math.round(found.wanted_error * 100);
  const target = `for every share to be within ± ${points} ${points === 1 ? "point" : "points"}, 95 % of the time`;
  byId("needed").textContent = known
    ? `About ${count(found.answers_needed)} answers are needed ${target}.`
    : "It shows when the first answers are in.";
  byId("invitations").textContent = count(found.invitations);
  byId("invitations-words").textContent = found.open_to_all
    ? "given to those who opened the page; anybody may answer, and often"
    : "made so far; each answers once";
}

const STATES = { open: "open", sealed: "being counted", absorbed: "counted" };

function roundRow(round) {
  const closes = Number.isFinite(round.closes) ? new Date(round.closes * 1000).toLocaleString() : "when it is full";
  const waiting = Math.max(0, round.taken - round.answered);
  const numbers = [round.answered, waiting, round.places].map(count);
  const cells = [STATES[round.state] ?? String(round.state), ...numbers, round.state === "open" ? closes : "–"];
  const name = `${count(round.round + 1)}${round.last ? ", the last" : ""}`;
  return make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((text) => make("td", {}, text)));
}

// A card for each column, made once and filled again, so that what is open stays open.
function renderColumns(columns) {
  columns.forEach((column, index) => {
    if (!cards.has(index)) {
      const card = makeCard(column.name);
      cards.set(index, card);
      byId("columns").append(card.element);
    }
    cards.get(index).show(column, form[index]?.name === column.name ? form[index] : null);
  });
}

function makeCard(name) {
  const title = (text, kind = null) => make("th", { scope: "col", class: kind }, text);
  const head = () => make("thead", {}, make("tr", {}, title("Value"), title("Share"), title("± for 95\u00a0%", "number")));
  const words = make("p", { class: "hint" });
  const bodies = [make("tbody"), make("tbody")];
  const shown = columnName(name);
  const table = (body) => make("table", { class: "estimates", "aria-label": `Shares of ${shown}` }, head(), body);
  const [first, rest] = bodies.map(table);
  const more = make("details", { hidden: true }, make("summary", {}, "All values"), rest);
  const element = make("section", { class: "card", "aria-label": shown }, make("h3", {}, shown), words, first, more);
  const show = (column, declared) => {
    const none = column.labels.length === 0;
    first.hidden = none;
    words.textContent = none ? "Nothing is known about it yet." : sayColumn(column);
    const rows = rowsOf(column, declared);
    bodies[0].replaceChildren(...rows.slice(0, MOST_SHOWN));
    bodies[1].replaceChildren(...rows.slice(MOST_SHOWN));
    more.hidden = rows.length <= MOST_SHOWN;
    more.firstChild.textContent = `${count(rows.length - MOST_SHOWN)} more values`;
  };
  return { element, show };
}

function sayColumn(column) {
  const told = `${count(column.answers)} ${column.answers === 1 ? "answer tells" : "answers tell"} about it`;
  if (!isCount(column.answers_needed)) return `${told}.`;
  return `${told}; about ${count(column.answers_needed)} answers in all are needed for the wanted error.`;
}

function rowsOf(column, declared) {
  const ends = column.shares.map((share, i) => share + column.half_widths[i]);
  const most = Math.min(1, Math.max(0.1, ...ends.slice(0, 10_000)));
  return column.labels.map((label, i) => {
    const [share, half] = [column.shares[i], column.half_widths[i]];
    const words = `${points(share)} % ± ${points(half)}`;
    return make(
      "tr", {},
      make("th", { scope: "row" }, labelText(declared, String(label))),
      make("td", { class: "chart" }, drawShare(share, half, most)),
      make("td", { class: "number" }, words),
    );
  });
}

// A number of points, with a decimal where it matters.
function points(share) {
  const value = share * 100;
  return (Math.abs(value) < 9.95 ? value.toFixed(1) : value.toFixed(0)).replace("-", "\u2212");
}

// A bar with a whisker on a scale from 0 to `most`; a whisker that goes on beyond the scale has no end there. The figures beside
// it say the same.
function drawShare(share, half, most) {
  const place = (x) => `${(100 * Math.min(Math.max(x / most, 0), 1)).toFixed(2)}%`;
  const line = (x1, x2, y1, y2, kind) => makeSvg("line", { x1, x2, y1, y2, class: kind });
  const ends = [share - half, share + half].filter((x) => x >= 0 && x <= most);
  return makeSvg(
    "svg", { "aria-hidden": "true", focusable: "false" },
    makeSvg("rect", { x: 0, y: "20%", width: place(share), height: "60%", class: "bar" }),
    line("0", "0", "0", "100%", "axis"),
    line(place(share - half), place(share + half), "50%", "50%", "whisker"),
    ...ends.map((end) => line(place(end), place(end), "25%", "75%", "whisker")),
  );
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("token").value.trim();
  if (!/^[\x21-\x7e]{1,200}$/.test(text)) return showEntrance("Please enter the token as it was printed, without spaces.");
  remember(text);
  byId("token").value = "";
  byId("token-problem").textContent = "";
  return refresh();
});
byId("error").addEventListener("change", refresh);
byId("refresh").addEventListener("click", refresh);
byId("leave").addEventListener("click", () => {
  remember(null);
  asking = null;
  clearTimeout(timer);
  showEntrance("");
});
document.addEventListener("visibilitychange", refresh);
addEventListener("online", refresh);
if (token === null) showEntrance("");
else refresh();
