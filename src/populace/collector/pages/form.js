// The fields of the asked columns: drawn as the browser's own controls, read back as codes.

import { make } from "./dom.js";
import { capital, categoryText, columnName, momentText } from "./words.js";
import { codeOf, numberText, parseMoment, parseNumber, rangeOf } from "./values.js";

const FEW = 8; // so many choices are all shown; a longer list opens
const NOT_SAID = "Prefer not to say";
const TYPES = { integer: "text", decimal: "text", date: "date", datetime: "datetime-local", time: "time" };

// One field for a column: { element, read }. `read` gives the code, or null after saying at the field what is missing.
export function makeField(column, number) {
  const id = `field-${number}`;
  if (column.number) return scaleField(column, id);
  return column.size <= FEW ? choiceField(column, id) : listField(column, id);
}

function choicesOf(column) {
  const choices = column.categories.map((category, code) => [code, capital(categoryText(column, category))]);
  return column.nullable ? [...choices, [column.null_code, NOT_SAID]] : choices;
}

function choiceField(column, id) {
  const problem = problemOf(id);
  const options = choicesOf(column).map(([code, text]) => {
    const input = make("input", { type: "radio", name: id, value: code, id: `${id}-${code}` });
    return make("label", { class: "choice", for: `${id}-${code}` }, input, make("span", {}, text));
  });
  const legend = make("legend", {}, capital(columnName(column.name)));
  const element = make("fieldset", { "aria-describedby": problem.id }, legend, ...options, problem);
  const read = () => {
    const picked = element.querySelector("input:checked");
    say(problem, element.querySelectorAll("input"), picked ? "" : "Please choose one.");
    return picked ? Number(picked.value) : null;
  };
  return { element, read, first: element.querySelector("input") };
}

function listField(column, id) {
  const problem = problemOf(id);
  const options = choicesOf(column).map(([code, text]) => make("option", { value: code }, text));
  const select = make("select", { id, "aria-describedby": problem.id }, make("option", { value: "" }, "Choose …"), ...options);
  const label = make("label", { class: "name", for: id }, capital(columnName(column.name)));
  const read = () => {
    say(problem, [select], select.value === "" ? "Please choose one." : "");
    return select.value === "" ? null : Number(select.value);
  };
  return { element: make("div", { class: "field" }, label, select, problem), read, first: select };
}

function scaleField(column, id) {
  const problem = problemOf(id);
  const hint = make("p", { class: "hint", id: `${id}-hint` }, hintOf(column));
  const described = `${hint.id} ${problem.id}`;
  const input = make("input", { id, type: TYPES[column.kind], autocomplete: "off", "aria-describedby": described });
  adapt(input, column);
  const label = make("label", { class: "name", for: id }, capital(columnName(column.name)));
  const element = make("div", { class: "field" }, label, hint, input);
  const silent = column.nullable ? make("input", { type: "checkbox", id: `${id}-none` }) : null;
  if (silent) {
    element.append(make("label", { class: "choice", for: silent.id }, silent, make("span", {}, NOT_SAID)));
    silent.addEventListener("change", () => {
      input.disabled = silent.checked;
      if (silent.checked) say(problem, [input], "");
    });
  }
  element.append(problem);
  const read = () => {
    if (silent?.checked) return column.null_code;
    const { code, wrong } = codeOfText(column, input.value, input.validity.badInput);
    say(problem, [input], wrong);
    return code;
  };
  return { element, read, first: input };
}

// The keyboard of a phone, and how fine a time is.
function adapt(input, column) {
  const { kind, number } = column;
  const [low, high] = rangeOf(number);
  if (kind === "integer" && low >= 0) input.inputMode = "numeric"; // these keyboards have no minus sign
  if (kind === "decimal" && low >= 0) input.inputMode = "decimal";
  if (kind === "date" && !number.clip) [input.min, input.max] = [numberText(low, kind), numberText(high, kind)];
  if (kind === "datetime" || kind === "time") input.step = number.step < 1 ? "any" : number.step % 60 ? 1 : 60;
}

const EXAMPLES = {
  integer: "a whole number", decimal: "a number", date: "a date", datetime: "a date and a time", time: "a time",
};

// The code of what was typed, or one sentence that says what is wrong with it.
export function codeOfText(column, text, isBroken = false) {
  const what = EXAMPLES[column.kind];
  if (text.trim() === "" && !isBroken) return { code: null, wrong: `Please enter ${what}.` };
  const isPlain = column.kind === "integer" || column.kind === "decimal";
  const number = isPlain ? parseNumber(text) : parseMoment(text, column.kind);
  if (number === null || (column.kind === "integer" && !Number.isInteger(number))) {
    return { code: null, wrong: isPlain ? `Please enter ${what}, written like ${exampleOf(column)}.` : `Please enter ${what}.` };
  }
  const code = codeOf(column.number, number);
  return code === null ? { code, wrong: outside(column, number) } : { code, wrong: "" };
}

function exampleOf(column) {
  const [low, high] = rangeOf(column.number);
  const middle = column.kind === "integer" ? Math.round((low + high) / 2) : Math.round(((low + high) / 2) * 10) / 10;
  return codeOf(column.number, middle) === null ? String(low) : String(middle);
}

const shown = (number, kind) => momentText(numberText(number, kind), kind);

function outside(column, number) {
  const [low, high] = rangeOf(column.number).map((end) => shown(end, column.kind));
  const [least, most] = rangeOf(column.number);
  if (number < least || number > most) return `Please enter ${EXAMPLES[column.kind]} from ${low} to ${high}.`;
  return `${shown(number, column.kind)} is not one of the possible values of this study; please check it.`;
}

function hintOf(column) {
  const [low, high] = rangeOf(column.number).map((end) => shown(end, column.kind));
  if (column.number.clip) return `${capital(EXAMPLES[column.kind])}.`;
  return low === high ? `Only ${low}.` : `${capital(EXAMPLES[column.kind])} from ${low} to ${high}.`;
}

function problemOf(id) {
  return make("p", { class: "problem", id: `${id}-problem` });
}

function say(problem, controls, sentence) {
  problem.textContent = sentence;
  for (const control of controls) {
    if (sentence) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
}
