// From a value to the randomised report: the steps of docs/collector-api.md, "From record to report".
//
// Everything here is a whole number below 2^32. Random words come from the device's cryptographic generator; no probability
// is computed here: `law` brings it as two words, `high` (31 bits) and `low` (32 bits).

// One random word of 32 bits.
function deviceWord() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// A whole number from 0 to bound - 1, all equally likely: as many bits as bound - 1 has, drawn again if the result is too
// large. Never a remainder, which would favour the small numbers.
export function below(bound, word = deviceWord) {
  const bits = 32 - Math.clz32(bound - 1);
  if (bits === 0) return 0;
  for (;;) {
    const drawn = word() >>> (32 - bits);
    if (drawn < bound) return drawn;
  }
}

// Whether the own value is told: true in `numerator` of 2^63 cases.
function isTold(law, word) {
  const high = word() >>> 1;
  const low = word();
  return high < law.high || (high === law.high && low < law.low);
}

// The set of told values, ascending: `chosen` of the `size` values, the own one among them if `isTold` says so, and the others
// the first places of a random order.
export function drawSet(law, own, word = deviceWord) {
  if (law.size === 1) return [0];
  const told = isTold(law, word);
  const others = [];
  for (let value = 0; value < law.size; value += 1) {
    if (value !== own) others.push(value);
  }
  const wanted = told ? law.chosen - 1 : law.chosen;
  for (let place = 0; place < wanted; place += 1) {
    const other = place + below(others.length - place, word);
    [others[place], others[other]] = [others[other], others[place]];
  }
  const set = others.slice(0, wanted);
  if (told) set.push(own);
  return set.sort((one, other) => one - other);
}

// The set as it is sent: one bit for each value, or the values one after the other with their lowest bit first.
export function encodeSet(law, set) {
  const bytes = new Uint8Array(law.bytes);
  const write = (place) => {
    bytes[place >>> 3] |= 0x80 >>> (place & 7);
  };
  if (law.encoding === "bits") {
    set.forEach(write);
    return bytes;
  }
  set.forEach((value, index) => {
    for (let bit = 0; bit < law.index_bits; bit += 1) {
      if ((value >>> bit) & 1) write(index * law.index_bits + bit);
    }
  });
  return bytes;
}

// A fresh secret that makes the receipt say nothing about the report.
export function makeNonce() {
  return crypto.getRandomValues(new Uint8Array(32));
}

export function base64(bytes) {
  return btoa(String.fromCharCode(...bytes));
}
