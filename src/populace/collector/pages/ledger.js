// The device's ledger: what was drawn for which study, written down before it is sent. One study, one answer.
//
// An entry: { digest, study, base, invitation, state, body, told } and later { receipt } or { sentence }. `state` is "kept" (drawn,
// to be sent), "received" or "refused". What was typed is never in it; body, nonce and told values go when the receipt comes.

import { Refused } from "./exchange.js";

const ANSWER = "populace answer ";
const INVITATION = "populace invitation ";
const NO_STORAGE =
  "This browser does not let the page keep anything, so it could not make sure that you answer only once; nothing was sent. " +
  "Allow site data for this page, or leave private browsing, and open the link again.";
const TOO_OLD = "This browser is too old for this page, which cannot keep its promise here; nothing was sent.";
const UNSAFE =
  "This page came over a connection that others can change, so it cannot promise anything; nothing was sent. Ask for a link that " +
  "begins with https.";

// Where this page lives; studies on one site are told apart by it.
export const base = new URL(".", location.href).pathname;

// Refuse a browser in which a second answer could not be prevented.
export function requireLedger() {
  if (!isSecureContext) throw new Refused(UNSAFE);
  if (!navigator.locks || !crypto.subtle || !AbortSignal.timeout) throw new Refused(TOO_OLD);
  write("populace probe", "1");
  localStorage.removeItem("populace probe");
}

// Write and read again: no ledger, no answer.
function write(key, text) {
  let kept = null;
  try {
    localStorage.setItem(key, text);
    kept = localStorage.getItem(key);
  } catch {
    // The sentence below says it.
  }
  if (kept !== text) throw new Refused(NO_STORAGE);
}

// Whatever stands under a study's key means that it was answered, readable or not.
function read(key) {
  const text = localStorage.getItem(key);
  if (text === null) return null;
  try {
    const entry = JSON.parse(text);
    if (entry && typeof entry === "object" && ["kept", "received", "refused"].includes(entry.state)) return entry;
  } catch {
    // The entry below says it.
  }
  return { digest: key.slice(ANSWER.length), base, state: "refused", sentence: "What was kept about the answer is damaged." };
}

export function entryOf(digest) {
  return read(ANSWER + digest);
}

// All entries that were made by the page at this address.
export function entries() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(ANSWER));
  return keys.map(read).filter((entry) => entry !== null && entry.base === base);
}

export function isEntryKey(key, digest) {
  return key === ANSWER + digest;
}

// The entry of this study; `make` makes it if there is none. A lock that all tabs share makes sure that only one of them does.
export async function once(digest, make) {
  return navigator.locks.request(ANSWER + digest, () => {
    const before = entryOf(digest);
    if (before !== null) return before;
    const entry = { digest, base, state: "kept", ...make() };
    write(ANSWER + digest, JSON.stringify(entry));
    forgetInvitation();
    return entry;
  });
}

// What became of an answer; the nonce and the report are of no more use, and go. Where it cannot be written, the entry stays
// as it is: the same answer is sent again next time, and gets the same receipt.
export function settle(entry, outcome) {
  const { body, told, ...rest } = entry;
  const settled = { ...rest, ...outcome };
  try {
    localStorage.setItem(ANSWER + entry.digest, JSON.stringify(settled));
  } catch {
    // See above.
  }
  return settled;
}

// The invitation in the address, taken out of it: not for the history, nor for whoever looks over a shoulder. Kept until used.
export function takeInvitation() {
  const text = location.hash.slice(1);
  if (text !== "") history.replaceState(null, "", location.pathname + location.search);
  if (text !== "" && !/^[A-Za-z0-9_-]{22}$/.test(text)) {
    throw new Refused("This link is not complete; copy the whole of it, with everything that follows the # sign.");
  }
  if (text !== "") write(INVITATION + base, text);
  return localStorage.getItem(INVITATION + base);
}

// The invitation that is kept, or a new one; tabs that are open at once share it.
export async function invitationOr(fetchOne) {
  return navigator.locks.request(INVITATION + base, async () => {
    const kept = localStorage.getItem(INVITATION + base);
    if (kept !== null) return kept;
    const fresh = await fetchOne();
    write(INVITATION + base, fresh);
    return fresh;
  });
}

export function forgetInvitation() {
  localStorage.removeItem(INVITATION + base);
}

// The receipt as the device makes it itself, to compare with the server's.
export async function receiptOf(entry) {
  const { round, place, report, nonce } = JSON.parse(entry.body);
  const head = new TextEncoder().encode(`populace receipt\0${entry.study}\0${round}\0${place}\0`);
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const whole = new Uint8Array([...head, ...bytes(nonce), ...bytes(report)]);
  const digest = await crypto.subtle.digest("SHA-256", whole);
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
