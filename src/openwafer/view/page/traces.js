// Tables of a PE: instructions, tasks, microthreads, wavelets, and sums of them.
import state, { set, watch } from "#state";
import { DIRECTIONS, FORMATS, STAYS, count, make, share, shortName, sides } from "#words";

const ROW = 22, TASKS = 9;
const KINDS = ["instructions", "tasks", "microthreads", "wavelets", "statistics"];

export class Traces {
  constructor(columns, pane) {
    Object.assign(this, { columns, head: columns.head, pane, rows: [] });
    const option = (one) => make("option", { value: one }, one);
    this.kind = make("select", { "aria-label": "Trace", change: () => this.load() }, ...KINDS.map(option));
    this.text = make("input", { type: "search", placeholder: "filter: add, 0x3f, east, pe.csl:12", "aria-label": "Filter", input: () => this.filter() });
    this.format = make("select", { "aria-label": "Format of wavelets", change: () => this.filter() }, ...Object.keys(FORMATS).map(option));
    this.stay = make("select", { "aria-label": "State of wavelets", change: () => this.filter() }, ...["all states", ...STAYS, "control"].map(option));
    this.told = make("p", { class: "note", role: "status" });
    this.body = make("div", { class: "rows", tabindex: "0", role: "table", "aria-label": "Trace", scroll: () => this.draw() });
    pane.append(make("div", { class: "tools" }, this.kind, this.text, this.stay, this.format), this.told, this.body);
    this.body.addEventListener("keydown", (event) => this.key(event));
    watch(["pe"], () => this.load());
    watch(["colors", "line"], () => this.filter());
    watch(["cycle"], () => this.reveal());
    watch(["span", "wavelet"], () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.body);
    this.load();
  }

  async load() {
    const kind = this.kind.value, isOfWavelets = kind === "wavelets";
    this.stay.hidden = this.format.hidden = !isOfWavelets;
    if (state.pe < 0) {
      this.tell("Choose a PE: click on the wafer, or search for its column and row.");
      return;
    }
    const pe = state.pe;
    const found = await this.columns.rows(isOfWavelets ? "pass" : "span", pe);
    if (pe !== state.pe || kind !== this.kind.value) return;
    this.found = found;
    this.filter();
  }

  tell(text) {
    this.rows = [];
    this.told.textContent = text;
    this.draw();
  }

  filter() {
    if (!this.found) return;
    const { found } = this, kind = this.kind.value, text = this.text.value.toLowerCase();
    if (kind === "statistics") { this.statistics(); return; }
    const rows = [];
    for (let row = 0; row < found.length; row++) {
      if (this.#has(row, kind) && (!text || this.cells(row).join(" ").toLowerCase().includes(text))) rows.push(row);
    }
    this.rows = rows;
    const of = kind === "wavelets" && state.colors.size ? ` on colors ${[...state.colors].sort((a, b) => a - b).join(", ")}` : "";
    this.told.textContent = this.columns.has("span.first")
      ? `${count(rows.length)} of ${count(found.length)}${of}`
      : "There is no record of the run: open its journal, or run the script by openwafer view OUT -- run.py.";
    this.draw();
    this.reveal();
  }

  #has(row, kind) {
    const { found } = this;
    if (kind === "wavelets") {
      const wanted = this.stay.value, isControl = found.control[row];
      const isStay = wanted === "all states" || (wanted === "control" ? isControl : !isControl && STAYS[found.stay[row]] === wanted);
      return isStay && (!state.colors.size || state.colors.has(found.color[row]));
    }
    const thread = found.thread[row];
    if (kind === "tasks") return thread === TASKS;
    if (kind === "microthreads") return thread < 8;
    return true;
  }

  header() {
    return this.kind.value === "wavelets"
      ? ["cycle", "gone", "color", "from", "to", "state", "wavelet"]
      : ["cycle", "end", "cycles", "thread", "name", "elements", "place"];
  }

  cells(row) {
    const { found } = this;
    if (this.kind.value === "wavelets") {
      const gone = found.gone[row] < 0 ? "" : count(found.gone[row]);
      const stay = found.control[row] ? `control, ${STAYS[found.stay[row]]}` : STAYS[found.stay[row]];
      return [count(found.landed[row]), gone, String(found.color[row]), DIRECTIONS[found.link[row]] ?? "host",
        sides(found.outputs[row]), stay, FORMATS[this.format.value](found.data[row])];
    }
    const place = this.head.places?.[found.place[row]];
    return [count(found.begin[row]), count(found.end[row]), count(found.end[row] - found.begin[row]),
      this.head.threads[found.thread[row]], this.head.names[found.name[row]],
      found.thread[row] === TASKS ? "" : count(found.elements[row]),
      place ? `${shortName(this.head.sources[place[0]]?.[0] ?? "?")}:${place[1]}` : ""];
  }

