// Variables and memory of a PE at a cycle; the server does the run again up to there.
import state, { set, watch } from "#state";
import { count, make } from "#words";

const WAIT = 250, WORDS = 8;

export class Memory {
  constructor(pane, isServed) {
    Object.assign(this, { pane, isServed });
    this.text = make("input", { type: "search", placeholder: "filter by name", "aria-label": "Filter of symbols", input: () => this.draw() });
    this.note = make("p", { class: "note", role: "status" });
    this.body = make("div", { class: "symbols", tabindex: "0" });
    pane.append(make("div", { class: "tools" }, this.text), this.note, this.body);
    this.debug = document.getElementById("pane-debug");
    watch(["pe", "cycle", "tab"], () => this.ask());
    watch(["looked"], () => this.take(state.looked));
  }

  ask() {
    clearTimeout(this.timer);
    const isShown = state.looked && state.looked.pe === state.pe && state.looked.cycle === state.cycle;
    if ((this.pane.hidden && this.debug.hidden) || state.playing || isShown) return;
    if (!this.isServed) { this.note.textContent = "An exported page has no memory: it is computed by openwafer view, from the run's journal."; return; }
    if (state.pe < 0) { this.note.textContent = "Choose a PE."; return; }
    this.timer = setTimeout(() => this.load(), WAIT);
  }

  async load() {
    const height = state.height, [x, y] = [Math.floor(state.pe / height), state.pe % height], { cycle } = state;
    this.note.textContent = `Doing the run again up to cycle ${count(cycle)} …`;
    const answer = await fetch(`symbols?x=${x}&y=${y}&cycle=${cycle}&page=${state.page}`);
    const found = await answer.json();
    if (cycle !== state.cycle || height * x + y !== state.pe) return;
    set({ looked: { ...found, pe: state.pe, where: `PE (${x}, ${y}) at the end of cycle ${count(found.cycle ?? cycle)}` } });
  }

  take(found) {
    this.found = found.error ? null : found;
    this.note.textContent = found.error ?? `${found.where}. ${found.frames.length ? `Waits in ${found.frames.join(", called by ")}.` : "No function waits."}`;
    this.draw();
  }

  draw() {
    if (!this.found) { this.body.replaceChildren(); return; }
    const wanted = this.text.value.toLowerCase();
    const rows = this.found.symbols.filter((one) => one.name.toLowerCase().includes(wanted)).map((one) => make("tr", {},
      make("td", {}, make("button", { class: "link", click: () => this.show(one), disabled: one.address < 0 }, one.name)),
      make("td", {}, one.type), make("td", { class: "number" }, one.address < 0 ? "" : hex(one.address)),
      make("td", { class: "value" }, one.text)));
    const head = make("tr", {}, ...["name", "type", "address", "value"].map((one) => make("th", { scope: "col" }, one)));
    this.memory = make("pre", { class: "memory", "aria-label": "Memory" });
    this.body.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)), make("h3", {}, "Memory"), this.memory);
    this.dump(0, this.found.memory.length / 2);
  }

  show(one) { this.dump(one.address, one.num_bytes); this.memory.scrollIntoView({ block: "start" }); }

  // Words in hexadecimal; of rows that are equal only the first.
  dump(begin, length) {
    const digits = this.found.memory, rows = [];
    const from = begin - begin % (2 * WORDS);
    for (let at = from, last = ""; at < Math.min(begin + length, digits.length / 2); at += 2 * WORDS) {
      const words = [];
      for (let byte = at; byte < at + 2 * WORDS && 2 * byte < digits.length; byte += 2) {
        words.push(digits.slice(2 * byte + 2, 2 * byte + 4) + digits.slice(2 * byte, 2 * byte + 2));
      }
      const row = words.join(" ");
      if (row !== last) rows.push(`${hex(at)}  ${row}`);
      else if (rows.at(-1) !== "…") rows.push("…");
      last = row;
    }
    this.memory.textContent = rows.join("\n");
  }
}

const hex = (address) => `0x${address.toString(16).padStart(4, "0")}`;
