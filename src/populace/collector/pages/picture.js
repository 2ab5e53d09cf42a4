// What leaves the device, in words and as a drawing.

import { make } from "./dom.js";
import { probabilities, worstRatio } from "./check.js";
import { capital, columnName, count, factor, groupText, listed, percent } from "./words.js";

const MOST_NAMED = 12; // values that are drawn with their names
const MANY = 60; // values from which on they are drawn small
const MOST_DRAWN = 1_024; // values that are drawn at all
const MOST_LISTED = 6; // told values that are named one by one,
const MOST_LETTERS = 240; // as long as that does not get too long to be read

// The cell of a record, from its codes in the order of the asked columns.
export function cellOf(question, codes) {
  return question.columns.reduce((sum, asked, at) => sum + asked.groups[codes[at]] * asked.stride, 0);
}

export function valueOf(question, codes) {
  const cell = cellOf(question, codes);
  return question.values === null ? cell : question.values[cell];
}

// What the person told, as the question sees it: the group of each answer.
export function ownText(question, study, codes) {
  return question.columns.map((asked, at) => {
    const column = study.columns[asked.column];
    return `${columnName(column.name)}: ${groupText(column, asked, asked.groups[codes[at]])}`;
  });
}

// A name for each value; empty where values are boxes that many combinations share, or too many to be named.
export function namesOf(question, study) {
  const { size } = question.report;
  if (question.values !== null || size > MOST_DRAWN) return [];
  const texts = question.columns.map((asked) => asked.labels.map((_, group) => part(question, study, asked, group)));
  const names = new Array(size).fill("");
  const walk = (at, cell, parts) => {
    if (at === texts.length) names[cell] = parts.join(" · ");
    else texts[at].forEach((text, group) => walk(at + 1, cell + group * question.columns[at].stride, [...parts, text]));
  };
  walk(0, 0, []);
  return names;
}

// "boat no" where the question is about several columns: "no" alone would say too little.
function part(question, study, asked, group) {
  const column = study.columns[asked.column];
  const text = groupText(column, asked, group);
  return question.columns.length > 1 ? `${columnName(column.name)} ${text}` : text;
}

function valuesName(question) {
  if (question.values !== null) return "boxes";
  return question.columns.length > 1 ? "combinations" : "values";
}

// The sentences above the drawing.
export function lawInWords(question) {
  const law = question.report;
  if (law.size === 1) return ["There is only one possible value here, so nothing about you is told."];
  const { own, other } = probabilities(law);
  const [all, what] = [count(law.size), valuesName(question)];
  const yours = question.columns.length > 1 ? "your answers together are" : "your answer is";
  const kinds =
    question.values === null
      ? `There are ${all} possible ${what} here, and ${yours} one of them.`
      : `Your answers are one of ${count(question.cells)} combinations, sorted into ${all} boxes by a fixed public rule.`;
  const sends = `Of these ${all} ${what} your device sends ${law.chosen === 1 ? "one" : `a set of ${count(law.chosen)}`}.`;
  const odds =
    law.chosen === 1
      ? `It is yours with probability ${percent(own)}, and each other one with ${percent(other)}.`
      : `Yours is in it with probability ${percent(own)}, each other one with ${percent(other)}.`;
  return [kinds, `${sends} ${odds}`];
}

export function promiseInWords(question) {
  if (question.report.size === 1) return "";
  return (
    "Whoever receives this cannot be sure that yours is in it: the very same could have come from somebody with any other " +
    `answers, at most ${factor(worstRatio(question.report))} times less often. That is the promise.`
  );
}

// The drawing: all values, the own one outlined, those of an example filled.
export function drawValues(question, names, own, set) {
  const { size } = question.report;
  if (size > MOST_DRAWN) return make("p", { class: "hint" }, `${count(size)} are too many to draw.`);
  const told = new Set(set);
  const named = size <= MOST_NAMED && names.length === size;
  const cells = [];
  for (let value = 0; value < size; value += 1) {
    const kinds = [named ? "chip" : "dot", told.has(value) ? "told" : "", value === own ? "own" : ""];
    cells.push(make("span", { class: kinds.filter(Boolean).join(" ") }, named ? names[value] : ""));
  }
  const inIt = told.has(own) ? "yours is in it" : "yours is not in it";
  const words = `An example by chance: ${count(set.length)} of ${count(size)} are sent, ${inIt}.`;
  const kind = named ? "cells named" : size > MANY ? "cells many" : "cells";
  return make("div", { class: kind, role: "img", "aria-label": words }, ...cells);
}

// The told values by name, for "what leaves".
export function toldNames(question, names, set) {
  if (names.length === 0) {
    const what = valuesName(question);
    const numbers = set.slice(0, MOST_LISTED).map((value) => count(value + 1));
    const rest = set.length - numbers.length;
    return [`${capital(what)} number ${rest > 0 ? `${numbers.join(", ")} and ${count(rest)} more` : listed(numbers)}`];
  }
  const told = set.map((value) => names[value]);
  let shown = 0;
  for (let letters = 0; shown < told.length && shown <= MOST_LISTED; shown += 1) {
    letters += told[shown].length;
    if (shown > 0 && letters > MOST_LETTERS) break;
  }
  const rest = told.length - shown;
  return rest === 0 ? told : [...told.slice(0, shown), `and ${count(rest)} more`];
}

export function drawTold(told) {
  return make("ul", { class: "sent" }, ...told.map((name) => make("li", { class: "chip told" }, name)));
}