  statistics() {
    const sums = new Map();
    for (let row = 0; row < this.found.length; row++) {
      const key = `${this.head.threads[this.found.thread[row]]} ${this.head.names[this.found.name[row]]}`;
      const sum = sums.get(key) ?? { times: 0, cycles: 0, elements: 0 };
      sum.times++;
      sum.cycles += this.found.end[row] - this.found.begin[row];
      sum.elements += this.found.elements[row];
      sums.set(key, sum);
    }
    const ordered = [...sums].sort((a, b) => b[1].cycles - a[1].cycles);
    this.rows = [];
    this.told.textContent = "What each task and operation of the PE took in the whole run.";
    const line = (cells, role) => make("div", { role: "row", class: role === "cell" ? "row" : "row head" }, ...cells.map((one) => make("span", { role }, one)));
    this.body.replaceChildren(
      line(["what", "times", "cycles", "of the run", "elements"], "columnheader"),
      ...ordered.map(([name, one]) => line([name, count(one.times), count(one.cycles), share(one.cycles, this.head.cycles), count(one.elements)], "cell")));
    this.body.dataset.columns = "statistics";
  }

  // Rows that are on the screen; the table says how many there are.
  draw() {
    if (this.kind.value === "statistics" && this.rows.length === 0) return;
    const { body, rows } = this, first = Math.max(0, Math.floor(body.scrollTop / ROW) - 4);
    const last = Math.min(rows.length, first + Math.ceil(body.clientHeight / ROW) + 8);
    body.setAttribute("aria-rowcount", String(rows.length + 1));
    body.dataset.columns = this.kind.value === "wavelets" ? "wavelets" : "spans";
    const space = make("div", { role: "presentation" });
    space.style.height = `${rows.length * ROW}px`;
    const shown = [];
    for (let index = first; index < last; index++) shown.push(this.#line(index));
    const head = make("div", { role: "row", class: "row head" }, ...this.header().map((one) => make("span", { role: "columnheader" }, one)));
    const moved = make("div", { class: "moved", role: "rowgroup" }, ...shown);
    moved.style.transform = `translateY(${first * ROW}px)`;
    space.append(moved);
    body.replaceChildren(head, space);
  }

  #line(index) {
    const row = this.rows[index], isChosen = this.#isChosen(row);
    return make("div", {
      role: "row", class: isChosen ? "row chosen" : "row", "aria-rowindex": String(index + 2), "aria-selected": String(isChosen), click: () => this.choose(index),
    }, ...this.cells(row).map((one) => make("span", { role: "cell", title: one }, one)));
  }

  #isChosen(row) {
    if (this.kind.value === "wavelets") return this.found.wavelet[row] === state.wavelet;
    return this.found.offset + row === state.span;
  }

  choose(index) {
    const row = this.rows[index], { found } = this;
    this.index = index;
    this.isOwn = true;
    if (this.kind.value === "wavelets") set({ cycle: found.landed[row], wavelet: found.wavelet[row], span: -1 });
    else {
      const line = this.head.places?.[found.place[row]] ?? null;
      set({ cycle: found.begin[row], span: found.offset + row, wavelet: -1, line });
    }
    this.isOwn = false;
  }

  // Scroll to what begins at the cycle, unless the table has said the cycle.
  reveal() {
    if (this.isOwn || !this.rows.length || this.body.matches(":hover")) return;
    const begins = this.found[this.kind.value === "wavelets" ? "landed" : "begin"];
    let low = 0, high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (begins[this.rows[middle]] < state.cycle) low = middle + 1;
      else high = middle;
    }
    this.body.scrollTop = Math.max(0, low * ROW - this.body.clientHeight / 2);
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || !this.rows.length) return;
    this.choose(Math.max(0, Math.min(this.rows.length - 1, (this.index ?? -1) + by)));
    this.body.scrollTop = this.index * ROW - this.body.clientHeight / 2;
    event.preventDefault();
    event.stopPropagation();
  }
}
