/* __TITLE__ An ES module without dependencies, for browsers and Node. */

const manifest = __MANIFEST__;

const TYPES = {
  float64: Float64Array, float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, int64: BigInt64Array,
  int32: Int32Array, int16: Int16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
};
const WIDENS = { // arrays of other types that lose nothing
  float64: [Float32Array], int64: [Int32Array, Int16Array, Int8Array, Uint8Array],
  int32: [Int16Array, Int8Array, Uint8Array], int16: [Int8Array, Uint8Array],
};
const FILE_TYPES = {
  float64: "F64", float32: "F32", float16: "F16", bfloat16: "BF16", int64: "I64", int32: "I32", int16: "I16",
  int8: "I8", uint8: "U8", bool: "BOOL",
};
const STACK = 64; // bytes kept for results that are returned by address

const size = (shape) => shape.reduce((a, b) => a * b, 1);
const describe = ({ name, type, shape }) => `${name} ${type}[${shape.join(", ")}]`;

/** An error of a model. code: what the native function returned, 0 where it was not called. */
export class EinsmithError extends Error {
  constructor(message, code = 0) {
    super(`__NAME__: ${message}`);
    this.name = "EinsmithError";
    this.code = code;
  }
}

async function bytesOf(source) {
  const file = source instanceof URL && source.protocol === "file:" && globalThis.process?.versions?.node;
  if (file) return (await import("node:fs/promises")).readFile(source);
  if (typeof source === "string" || source instanceof URL) source = await fetch(source);
  if (!(source instanceof Response)) return source;
  if (!source.ok) throw new EinsmithError(`${source.url} cannot be loaded: ${source.status} ${source.statusText}`);
  return source.arrayBuffer();
}

/**
 * Load a model. wasm, weights: addresses, responses or bytes, by default the files beside this one; wasm may be a
 * WebAssembly.Module, compiled before. Each model has memory of its own.
 */
export async function load({ wasm = new URL("__NAME__.wasm", import.meta.url), weights } = {}) {
  weights ??= new URL("weights.safetensors", import.meta.url);
  const [code, bytes] = await Promise.all([wasm instanceof WebAssembly.Module ? wasm : bytesOf(wasm), bytesOf(weights)]);
  const module = code instanceof WebAssembly.Module ? code : await WebAssembly.compile(code);
  const { pow, sin, cos } = Math;
  const env = { pow, sin, cos, fmod: (a, b) => a % b, fmodf: (a, b) => a % b };
  const { exports } = await WebAssembly.instantiate(module, { env });
  const model = new Model(exports);
  model.setWeights(bytes);
  return model;
}

/** A model in memory of its own, made by `load`. */
class Model {
  #f;
  #model;
  #stack;
  #places = new Map();

  constructor(exports) {
    this.#f = exports;
    this.#stack = this.#allocate(STACK);
    this.#check(exports.__NAME___create(this.#stack));
    this.#model = this.#view(Uint32Array, this.#stack, 1)[0];
  }

  /** Train on a batch (inputs..., target) and return its loss. Throws where it is not finite: nothing is updated. */
  train(...batch) {
    return this.#loss("train", batch);
  }

  /** Return the loss of a batch (inputs..., target), in evaluation mode. */
  evaluate(...batch) {
    return this.#loss("evaluate", batch);
  }

  /** Return the model's output for inputs, in evaluation mode: an array, or a list of arrays. */
  predict(...inputs) {
    return this.#arrays("predict", inputs);
  }

  /** Call the exported function. */
  call(...inputs) {
    return this.#arrays("call", inputs);
  }

  /**
   * Train on batches (lists of arrays) from an iterable, and return the mean of their losses. The page stays alive
   * between batches. onStep({ step, loss }) may return false to end.
   */
  async fit(batches, onStep = () => true) {
    let step = 0, sum = 0, shown = performance.now();
    for await (const batch of batches) {
      const loss = this.train(...batch);
      sum += loss;
      step += 1;
      if (onStep({ step, loss }) === false) break;
      if (performance.now() - shown > 16) {
        await new Promise((resume) => setTimeout(resume));
        shown = performance.now();
      }
    }
    return sum / step;
  }

