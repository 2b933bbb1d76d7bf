/** An error of a model. code: what the native function returned, 0 where it was not called. */
export class EinsmithError extends Error {
  code: number;
}

type Source = string | URL | Response | BufferSource;

/** Load a model. wasm, weights: addresses, responses or bytes, by default the files beside {{ name }}.js. */
export function load(options?: { wasm?: Source | WebAssembly.Module; weights?: Source }): Promise<Model>;

export interface Model {
{% for call in calls %}
  /** {% for a in call.arrays %}{{ a.name }} {{ a.meaning }}{{ ", " if not loop.last }}{% endfor %} */
  {{ call.role }}({% for a in call.arguments %}{{ a.name }}: {{ type_of(a) }} | number[]{{ ", " if not loop.last }}{% endfor %}): {{ result_of(call) }};
{% endfor %}
  /** Train on batches and return the mean loss; onStep may return false to end. */
  fit(
    batches: Iterable<unknown[]> | AsyncIterable<unknown[]>,
    onStep?: (progress: { step: number; loss: number }) => boolean | void,
  ): Promise<number>;
  /** Number of updates so far. */
  readonly steps: number;
  /** Values that the last step reported in addition to its loss. */
  readonly reports: Record<string, number>;
  /** The value of a setting, such as "lr", at the next step; `set` holds for all further steps. */
  get(setting: string): number;
  set(setting: string, value: number): void;
  /** All tensors as the bytes of a safetensors file, and back. */
  weights(): Uint8Array;
  setWeights(bytes: BufferSource): void;
  /** A copy of a tensor's elements. */
  tensor(name: string): ArrayLike<number> | BigInt64Array;
}

/** The functions with their arrays' names, types and shapes; tensors; settings. */
export const manifest: {
  name: string;
  functions: {
    function: string;
    role: string;
    arguments: { name: string; type: string; shape: number[] }[];
    results: { name: string; type: string; shape: number[] }[];
  }[];
  tensors: { name: string; kind: string; type: string; shape: number[] }[];
  settings: { name: string; value: number; steps_in_table: number }[];
  reports: string[];
};
