// The page of a person who answers: what is promised, the questions, what would be sent, the receipt.
//
// The order of things is that of docs/collector-api.md. The report is drawn when the person presses Send, not before: what is
// shown until then are examples. Whoever saw the draw first could decide by it, and the promise would not hold any more.

import { checkAnswerable, checkInvitation, checkQuestion } from "./check.js";
import { byId, make } from "./dom.js";
import { Refused, Unreachable, ask, get, patiently, pause, sentenceOf } from "./exchange.js";
import { makeField } from "./form.js";
import * as ledger from "./ledger.js";
import * as picture from "./picture.js";
import { base64, drawSet, encodeSet, makeNonce } from "./sampler.js";
import { capital, columnName, duration, listed, someOf } from "./words.js";

const STEPS = ["welcome", "questions", "preview", "done"];
const at = { step: "", study: null, invitation: null, question: null, fields: [], codes: [], ended: false };

// Show one step and put the focus on its heading, so that a screen reader begins there.
function show(step) {
  at.step = step;
  for (const name of STEPS) byId(name).hidden = name !== step;
  const heading = step && byId(step).querySelector("h1, h2");
  if (heading && step !== "welcome") heading.focus();
  if (step) scrollTo(0, 0);
}

// One sentence for the person. `kind` is "wait", "alarm" or "" for nothing to say.
function tell(sentence, { kind = "wait", again = false } = {}) {
  byId("notice-text").textContent = sentence;
  byId("notice").className = sentence ? kind : "";
  byId("again").hidden = !again;
}

function tellWaiting(error, seconds) {
  tell(`${error.message} This page tries again in ${duration(seconds)}.`, { again: true });
}

const persist = (attempt, say = tellWaiting) => patiently(attempt, say, byId("again"));

// Whatever goes wrong for good ends here, in one sentence.
function refuse(error) {
  at.ended = true;
  const words = error instanceof Refused ? error.message : "Something went wrong in this page, and nothing more is sent.";
  show("");
  tell(words, { kind: "alarm" });
  byId("notice").focus();
}

// Run what a button starts, once at a time.
function pressed(id, action) {
  const button = byId(id);
  button.addEventListener("click", async (event) => {
    event.preventDefault();
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    await action().catch(refuse);
    button.removeAttribute("aria-disabled");
  });
}

async function open() {
  ledger.requireLedger();
  at.invitation = ledger.takeInvitation();
  const unsent = ledger.entries().find((entry) => entry.state === "kept");
  if (unsent) return deliver(unsent);
  at.study = checkAnswerable(await persist(() => get("v1/study"), tellNoStudy));
  const before = ledger.entryOf(at.study.digest);
  if (before) return showEntry(before);
  if (!at.study.open && at.invitation === null) {
    throw new Refused("This study is for people who were invited; please use the whole link that you were sent.");
  }
  showWelcome();
}

// Offline, a receipt from before can still be shown.
function tellNoStudy(error, seconds) {
  const before = ledger.entries().find((entry) => entry.state === "received");
  if (before && at.step === "") showDone(before, null);
  tellWaiting(error, seconds);
}

function showWelcome() {
  const { study } = at;
  const title = study.title || "A few questions";
  document.title = title;
  byId("title").textContent = title;
  const names = study.columns.map((column) => columnName(column.name));
  byId("topics").textContent = someOf(names, 12);
  const [first = "", ...rest] = study.in_words;
  byId("promise-first").textContent = first;
  byId("promise-rest").replaceChildren(...rest.map((sentence) => make("li", {}, sentence)));
  byId("guarantee").replaceChildren(
    ...study.guarantee.flatMap(({ label, words }) => [make("dt", {}, capital(label)), make("dd", {}, words)]),
  );
  tell("");
  show("welcome");
}

const MARGIN = 2; // seconds before a place is lost in which no report is made any more

// A place and its question, with the time when it is lost by this device's clock; waits where the server says so.
async function fetchQuestion() {
  for (;;) {
    const question = checkQuestion(await persist(askQuestion), at.study);
    const isAsked = question.state === "ask";
    if (isAsked && question.seconds_left > MARGIN) {
      return { ...question, lost: Date.now() + 1000 * (question.seconds_left - MARGIN) };
    }
    const why = isAsked ? "the round is about to end" : question.why;
    const seconds = isAsked ? 1 : Math.min(3600, Math.max(1, question.retry_after));
    tell(`${sentenceOf({ error: why })} This page looks again in ${duration(seconds)}.`);
    await pause(seconds, null);
  }
}

async function askQuestion() {
  const fetchOne = async () => checkInvitation(await get("v1/invitation", { method: "POST" }));
  const isKept = at.invitation !== null;
  at.invitation = await ledger.invitationOr(fetchOne);
  try {
    return await get("v1/question", { bearer: at.invitation });
  } catch (error) {
    if (error.status !== 401 && error.status !== 403) throw error;
    ledger.forgetInvitation(); // one of a study that was here before
    at.invitation = null;
    if (isKept && at.study.open) return askQuestion();
    throw error;
  }
}

async function begin() {
  tell("Asking for your questions …");
  showQuestions(await fetchQuestion());
}

function showQuestions(question) {
  at.question = question;
  const columns = question.columns.map((asked) => at.study.columns[asked.column]);
  byId("asked").textContent = listed(columns.map((column) => columnName(column.name)));
  at.fields = columns.map(makeField);
  byId("fields").replaceChildren(...at.fields.map((field) => field.element));
  tell("");
  show("questions");
}

