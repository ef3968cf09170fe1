// Where a PE stands: its functions and what its machine is at; steps of its code, both ways.
import state, { set, watch } from "#state";
import { count, make, shortName } from "#words";

const WAYS = [[2, "◀ step", "Go back to the statement before"], [1, "step ▶", "Go on to the next statement"],
  [4, "◀ line", "Go back to where the PE came to the chosen line"], [3, "line ▶", "Go on to where the PE comes to the chosen line"]];

export class Debug {
  constructor(head, pane, isServed) {
    Object.assign(this, { head, pane });
    const buttons = WAYS.map(([way, text, told]) => make("button", { title: told, "aria-label": told, disabled: !isServed, click: () => this.go(way) }, text));
    this.condition = make("input", { type: "text", placeholder: "where: sum > 3", "aria-label": "Condition of ways to a line, as CSL writes it", disabled: !isServed });
    this.note = make("p", { class: "note", role: "status" });
    this.note.textContent = isServed ? "Choose a PE." : "An exported page has no debugger: it needs openwafer view, and the run's journal.";
    this.body = make("div", { class: "symbols", tabindex: "0" });
    pane.append(make("div", { class: "tools" }, ...buttons, this.condition), this.note, this.body);
    watch(["looked"], () => this.draw());
  }

  async go(way) {
    if (state.pe < 0) { this.note.textContent = "Choose a PE."; return; }
    if (way > 2 && !state.line) { this.note.textContent = "Choose a line of the source first."; return; }
    const [x, y] = [Math.floor(state.pe / state.height), state.pe % state.height];
    const line = way > 2 ? `&source=${state.line[0]}&line=${state.line[1]}&condition=${encodeURIComponent(this.condition.value.trim())}` : "";
    this.note.textContent = "Going …";
    const { pe } = state, answer = await fetch(`symbols?x=${x}&y=${y}&cycle=${state.cycle}&way=${way}${line}&page=${state.page}`);
    const found = await answer.json();
    if (found.error) { this.note.textContent = found.error; return; }
    const place = found.place ? { line: [...found.place, ""] } : {};
    set({ looked: { ...found, pe, where: `PE (${x}, ${y}) in cycle ${count(found.cycle)}, ${found.told}` }, cycle: found.cycle, playing: 0, ...place });
  }

  draw() {
    const { looked } = state;
    if (looked.error) { this.note.textContent = looked.error; this.body.replaceChildren(); return; }
    this.note.textContent = looked.where;
    const lists = [["functions that wait", looked.frames], ...looked.machine];
    this.body.replaceChildren(...lists.flatMap(([name, lines]) => [make("h3", {}, name),
      make("ul", { class: "lines" }, ...(lines.length ? lines : ["none"]).map((one) => make("li", {}, one)))]));
    if (!looked.place) return;
    const [file, line] = looked.place;
    this.body.prepend(make("button", { class: "link", click: () => set({ line: [file, line, ""] }) },
      `${shortName(this.head.sources[file][0])}:${line}`));
  }
}
