// Columns of a run, by ranges of a file: a safetensors file, little-endian.
const KINDS = {
  U8: Uint8Array, I8: Int8Array, U16: Uint16Array, I16: Int16Array,
  I32: Int32Array, U32: Uint32Array, F32: Float32Array, F64: Float64Array,
};
const FIRST_BYTES = 1 << 18;
const MOST_KEPT = 4000;

// Gives a function that reads bytes [begin, end) of what the page carries, or of the server's file.
async function reader() {
  const inside = document.getElementById("data").textContent.trim();
  if (!inside) {
    const { live } = document.body.dataset, version = live === undefined ? "" : `?version=${live}`;
    return async (begin, end) => {
      const answer = await fetch(`run.view${version}`, { headers: { Range: `bytes=${begin}-${end - 1}` } });
      if (!answer.ok) throw new Error(`the server says: ${await answer.text()}`);
      return answer.arrayBuffer();
    };
  }
  const packed = Uint8Array.from(atob(inside), (one) => one.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = await new Response(stream).arrayBuffer();
  return async (begin, end) => whole.slice(begin, Math.min(end, whole.byteLength));
}

export class Columns {
  constructor(read, head, arrays, base) {
    Object.assign(this, { read, head, arrays, base });
    this.kept = new Map();
  }

  static async open() {
    const read = await reader();
    const begin = await read(0, FIRST_BYTES);
    const length = Number(new DataView(begin).getBigUint64(0, true));
    const text = 8 + length <= begin.byteLength ? begin.slice(8, 8 + length) : await read(8, 8 + length);
    const arrays = JSON.parse(new TextDecoder().decode(text));
    const told = arrays.__metadata__;
    delete arrays.__metadata__;
    return new Columns(read, JSON.parse(told.head), arrays, 8 + length);
  }

  has(name) { return name in this.arrays; }

  length(name) { return this.has(name) ? this.arrays[name].shape.reduce((a, b) => a * b, 1) : 0; }

  // Elements [begin, end) of an array; what was asked for before is not asked for again.
  part(name, begin = 0, end = this.length(name)) {
    const key = `${name} ${begin} ${end}`;
    if (!this.kept.has(key)) {
      if (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, this.#part(name, begin, end));
    }
    return this.kept.get(key);
  }

  async #part(name, begin, end) {
    const { dtype, data_offsets: [first] } = this.arrays[name];
    const kind = KINDS[dtype], size = kind.BYTES_PER_ELEMENT;
    if (begin >= end) return new kind(0);
    const from = this.base + first;
    return new kind(await this.read(from + begin * size, from + end * size));
  }

  // Rows of a table that belong to a key, such as a PE: an array for each column, how many, and the first.
  async rows(table, key) {
    if (!this.has(`${table}.first`)) return { offset: 0, length: 0 };
    const first = await this.part(`${table}.first`);
    const [begin, end] = [first[key], first[key + 1]];
    const names = Object.keys(this.arrays).filter(
      (name) => name.startsWith(`${table}.`) && !name.endsWith(".first"));
    const parts = await Promise.all(names.map((name) => this.part(name, begin, end)));
    const found = { offset: begin, length: end - begin };
    names.forEach((name, index) => { found[name.slice(table.length + 1)] = parts[index]; });
    return found;
  }
}
