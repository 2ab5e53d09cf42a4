// Keeps the page's own files, so that it opens without a connection and an answer that waits can be sent later. What the
// study says, what is asked and what is answered (/v1/) never goes through here.

const KEPT = "populace pages";
const FILES = [
  "./", "style.css", "icon.svg", "person.js", "check.js", "dom.js", "exchange.js", "form.js", "ledger.js", "picture.js",
  "sampler.js", "values.js", "words.js",
];
const addresses = new Set(FILES.map((file) => new URL(file, self.registration.scope).href));

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(KEPT).then((cache) => cache.addAll(FILES)));
});

self.addEventListener("activate", (event) => {
  event.waitUntil(self.clients.claim());
});

// The server's own file where it can be reached, else the kept one.
self.addEventListener("fetch", (event) => {
  if (event.request.method === "GET" && addresses.has(event.request.url.split("#")[0])) event.respondWith(newest(event.request));
});

async function newest(request) {
  const cache = await caches.open(KEPT);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch {
    return (await cache.match(request)) ?? Response.error();
  }
}