async function review() {
  const codes = at.fields.map((field) => field.read());
  const wrong = codes.indexOf(null);
  if (wrong >= 0) {
    at.fields[wrong].first.focus();
    return;
  }
  at.codes = codes;
  byId("own").replaceChildren(...picture.ownText(at.question, at.study, codes).map((text) => make("li", {}, text)));
  byId("law").replaceChildren(...picture.lawInWords(at.question).map((text) => make("p", {}, text)));
  byId("cannot-tell").textContent = picture.promiseInWords(at.question);
  await drawExample();
  show("preview");
}

// An example of what could leave. It is drawn in the same way, shown, and forgotten.
async function drawExample() {
  const { question } = at;
  const own = picture.valueOf(question, at.codes);
  const set = drawSet(question.report, own);
  const names = picture.namesOf(question, at.study);
  byId("drawing").replaceChildren(picture.drawValues(question, names, own, set));
  byId("example").replaceChildren(picture.drawTold(picture.toldNames(question, names, set)));
  const inIt = set.includes(own) ? "In this example yours is in it." : "In this example yours is not in it.";
  byId("example-words").textContent = question.report.size > 1 ? inIt : "";
}


// Draw the report, write it down, send it: in this order, and the first two once.
async function send() {
  let { question } = at;
  if (Date.now() > question.lost) {
    const fresh = await fetchQuestion();
    if (!isSame(fresh, question)) {
      showQuestions(fresh);
      tell("Your time for the question before was over, so here is another one; nothing was sent.");
      return;
    }
    question = fresh;
  }
  deliver(await ledger.once(at.study.digest, () => makeEntry(question))).catch(refuse);
}

function isSame(one, other) {
  const what = ({ columns, cells, values, report }) => JSON.stringify([columns, cells, values, report]);
  return what(one) === what(other);
}

function makeEntry(question) {
  const set = drawSet(question.report, picture.valueOf(question, at.codes));
  const { round, place } = question;
  const body = JSON.stringify({ round, place, report: base64(encodeSet(question.report, set)), nonce: base64(makeNonce()) });
  const told = picture.toldNames(question, picture.namesOf(question, at.study), set);
  at.codes = [];
  return { study: at.study.facts.study, invitation: at.invitation, body, told };
}

// Send what is kept until the server has it, or refuses it for good.
async function deliver(entry) {
  at.ended = true;
  show("");
  byId("fields").replaceChildren(); // what was typed is of no more use
  if (entry.state !== "kept") return showEntry(entry);
  tell("Sending …");
  const outcome = await persist(() => deliverOnce(entry), tellKept);
  const settled = ledger.settle(entry, outcome);
  return settled.state === "received" ? showDone(settled, entry.told) : showEntry(settled);
}

// Only the study's own word is a refusal: a status of these, with a sentence. Everything else is a proxy's, or a login page's.
const REFUSALS = [400, 401, 403, 409, 410, 413, 415, 422];
const ELSE = "What answers is not the study; something between this device and the server may be in the way.";

async function deliverOnce(entry) {
  const { status, document } = await ask("v1/answer", { method: "POST", bearer: entry.invitation, body: entry.body });
  if (status !== 200) {
    const sentence = sentenceOf(document);
    if (!REFUSALS.includes(status) || !sentence) throw new Unreachable(ELSE);
    return { state: "refused", sentence };
  }
  if (document?.receipt !== (await ledger.receiptOf(entry))) {
    throw new Unreachable("The server's receipt is not that of your answer, so it may not have arrived.");
  }
  return { state: "received", receipt: document.receipt };
}

function tellKept(error, seconds) {
  const kept = "Your answer is kept on this device, and the same one is sent when it can be.";
  const later = "You may close this page and open it again later.";
  tellWaiting(new Unreachable(`${error.message} ${kept} ${later}`), seconds);
}

// What became of an answer that was given before.
function showEntry(entry) {
  at.ended = true;
  if (entry.state === "kept") return deliver(entry);
  if (entry.state === "received") {
    showDone(entry, null);
    return tell("This device has already answered this study, and nobody is asked twice.");
  }
  show("");
  tell(`Your answer was not counted, and no second one is made. ${entry.sentence}`, { kind: "alarm" });
  return byId("notice").focus();
}

function showDone(entry, told) {
  byId("receipt").textContent = entry.receipt.replace(/(.{8})(?=.)/g, "$1 ");
  const left = told ? [make("p", {}, "This, and nothing else, has left your device:"), picture.drawTold(told)] : [];
  byId("left").replaceChildren(...left);
  tell("");
  show("done");
}

pressed("begin", begin);
pressed("review", review);
pressed("another", drawExample);
pressed("change", async () => show("questions"));
pressed("send", send);
// Another tab may have answered in the meantime.
addEventListener("storage", ({ key }) => {
  if (at.study && !at.ended && ledger.isEntryKey(key, at.study.digest)) showEntry(ledger.entryOf(at.study.digest));
});
// Another link was put into the address bar of this tab.
addEventListener("hashchange", () => {
  if (location.hash) location.reload();
});
navigator.serviceWorker?.register("service.js").catch(() => {}); // without it the page needs a connection to open
open().catch(refuse);
