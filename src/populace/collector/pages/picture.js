// What leaves the device, in words and as a drawing.

import { make } from "./dom.js";
import { probabilities, worstRatio } from "./check.js";
import { capital, columnName, count, factor, groupText, listed, percent } from "./words.js";

const MOST_NAMED = 12; // values that are drawn with their names
const MOST_DRAWN = 1_024; // values that are drawn at all
const MOST_LISTED = 6; // told values that are named one by one

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
  const names = new Array(size).fill("");
  const walk = (at, cell, parts) => {
    if (at === question.columns.length) {
      names[cell] = parts.join(" · ");
      return;
    }
    const asked = question.columns[at];
    const column = study.columns[asked.column];
    asked.labels.forEach((_, group) => walk(at + 1, cell + group * asked.stride, [...parts, part(question, column, asked, group)]));
  };
  walk(0, 0, []);
  return names;
}

// "boat no" where the question is about several columns: "no" alone would say too little.
function part(question, column, asked, group) {
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
  const folded = question.values !== null;
  const what = valuesName(question);
  const kinds = folded
    ? `Your answers are one of ${count(question.cells)} combinations, sorted into ${count(law.size)} boxes by a fixed public rule.`
    : `There are ${count(law.size)} possible ${what} here, and ${question.columns.length > 1 ? "your answers together are" : "your answer is"} one of them.`;
  const sends =
    law.chosen === 1
      ? `Of these ${count(law.size)} ${what} your device sends one. It is yours with probability ${percent(own)}, and each other one with ${percent(other)}.`
      : `Of these ${count(law.size)} ${what} your device sends a set of ${count(law.chosen)}. Yours is in it with probability ${percent(own)}, each other one with ${percent(other)}.`;
  return [kinds, sends];
}

export function promiseInWords(question) {
  if (question.report.size === 1) return "";
  return (
    "Whoever receives this cannot tell whether yours is in it. The very same could have come from somebody with any other " +
    `answers, at most ${factor(worstRatio(question.report))} times less often. That is the promise, and it is all there is to learn.`
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
  return make("div", { class: named ? "cells named" : "cells", role: "img", "aria-label": words }, ...cells);
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
  return told.length <= MOST_LISTED + 1 ? told : [...told.slice(0, MOST_LISTED), `and ${count(told.length - MOST_LISTED)} more`];
}

export function drawTold(told) {
  return make("ul", { class: "sent" }, ...told.map((name) => make("li", { class: "chip told" }, name)));
}
