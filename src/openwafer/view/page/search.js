// One field for PEs, cycles, colors, functions, and lines of the source.
import { set } from "#state";
import { make, shortName } from "#words";

const MOST = 12;

export class Search {
  constructor(head, field, list, fabric) {
    Object.assign(this, { head, field, list, fabric });
    field.addEventListener("focus", () => field.select());
    field.addEventListener("input", () => this.offer());
    field.addEventListener("keydown", (event) => this.key(event));
    field.addEventListener("blur", () => setTimeout(() => this.close(), 200));
  }

  // What a text may mean: its words, and what choosing it does.
  found(text) {
    const { head } = this, wanted = text.trim().toLowerCase(), hits = [];
    const place = wanted.match(/^\(?(\d+)\s*[, ]\s*(\d+)\)?$/);
    if (place && head.kind === "wafer" && place[1] < head.width && place[2] < head.height) {
      const pe = this.fabric.number(Number(place[1]), Number(place[2]));
      hits.push([`PE (${place[1]}, ${place[2]})`, () => { this.fabric.show(pe); this.fabric.center(pe); }]);
    }
    const number = wanted.match(/^(?:cycle\s*|c)?(\d+)$/);
    if (number && Number(number[1]) <= head.cycles) hits.push([`cycle ${number[1]}`, () => set({ cycle: Number(number[1]) })]);
    (head.colors ?? []).forEach((names, one) => {
      const told = `color ${one}${names.length ? `: ${names.join(", ")}` : ""}`;
      if (told.includes(wanted) && this.head.used.has(one)) hits.push([told, () => set({ colors: new Set([one]) })]);
    });
    const functions = new Map((head.places ?? []).map((one) => [`${one[2]} ${one[0]}`, one]));
    for (const [, one] of functions) {
      if (one[2].toLowerCase().includes(wanted) && one[0] >= 0) hits.push([`function ${one[2]}`, () => set({ line: one })]);
    }
    (head.sources ?? []).forEach(([name, source], file) => {
      const short = shortName(name), [asked, at] = wanted.split(":");
      if (short.toLowerCase().includes(asked)) hits.push([`${short}:${at || 1}`, () => set({ line: [file, Number(at) || 1, ""] })]);
      if (wanted.length < 3) return;
      source.split("\n").forEach((line, index) => {
        if (hits.length < 3 * MOST && line.toLowerCase().includes(wanted)) hits.push([`${short}:${index + 1}  ${line.trim().slice(0, 60)}`, () => set({ line: [file, index + 1, ""] })]);
      });
    });
    return hits.slice(0, MOST);
  }

  offer() {
    this.hits = this.field.value.trim() ? this.found(this.field.value) : [];
    this.index = 0;
    this.list.replaceChildren(...this.hits.map(([told, go], index) => make("li", {
      role: "option", id: `hit-${index}`, "aria-selected": String(index === 0), pointerdown: () => { go(); this.close(); },
    }, told)));
    if (this.field.value.trim() && !this.hits.length) this.list.append(make("li", { class: "note" }, "nothing is called so"));
    this.list.hidden = !this.field.value.trim();
    this.field.setAttribute("aria-expanded", String(!this.list.hidden));
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" && this.hits?.length) { this.hits[this.index][1](); this.close(); this.field.blur(); }
    else if (event.key === "Escape") { this.close(); this.field.blur(); }
    else if (by && this.hits?.length) {
      this.index = (this.index + by + this.hits.length) % this.hits.length;
      [...this.list.children].forEach((one, index) => one.setAttribute("aria-selected", String(index === this.index)));
      this.field.setAttribute("aria-activedescendant", `hit-${this.index}`);
      event.preventDefault();
    }
    event.stopPropagation();
  }

  close() {
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
  }
}
