// Whether what the server asks is well formed and keeps the promise. Anything else is refused, and nothing is sent.

import { Refused } from "./exchange.js";

const LISTED = ["categorical", "boolean", "ordinal"];
const SCALES = ["integer", "decimal", "date", "datetime", "time"];
const MOST_COLUMNS = 10_000;
const MOST_CODES = 100_000;
const MOST_VALUES = 1_000_000;
const MOST_REPORT = 10_000; // bytes; a body has at most 16,384
const RESOLUTION = 2n ** 63n;
const SLACK = 1e-9; // of rounding in floats, relative to e^epsilon

const isWhole = (x, least, most) => Number.isSafeInteger(x) && x >= least && x <= most;
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const isText = (x, most = 10_000) => typeof x === "string" && x.length <= most;
const isTexts = (x, length) => Array.isArray(x) && x.length === length && x.every((text) => isText(text));
const isObject = (x) => x !== null && typeof x === "object" && !Array.isArray(x);
const isPair = (x) => Array.isArray(x) && x.length === 2 && x.every(isNumber) && x[0] <= x[1];
const largest = (numbers) => numbers.reduce((one, other) => Math.max(one, other));

function need(holds, what) {
  if (!holds) throw new Refused(`This page does not understand what the server sent (${what}), so nothing was sent.`);
}

export function checkStudy(study) {
  need(isObject(study) && study.interface === 1, "the version of the interface");
  need(isText(study.digest) && /^[0-9a-f]{64}$/.test(study.digest), "the study's digest");
  need(isObject(study.facts) && isText(study.facts.study, 100), "the study's facts");
  need(isText(study.title) && typeof study.open === "boolean", "the title");
  need(isNumber(study.epsilon) && study.epsilon > 0, "epsilon");
  need(isObject(study.method) && typeof study.method.for_pages === "boolean", "the method");
  need(Array.isArray(study.in_words) && isTexts(study.in_words, study.in_words.length), "the promise in words");
  const lines = study.guarantee;
  need(Array.isArray(lines) && lines.every((line) => isText(line?.label) && isText(line?.words)), "the guarantee");
  need(Array.isArray(study.columns) && isWhole(study.columns.length, 1, MOST_COLUMNS), "the columns");
  study.columns.forEach(checkColumn);
  return study;
}

// A study that a page can answer.
export function checkAnswerable(study) {
  if (checkStudy(study).method.for_pages) return study;
  throw new Refused("This study's method needs the Python program and cannot be answered in a browser; nothing was sent.");
}

function checkColumn(column) {
  need(isObject(column) && isText(column.name) && column.name !== "", "a column's name");
  const what = `the column ${column.name.slice(0, 40)}`;
  need(isWhole(column.size, 1, MOST_CODES) && isTexts(column.labels, column.size), what);
  need(typeof column.nullable === "boolean", what);
  need(column.nullable ? column.null_code === column.size - 1 : column.null_code === null, what);
  const levels = column.size - (column.nullable ? 1 : 0);
  if (LISTED.includes(column.kind)) need(isTexts(column.categories, levels) && levels > 0, what);
  else need(SCALES.includes(column.kind) && isObject(column.number) && isScale(column.number, levels), what);
}

function isScale(scale, levels) {
  const { ticks, edges, inner, pieces, clip, step } = scale;
  const most = Number.MAX_SAFE_INTEGER;
  const grid =
    ticks === null || (isWhole(ticks?.times, 1, most) && isWhole(ticks.over, 1, most) && ["nearest", "down"].includes(ticks.round));
  const ends = (edges === null && inner === null) || (isPair(edges) && isPair(inner));
  const piece = (one) =>
    Array.isArray(one) && one.length === 3 && isNumber(one[0]) && isNumber(one[1]) && one[0] <= one[1] &&
    isWhole(one[2], 0, levels - 1) && (ticks === null || (Number.isInteger(one[0]) && Number.isInteger(one[1])));
  const whole = Array.isArray(pieces) && isWhole(pieces.length, 1, 4 * MOST_CODES) && pieces.every(piece);
  return grid && ends && whole && typeof clip === "boolean" && isNumber(step) && step >= 0;
}

