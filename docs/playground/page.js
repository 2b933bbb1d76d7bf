/* The page "Try it": two networks in WebAssembly that train in slices between frames. */
(() => {
  "use strict";
  const data = window.playground, at = (id) => document.getElementById(id);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const INK = "--md-default-fg-color", FAINT = "--md-default-fg-color--lightest", LINE = "--md-accent-fg-color";
  const SIDE = 28, BATCH = 16, WAVES = 32, SLICE = 14; // pixels, digits, waves, milliseconds of work between frames
  const LEAST_RATE = 1e-4;
  const frame = () => new Promise((resume) => {
    requestAnimationFrame(resume);
    setTimeout(resume, 100); // a hidden page has no frames
  });

  /** Load a module and its weights, which data.js holds as text: a page from disk may not fetch files. */
  async function load(part) {
    const { load } = await import(`data:text/javascript;base64,${part.script}`);
    return load({ wasm: bytes(part.wasm), weights: bytes(part.weights) });
  }

  // -- drawing

  /** Fit a canvas to its place, with sharp pixels, and return its context, width and height. */
  function context(canvas) {
    const scale = devicePixelRatio || 1, { width, height } = canvas.getBoundingClientRect();
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    c.clearRect(0, 0, width, height);
    c.font = "12px system-ui, sans-serif";
    return [c, width, height];
  }

  function path(c, points, style, width = 2, dash = []) {
    c.strokeStyle = style;
    c.lineWidth = width;
    c.setLineDash(dash);
    c.beginPath();
    points.forEach(([x, y], n) => (n ? c.lineTo(x, y) : c.moveTo(x, y)));
    c.stroke();
    c.setLineDash([]);
  }

  /** Draw losses on a logarithmic scale, averaged over as many steps as a pixel has. */
  function drawLosses(canvas, losses) {
    const [c, w, h] = context(canvas), left = 50, bottom = 20;
    const low = Math.floor(Math.log10(Math.max(1e-5, losses.reduce((a, b) => Math.min(a, b), 0.5))));
    const top = 1, y = (v) => 8 + ((top - Math.log10(Math.min(10, Math.max(v, 10 ** low)))) / (top - low)) * (h - bottom - 8);
    c.fillStyle = colour(INK);
    c.textAlign = "right";
    for (let e = low; e <= top; e++) {
      path(c, [[left, y(10 ** e)], [w, y(10 ** e)]], colour(FAINT), 1);
      c.fillText(String(+(10 ** e).toPrecision(1)), left - 6, y(10 ** e) + 4);
    }
    c.fillText(`${losses.length.toLocaleString("en")} steps`, w - 4, h - 5);
    const group = Math.max(1, Math.ceil(losses.length / (w - left))), points = [];
    for (let n = 0; n < losses.length; n += group) {
      const part = losses.slice(n, n + group);
      const mean = part.reduce((a, b) => a + b, 0) / part.length;
      points.push([left + ((n + group / 2) / Math.max(losses.length, 50)) * (w - left), y(mean)]);
    }
    path(c, points, colour(LINE), 1.5);
  }

  function drawMatrix(canvas, counts) {
    const [c, w, h] = context(canvas), edge = 18, cell = (Math.min(w, h) - edge) / 10;
    c.textAlign = "center";
    for (let row = 0; row < 10; row++) {
      const all = counts[row].reduce((a, b) => a + b, 0) || 1;
      c.fillStyle = colour(INK);
      c.fillText(row, edge / 2, edge + (row + 0.5) * cell + 4);
      c.fillText(row, edge + (row + 0.5) * cell, edge - 5);
      for (let column = 0; column < 10; column++) {
        const n = counts[row][column];
        c.globalAlpha = 0.06 + 0.94 * (n / all);
        c.fillStyle = row === column ? colour("--md-primary-fg-color") : colour(LINE);
        c.fillRect(edge + column * cell + 1, edge + row * cell + 1, cell - 2, cell - 2);
        c.globalAlpha = 1;
        c.fillStyle = n / all > 0.5 ? "#fff" : colour(INK);
        if (n) c.fillText(n, edge + (column + 0.5) * cell, edge + (row + 0.5) * cell + 4);
      }
    }
  }

  // -- a card: a model, its buttons, its training

  /** Train while the button says so. part: of data.js; batch(): a batch; show(card): what is seen beside the loss. */
  async function card(name, part, batch, show) {
    const go = at(`${name}-go`), again = at(`${name}-again`), rate = at(`${name}-rate`), said = at(`${name}-said`);
    const self = { model: null, losses: [], times: [], running: false, say: (text) => (said.value = text) };
    const start = performance.now();
    self.model = await load(part);
    self.loaded = performance.now() - start;
    const initial = self.model.weights();
    const draw = () => {
      drawLosses(at(`${name}-loss`), self.losses);
      show(self);
      const times = [...self.times].sort((a, b) => a - b), ms = times[times.length >> 1];
      at(`${name}-time`).textContent =
        `A step is predicted to take ${(part.seconds.train * 1e3).toFixed(1)} ms at 3 GHz; here it takes ` +
        `${ms ? `${ms.toFixed(1)} ms` : "… (train to see)"}. The module was loaded and compiled in ` +
        `${self.loaded.toFixed(0)} ms; it has ${Math.round((part.wasm.length * 3) / 4 / 1024)} kB.`;
    };
    const run = async () => {
      self.running = true;
      go.textContent = "Pause";
      try {
        while (self.running) {
          const until = performance.now() + SLICE;
          while (performance.now() < until && self.running) {
            const next = batch(self), begun = performance.now();
            self.losses.push(self.model.train(...next));
            self.times.push(performance.now() - begun);
            if (self.times.length > 200) self.times.shift();
          }
          draw();
          await frame();
        }
      } catch (e) {
        self.say(`${e.message}. Start again with a smaller learning rate.`);
      }
      self.running = false;
      go.textContent = "Train";
    };
    go.onclick = () => {
      if (self.running) self.running = false;
      else run();
    };
    again.onclick = () => {
      self.model.setWeights(initial);
      self.model.set("lr", Number(rate.value));
      self.losses = [];
      self.again?.();
      draw();
      if (!self.running) run();
    };
    rate.onchange = () => self.model.set("lr", Number(rate.value));
    rate.onchange();
    go.disabled = again.disabled = false;
    new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
    addEventListener("resize", draw);
    self.draw = draw;
    draw();
    return self;
  }

  // -- digits

  /** Return the digits' pixels from 0 to 1 and their labels. */
  async function readDigits({ png, labels, columns, trained }) {
    const image = new Image();
    image.src = `data:image/png;base64,${png}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    const c = canvas.getContext("2d", { willReadFrequently: true });
    c.drawImage(image, 0, 0);
    const { data: rgba } = c.getImageData(0, 0, image.width, image.height);
    const pixels = new Float32Array(labels.length * SIDE * SIDE);
    for (let n = 0; n < labels.length; n++) {
      const left = (n % columns) * SIDE, top = Math.floor(n / columns) * SIDE;
      for (let k = 0; k < SIDE * SIDE; k++) {
        const place = (top + Math.floor(k / SIDE)) * image.width + left + (k % SIDE);
        pixels[n * SIDE * SIDE + k] = rgba[4 * place] / 255;
      }
    }
    return { pixels, labels: Array.from(labels, Number), trained };
  }

  const order = (n) => {
    const out = Array.from({ length: n }, (_, k) => k);
    for (let k = n - 1; k > 0; k--) {
      const other = Math.floor(Math.random() * (k + 1));
      [out[k], out[other]] = [out[other], out[k]];
    }
    return out;
  };

  /** Return the pixels of a drawing as MNIST has them: its longer side 20 pixels, its centre of mass in the middle. */
  function centred(pad) {
    const { width, height } = pad, { data: rgba } = pad.getContext("2d").getImageData(0, 0, width, height);
    let left = width, right = -1, top = height, bottom = -1, sum = 0, sx = 0, sy = 0;
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const ink = rgba[4 * (y * width + x) + 3];
        if (!ink) continue;
        [left, right] = [Math.min(left, x), Math.max(right, x)];
        [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
        [sum, sx, sy] = [sum + ink, sx + ink * x, sy + ink * y];
      }
    }
    if (!sum) return null;
    const scale = 20 / Math.max(right - left + 1, bottom - top + 1, 40), small = document.createElement("canvas");
    small.width = small.height = SIDE;
    const c = small.getContext("2d", { willReadFrequently: true });
    c.imageSmoothingQuality = "high";
    c.drawImage(pad, SIDE / 2 - (sx / sum) * scale, SIDE / 2 - (sy / sum) * scale, width * scale, height * scale);
    const shrunk = c.getImageData(0, 0, SIDE, SIDE).data;
    return Float32Array.from({ length: SIDE * SIDE }, (_, k) => shrunk[4 * k + 3] / 255);
  }

  async function digits() {
    const all = await readDigits(data.images), size = SIDE * SIDE, pad = at("digits-pad");
    let epoch = order(all.trained), place = 0, epochs = 0, shown = 0, drawn = null, counts = null, right = 0;
    const held = all.labels.length - all.trained;
    const bars = Array.from({ length: 10 }, (_, n) => {
      const label = Object.assign(document.createElement("b"), { textContent: n });
      const bar = document.createElement("div"), share = document.createElement("span");
      bar.append(document.createElement("i"));
      at("digits-bars").append(label, bar, share);
      return { bar: bar.firstChild, share };
    });

    const batch = ({ model }) => {
      if (place + BATCH > epoch.length) {
        [epoch, place, epochs] = [order(all.trained), 0, epochs + 1];
        model.set("lr", Math.max(model.get("lr") / 2, LEAST_RATE));
      }
      const x = new Float32Array(BATCH * size), y = new Array(BATCH);
      for (let k = 0; k < BATCH; k++) {
        const n = epoch[place++];
        x.set(all.pixels.subarray(n * size, (n + 1) * size), k * size);
        y[k] = all.labels[n];
      }
      return [x, y];
    };
    const best = (logits, k) => {
      let n = 0;
      for (let j = 1; j < 10; j++) if (logits[10 * k + j] > logits[10 * k + n]) n = j;
      return n;
    };
    const judge = (model) => {
      counts = Array.from({ length: 10 }, () => new Array(10).fill(0));
      right = 0;
      for (let first = 0; first < held; first += BATCH) {
        const x = new Float32Array(BATCH * size), from = all.trained + first, count = Math.min(BATCH, held - first);
        x.set(all.pixels.subarray(from * size, (from + count) * size));
        const logits = model.predict(x);
        for (let k = 0; k < count; k++) {
          const label = all.labels[from + k], answer = best(logits, k);
          counts[label][answer] += 1;
          right += label === answer;
        }
      }
    };
    const read = (model) => {
      if (!drawn) return bars.forEach(({ bar, share }) => ([bar.style.width, share.textContent] = ["0", ""]));
      const x = new Float32Array(BATCH * size);
      x.set(drawn);
      const logits = model.predict(x).slice(0, 10), most = Math.max(...logits);
      const e = Array.from(logits, (v) => Math.exp(v - most)), sum = e.reduce((a, b) => a + b);
      bars.forEach(({ bar, share }, n) => {
        bar.style.width = `${(100 * e[n]) / sum}%`;
        share.textContent = `${((100 * e[n]) / sum).toFixed(1)} %`;
      });
      at("digits-bars").setAttribute("aria-label", `the network reads ${e.indexOf(Math.max(...e))}`);
    };
    const show = (self) => {
      if (!counts || !self.running || performance.now() - shown > 250) {
        judge(self.model);
        shown = performance.now();
      }
      drawMatrix(at("digits-matrix"), counts);
      read(self.model);
      const done = epochs + place / all.trained;
      self.say(`${done.toFixed(1)} times through ${all.trained.toLocaleString("en")} digits, ${((100 * right) / held).toFixed(1)} % right`);
    };
    const self = await card("digits", data.digits, batch, show);
    self.again = () => {
      [epoch, place, epochs, counts] = [order(all.trained), 0, 0, null];
    };

    const pen = pad.getContext("2d", { willReadFrequently: true });
    let last = null;
    const point = (e) => {
      const box = pad.getBoundingClientRect();
      return [((e.clientX - box.left) * pad.width) / box.width, ((e.clientY - box.top) * pad.height) / box.height];
    };
    const changed = () => {
      drawn = centred(pad);
      read(self.model);
    };
    const stroke = (to) => {
      pen.lineCap = pen.lineJoin = "round";
      path(pen, [last, to], "#888", 22);
      last = to;
      changed();
    };
    pad.onpointerdown = (e) => {
      pad.setPointerCapture(e.pointerId);
      last = point(e);
      stroke([last[0] + 0.1, last[1]]);
    };
    pad.onpointermove = (e) => last && stroke(point(e));
    pad.onpointerup = pad.onpointercancel = () => (last = null);
    at("digits-clear").onclick = () => {
      pen.clearRect(0, 0, pad.width, pad.height);
      changed();
    };
    at("digits-sample").onclick = () => {
      const n = all.trained + Math.floor(Math.random() * held), zoom = pad.width / SIDE;
      drawn = all.pixels.slice(n * size, (n + 1) * size);
      pen.clearRect(0, 0, pad.width, pad.height);
      pen.fillStyle = "#888";
      drawn.forEach((v, k) => {
        pen.globalAlpha = v;
        pen.fillRect((k % SIDE) * zoom, Math.floor(k / SIDE) * zoom, zoom, zoom);
      });
      pen.globalAlpha = 1;
      read(self.model);
    };
    at("digits-sample").disabled = false;
    return self;
  }

  // -- waves

  async function waves() {
    const STEPS = 80, given = data.given;
    const sines = () => {
      const x = new Float32Array(STEPS * WAVES), y = new Float32Array(STEPS * WAVES);
      for (let b = 0; b < WAVES; b++) {
        const pace = (2 * Math.PI) / (8 + 20 * Math.random()), phase = 2 * Math.PI * Math.random();
        for (let t = 0; t < STEPS; t++) {
          x[t * WAVES + b] = Math.sin(pace * t + phase);
          y[t * WAVES + b] = Math.sin(pace * (t + 1) + phase);
        }
      }
      return [x, y];
    };
    let shown = 0, sample = null;
    const show = (self) => {
      if (!sample || (self.running && performance.now() - shown > 1500)) {
        sample = sines();
        shown = performance.now();
      }
      const answers = self.model.predict(sample[0]), canvas = at("waves-plot"), [c, w, h] = context(canvas);
      const line = (values, from) => {
        const out = [];
        for (let t = from; t < STEPS; t++) out.push([8 + ((w - 16) * t) / (STEPS - 1), h / 2 - values[t * WAVES] * h * 0.38]);
        return out;
      };
      const edge = 8 + ((w - 16) * (given - 1)) / (STEPS - 1);
      path(c, [[edge, 0], [edge, h]], colour(FAINT), 1);
      path(c, line(sample[1], 0).slice(0, given), colour(INK), 2);
      path(c, line(sample[1], given - 1), colour(INK), 1, [4, 4]);
      path(c, line(answers, given - 1), colour(LINE), 2.5);
      const recent = self.losses.slice(-50), mean = recent.reduce((a, b) => a + b, 0) / recent.length;
      self.say(recent.length ? `${self.losses.length.toLocaleString("en")} steps, mean squared error ${mean.toFixed(4)}` : "ready");
    };
    return card("waves", data.waves, sines, show);
  }

  at("convolution").textContent = `${data.convolution}\n${data.gradient}`;
  at("cell").textContent = data.cell;
  const fail = (name) => (e) => (at(`${name}-said`).value = `This page cannot run here: ${e.message}`);
  const cards = { digits: digits().catch(fail("digits")), waves: waves().catch(fail("waves")) };
  window.playgroundCards = cards; // for tests
})();
