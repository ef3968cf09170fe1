// A source with the cycles of its lines; and what is known of the item that is chosen.
import state, { set, watch } from "#state";
import { ENDS, count, make, share, shortName } from "#words";

export class Source {
  constructor(columns, pane) {
    Object.assign(this, { columns, head: columns.head, file: -1 });
    this.lines = new Map((this.head.lines ?? []).map((one) => [`${one[0]} ${one[1]}`, one]));
    const cycles = (file) => (this.head.lines ?? []).reduce((sum, one) => sum + (one[0] === file ? one[2] : 0), 0);
    const files = this.head.sources.map((one, file) => [file, one[0], cycles(file)]).sort((a, b) => b[2] - a[2]);
    this.select = make("select", { "aria-label": "Source", change: () => this.show(Number(this.select.value)) },
      ...files.map(([file, name]) => make("option", { value: file }, name.split("/").slice(-2).join("/"))));
    this.note = make("p", { class: "note" }, this.head.lines
      ? "Cycles of all PEs by line. A click filters the trace by the line."
      : "There is no profile of the run, so lines have no cycles.");
    this.body = make("div", { class: "source", tabindex: "0", role: "list", "aria-label": "Source" });
    pane.append(make("div", { class: "tools" }, this.select), this.note, this.body);
    watch(["line"], () => { if (state.line) this.go(...state.line); });
    if (files.length) this.show(files[0][0]);
  }

  show(file) {
    if (file === this.file || file < 0) return;
    this.file = file;
    this.select.value = String(file);
    const whole = this.head.pe_cycles || 1;
    const rows = this.head.sources[file][1].split("\n").map((text, index) => {
      const found = this.lines.get(`${file} ${index + 1}`), row = make("div", { role: "listitem", class: "line" });
      const told = found ? `${count(found[2])} cycles, waited ${count(found[3])}, in operations ${count(found[4])}, ${count(found[5])} times. ${found[6]}` : "";
      row.title = told;
      if (found) row.style.setProperty("--heat", `${Math.min(85, 12 + 100 * found[2] / whole)}%`);
      row.append(make("span", { class: "cycles" }, found ? count(found[2]) : ""),
        make("span", { class: "share" }, found ? share(found[2], whole) : ""),
        make("span", { class: "number" }, String(index + 1)), make("code", {}, text || " "));
      row.addEventListener("click", () => set({ line: [file, index + 1, ""], asked: {} }));
      if (found) row.classList.add("hot");
      return row;
    });
    this.body.replaceChildren(...rows);
  }

  go(file, line) {
    this.show(file);
    this.body.querySelector(".here")?.classList.remove("here");
    const row = this.body.children[line - 1];
    if (!row) return;
    row.classList.add("here");
    this.body.scrollTop = row.offsetTop - this.body.offsetTop - this.body.clientHeight / 3;
  }
}

// The wavelet that is chosen: who sent it, where it went, when; each a link.
export class Detail {
  constructor(columns, pane, fabric) {
    Object.assign(this, { columns, pane, fabric, head: columns.head });
    watch(["wavelet", "span"], () => this.show());
  }

  async show() {
    const number = state.wavelet;
    if (number < 0) { this.pane.replaceChildren(); this.pane.hidden = true; return; }
    const rows = await this.columns.rows("wave", number), way = await this.columns.rows("way", number);
    if (number !== state.wavelet || !rows.length) return;
    const parts = [make("b", {}, `Wavelet ${number}`), ` sent in cycle ${count(rows.sent[0])} by `, this.#pe(rows.from[0], rows.sent[0])];
    if (rows.span[0] >= 0) parts.push(", ", await this.#span(rows.span[0]));
    for (let row = 0; row < rows.length; row++) {
      parts.push(make("br"), `${ENDS[rows.end[row]]} at `, this.#pe(rows.to[row], rows.consumed[row] >= 0 ? rows.consumed[row] : rows.arrived[row]),
        ` after ${rows.hops[row]} ${rows.hops[row] === 1 ? "hop" : "hops"}`, rows.arrived[row] >= 0 ? `, came in cycle ${count(rows.arrived[row])}` : "",
        rows.consumed[row] >= 0 ? `, taken in cycle ${count(rows.consumed[row])}` : "");
    }
    parts.push(make("br"), `${count(way.length)} routers on its way: `, ...[...way.pe].slice(0, 40).flatMap((pe) => [this.#pe(pe), " "]));
    this.pane.hidden = false;
    this.pane.replaceChildren(...parts);
  }

  #pe(pe, cycle) {
    if (pe < 0) return "the host";
    const [x, y] = this.fabric.place(pe);
    return make("button", { class: "link", click: () => set({ pe, ...(cycle >= 0 && cycle !== undefined ? { cycle } : {}) }) }, `PE (${x}, ${y})`);
  }

  // The operation that has sent it, with its place in the source.
  async #span(row) {
    const one = async (name) => (await this.columns.part(`span.${name}`, row, row + 1))[0];
    const [name, place, begin] = await Promise.all(["name", "place", "begin"].map(one));
    const line = this.head.places[place];
    const told = line ? ` at ${shortName(this.head.sources[line[0]]?.[0] ?? "?")}:${line[1]}` : "";
    const go = () => set({ span: row, cycle: begin, wavelet: -1, line: line ?? null });
    return make("button", { class: "link", id: "sender", click: go }, `${this.head.names[name]}${told}`);
  }
}