// The question, or how long to wait for one.
export function checkQuestion(question, study) {
  need(isObject(question), "the question");
  if (question.state === "wait") {
    need(isNumber(question.retry_after) && isText(question.why), "how long to wait");
    return question;
  }
  need(question.state === "ask", "the question's state");
  const most = 2 ** 31 - 1;
  need(isWhole(question.round, 0, most) && isWhole(question.place, 0, most), "the place in the round");
  need(isNumber(question.seconds_left), "how long the place is held");
  need(isWhole(question.cells, 1, MOST_VALUES), "the number of cells");
  need(Array.isArray(question.columns) && isWhole(question.columns.length, 1, study.columns.length), "the asked columns");
  question.columns.forEach((asked) => checkAsked(asked, study));
  need(new Set(question.columns.map((asked) => asked.column)).size === question.columns.length, "a column asked twice");
  const last = question.columns.reduce((sum, asked) => sum + largest(asked.groups) * asked.stride, 0);
  need(last < question.cells, "cells outside the question");
  const combinations = question.columns.reduce((all, asked) => all * asked.labels.length, 1);
  need(combinations === question.cells, "the number of cells");
  checkLaw(question.report);
  const { size } = question.report;
  if (question.values === null) need(size === question.cells, "the number of values");
  else {
    const folded = Array.isArray(question.values) && question.values.length === question.cells;
    need(folded && question.values.every((value) => isWhole(value, 0, size - 1)), "the values of the cells");
  }
  checkPromise(question.report, study.epsilon);
  return question;
}

function checkAsked(asked, study) {
  need(isObject(asked) && isWhole(asked.column, 0, study.columns.length - 1), "an asked column");
  const column = study.columns[asked.column];
  need(asked.name === column.name, "the name of an asked column");
  need(Array.isArray(asked.groups) && asked.groups.length === column.size, "the groups of a column");
  need(Array.isArray(asked.labels) && isWhole(asked.labels.length, 1, column.size), "the groups' labels");
  need(isTexts(asked.labels, asked.labels.length), "the groups' labels");
  need(asked.groups.every((group) => isWhole(group, 0, asked.labels.length - 1)), "the groups of a column");
  need(isWhole(asked.stride, 0, MOST_VALUES), "the stride of a column");
}

function checkLaw(law) {
  need(isObject(law) && isWhole(law.size, 1, MOST_VALUES), "the number of values");
  need(isWhole(law.chosen, 1, Math.max(1, law.size - 1)), "how many values are told");
  need(isText(law.numerator, 19) && /^\d+$/.test(law.numerator), "the probability's numerator");
  need(law.denominator === String(RESOLUTION), "the probability's denominator");
  const numerator = BigInt(law.numerator);
  need(numerator <= RESOLUTION, "a probability above 1");
  need(BigInt(isWhole(law.high, 0, 2 ** 31) ? law.high : -1) === numerator >> 32n, "the probability's upper word");
  need(BigInt(isWhole(law.low, 0, 2 ** 32 - 1) ? law.low : -1) === (numerator & 0xffffffffn), "the probability's lower word");
  const bits = Math.max(1, 32 - Math.clz32(law.size - 1));
  const asBits = law.size <= law.chosen * bits;
  need(law.index_bits === bits && law.encoding === (asBits ? "bits" : "indices"), "how the report is written");
  need(law.bytes === Math.ceil((asBits ? law.size : law.chosen * bits) / 8), "the length of the report");
  need(law.bytes <= MOST_REPORT, "the length of the report");
}

// How much likelier a report is from one person than from another, at most.
export function worstRatio(law) {
  if (law.size === 1) return 1;
  const numerator = BigInt(law.numerator);
  const odds = Number(numerator) / Number(RESOLUTION - numerator);
  const ratio = (odds * (law.size - law.chosen)) / law.chosen;
  return Math.max(ratio, 1 / ratio);
}

// The promise: no report is more than e^epsilon times as likely from one record as from another.
function checkPromise(law, epsilon) {
  if (worstRatio(law) <= Math.exp(epsilon) * (1 + SLACK) && Number.isFinite(worstRatio(law))) return;
  throw new Refused("The server's question does not keep the promise made above, so nothing was sent.");
}

// The probability that the own value is in the report, and that any other one is: for words and pictures, not for drawing.
export function probabilities(law) {
  if (law.size === 1) return { own: 1, other: 0 };
  const own = Number(BigInt(law.numerator)) / Number(RESOLUTION);
  return { own, other: (own * (law.chosen - 1) + (1 - own) * law.chosen) / (law.size - 1) };
}

export function checkInvitation(document) {
  need(isObject(document) && isText(document.invitation) && /^[A-Za-z0-9_-]{22}$/.test(document.invitation), "the invitation");
  return document.invitation;
}
