// Browsers refuse workers on pages that are opened from disk. The search's runs in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.onload = () => {
        const inside = frame.contentWindow;
        const script = inside.document.createElement("script");
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        script.onload = () => {
          this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
          this.waiting.forEach(this.postMessage);
        };
        script.src = url;
        inside.document.head.append(script);
      };
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.waiting.push(data);
    }
  };
}
