// Browsers start no worker from a page that is a file. There the search runs in a hidden frame of the page itself, so that the
// site can be read from a folder, without a server. (Material looks for "iframe-worker" in the name and then fetches no other.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        Promise.all(urls.map((one) => new Promise((done) => this.load(one).addEventListener("load", done))));
      this.ready = new Promise((done) => this.load(url).addEventListener("load", done));
    }

    load(url) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = new URL(url, document.baseURI).href;
      this.frame.contentDocument.body.append(script);
      return script;
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
