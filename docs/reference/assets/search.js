// Lets the search work in pages that are opened as files: these may neither fetch nor start workers, so the index
// comes as a script, and the search runs in a frame that stands in for its worker.
// SPDX-License-Identifier: Apache-2.0
if (location.protocol === "file:") {
  const root = document.currentScript.src.replace(/assets\/[^/]*$/, "");
  const load = (page, url) => new Promise((done) => {
    const script = page.createElement("script");
    script.src = url;
    script.onload = done;
    page.body.appendChild(script);
  });
  window.__search = {index: load(document, root + "search/search_index.js").then(() => window.searchIndex)};
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      this.loaded = load(frame.contentDocument, url);
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}
