// Talking to the server. Addresses are relative, so that a study may live in a folder of a site.

const MOST_BYTES = 8_000_000;
const MILLISECONDS = 30_000;

// Something that ends here, with the sentence that the person reads.
export class Refused extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

// Something that may go well a while later.
export class Unreachable extends Error {
  constructor(sentence, seconds = null) {
    super(sentence);
    this.seconds = seconds;
  }
}

// What the server answers, as { status, document }. Throws Unreachable where coming back may help.
export async function ask(path, { method = "GET", bearer = null, body = undefined } = {}) {
  const headers = { accept: "application/json" };
  if (bearer !== null) headers.authorization = `Bearer ${bearer}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response, text;
  try {
    response = await fetch(path, {
      method, headers, body, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer",
      signal: AbortSignal.timeout(MILLISECONDS),
    });
    text = await readText(response);
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Unreachable(navigator.onLine ? "The server cannot be reached." : "There is no connection.");
  }
  const document = parse(text);
  if (response.status === 408 || response.status === 429 || response.status >= 500) {
    throw new Unreachable(sentenceOf(document) || "The server is busy.", secondsOf(response));
  }
  return { status: response.status, document };
}

// The same, where only success will do.
export async function get(path, options) {
  const { status, document } = await ask(path, options);
  if (status !== 200) throw new Refused(sentenceOf(document) || "The server refused, and did not say why.", status);
  if (document === undefined) throw new Refused("The server sent something that this page cannot read.");
  return document;
}

async function readText(response) {
  const body = await response.blob();
  if (body.size > MOST_BYTES) throw new Refused("The server sent far more than this page can use.");
  return body.text();
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// The server's own sentence about a refusal, as a sentence.
export function sentenceOf(document) {
  const said = document?.error;
  if (typeof said !== "string" || said === "") return "";
  const text = said.slice(0, 300);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

function secondsOf(response) {
  const seconds = Number(response.headers.get("retry-after"));
  return seconds >= 1 && seconds <= 3600 ? seconds : null;
}

// Try until it goes well or is refused: again after a while, when the connection is back, or when the person says so.
// `tell` hears why it did not go well, and in how many seconds it is tried again.
export async function patiently(attempt, tell, again) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      const seconds = error.seconds ?? Math.min(60, 2 ** tries);
      tell(error, seconds);
      await pause(seconds, again);
    }
  }
}

// Wait so many seconds, or until the browser is online again, or until `again` is pressed.
export function pause(seconds, again) {
  return new Promise((resolve) => {
    const ending = new AbortController();
    const end = () => {
      ending.abort();
      clearTimeout(timer);
      resolve();
    };
    const timer = setTimeout(end, seconds * 1000);
    addEventListener("online", end, { signal: ending.signal });
    again?.addEventListener("click", end, { signal: ending.signal });
  });
}