  /** Number of updates so far. */
  get steps() {
    return manifest.trains ? Number(this.#f.__NAME___steps(this.#model)) : 0;
  }

  /** Return the value of a setting, such as "lr", at the next step. */
  get(setting) {
    this.#check(this.#f.__NAME___get(this.#model, this.#text(setting), this.#stack));
    return this.#view(Float64Array, this.#stack, 1)[0];
  }

  /** Set a setting for all further steps; NaN restores the values of its table. */
  set(setting, value) {
    this.#check(this.#f.__NAME___set(this.#model, this.#text(setting), value));
  }

  /** Values that the last step reported in addition to its loss, by name. */
  get reports() {
    const { reports } = manifest;
    const at = reports.length ? this.#f.__NAME___reports(this.#model) : 0;
    return Object.fromEntries(reports.map((name, n) => [name, this.#view(Float64Array, at, reports.length)[n]]));
  }

  /** Return all tensors, the optimizer's state and counters among them, as the bytes of a safetensors file. */
  weights() {
    let end = 0;
    const head = {};
    for (const t of manifest.tensors) {
      head[t.name] = { dtype: FILE_TYPES[t.type], shape: t.shape, data_offsets: [end, (end += this.#bytes(t))] };
    }
    const text = new TextEncoder().encode(JSON.stringify(head));
    const length = Math.ceil(text.length / 8) * 8;
    const file = new Uint8Array(8 + length + end).fill(32, 8, 8 + length);
    new DataView(file.buffer).setBigUint64(0, BigInt(length), true);
    file.set(text, 8);
    for (const t of manifest.tensors) {
      file.set(this.#view(Uint8Array, this.#tensor(t), this.#bytes(t)), 8 + length + head[t.name].data_offsets[0]);
    }
    return file;
  }

  /** Load all tensors from the bytes of a safetensors file; where one does not fit, none is loaded. */
  setWeights(bytes) {
    const file = ArrayBuffer.isView(bytes)
      ? new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength)
      : new Uint8Array(bytes);
    const foreign = () => new EinsmithError("the file is not a safetensors file, or is truncated", 6);
    let head, start;
    try {
      const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));
      start = 8 + length;
      head = JSON.parse(new TextDecoder().decode(file.subarray(8, start)));
    } catch {
      throw foreign();
    }
    const parts = manifest.tensors.map((t, n) => {
      const { dtype, shape, data_offsets: [begin, end] = [] } = head[t.name] ?? {};
      if (dtype !== FILE_TYPES[t.type] || String(shape) !== String(t.shape)) {
        throw new EinsmithError(`the file lacks the tensor ${t.name}, of ${t.type}[${t.shape.join(", ")}]`, 10000 + n);
      }
      if (!(end - begin === this.#bytes(t) && begin >= 0 && start + end <= file.length)) throw foreign();
      return file.subarray(start + begin, start + end);
    });
    manifest.tensors.forEach((t, n) => this.#view(Uint8Array, this.#tensor(t), this.#bytes(t)).set(parts[n]));
  }

  /** Return a copy of a tensor. */
  tensor(name) {
    const t = manifest.tensors.find((x) => x.name === (manifest.aliases[name] ?? name));
    if (!t) throw new EinsmithError(`there is no tensor of the name ${name}`);
    return this.#view(TYPES[t.type], this.#tensor(t), size(t.shape)).slice();
  }

  // -- calls

  #loss(role, batch) {
    const { call, places } = this.#arguments(role, batch);
    this.#check(this.#f[call.function](this.#model, ...places, this.#stack));
    return this.#view(Float64Array, this.#stack, 1)[0];
  }

  #arrays(role, inputs) {
    const { call, places } = this.#arguments(role, inputs);
    const results = call.results.map((r, n) => this.#place(`${call.function} result ${n}`, this.#bytes(r)));
    this.#check(this.#f[call.function](this.#model, ...places, ...results));
    const arrays = call.results.map((r, n) => this.#view(TYPES[r.type], results[n], size(r.shape)).slice());
    return arrays.length === 1 ? arrays[0] : arrays;
  }

  /** Copy arrays into the memory of the function of a role whose arguments have their numbers of elements. */
  #arguments(role, values) {
    const calls = manifest.functions.filter((f) => f.role === role);
    const fits = ({ arguments: a }) => a.length === values.length && a.every((p, n) => size(p.shape) === values[n]?.length);
    const call = calls.find(fits);
    if (!call) {
      const takes = calls.map((c) => c.arguments.map(describe).join(", ")).join("; or ") || "no such call";
      const shown = values.map((v) => `${v?.constructor?.name ?? v}(${v?.length ?? ""})`).join(", ");
      throw new EinsmithError(`takes ${takes}; given ${shown}`);
    }
    const places = call.arguments.map((p, n) => {
      const value = values[n], Type = TYPES[p.type];
      const widens = WIDENS[p.type]?.some((Other) => value instanceof Other);
      if (!(value instanceof Type || widens || Array.isArray(value))) {
        throw new EinsmithError(`${p.name} is ${value.constructor.name}; it must be ${Type.name}`);
      }
      const place = this.#place(`${call.function} ${p.name}`, this.#bytes(p));
      this.#view(Type, place, size(p.shape)).set(Type === BigInt64Array && !(value instanceof Type) ? Array.from(value, BigInt) : value);
      return place;
    });
    return { call, places };
  }

  // -- memory

  #check(code) {
    if (!code) return;
    const at = this.#f.__NAME___error(code), memory = new Uint8Array(this.#f.memory.buffer);
    throw new EinsmithError(new TextDecoder().decode(memory.subarray(at, memory.indexOf(0, at))), code);
  }

  #bytes({ type, shape }) {
    return size(shape) * TYPES[type].BYTES_PER_ELEMENT;
  }

  /** Return a view of the memory, which ends where the memory grows. */
  #view(Type, at, length) {
    return new Type(this.#f.memory.buffer, at, length);
  }

  #allocate(bytes) {
    const at = this.#f.__NAME___allocate(bytes) >>> 0;
    if (!at) throw new EinsmithError("there is not enough memory", 2);
    return at;
  }

  /** Return the memory of a purpose, which is allocated once. */
  #place(purpose, bytes) {
    if (!this.#places.has(purpose)) this.#places.set(purpose, this.#allocate(bytes));
    return this.#places.get(purpose);
  }

  #text(text) {
    const bytes = new TextEncoder().encode(text);
    const at = this.#place(`text ${text}`, bytes.length + 1);
    this.#view(Uint8Array, at, bytes.length + 1).set([...bytes, 0]);
    return at;
  }

  #tensor(t) {
    return this.#f.__NAME___tensor(this.#model, this.#text(t.name)) >>> 0;
  }
}

export { manifest };
