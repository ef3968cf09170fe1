// Lanes of what PEs did along the cycles: tasks, operations, microthreads, wavelets by color.
import { before } from "#fabric";
import state, { set, watch } from "#state";
import { STAYS, color, count, drawing, hue, say } from "#words";

const LANE = 19, LABEL = 168, AXIS = 22, OVERVIEW = 26, FIRST_CYCLES = 600;
const TASKS = 9, MAIN = 8;

export class Timeline {
  constructor(columns, canvas) {
    Object.assign(this, { columns, canvas, head: columns.head, lanes: [], top: 0 });
    this.isTrace = this.head.kind === "trace";
    this.begin = 0;
    this.end = (this.isTrace ? this.head.cycles : Math.min(this.head.cycles, FIRST_CYCLES)) || 1;
    this.redraw = drawing(canvas, (context, w, h) => this.draw(context, w, h));
    watch(["pes", "colors"], () => this.load());
    watch(["cycle"], () => this.follow());
    watch(["cycle", "span", "wavelet", "pe", "theme"], () => this.redraw());
    this.listen();
  }

  async load() {
    const asked = (this.asked = (this.asked ?? 0) + 1), lanes = [];
    if (this.head.host?.length) lanes.push(host(this.head.host));
    const all = this.isTrace ? this.head.tracks.map((_, track) => track) : state.pes;
    for (const pe of all) {
      const rows = await this.columns.rows("span", pe);
      lanes.push(...(this.isTrace ? [track(rows, pe, this.head.tracks[pe])] : this.#threads(rows, pe)));
      if (!this.isTrace) lanes.push(...await this.#wavelets(pe));
    }
    if (asked !== this.asked) return;
    this.lanes = lanes;
    this.density = this.density ?? await this.#density();
    this.redraw();
  }

  // How busy the whole is, bin by bin, for the bar above.
  async #density() {
    const { course, width, height } = this.head, num = width * height;
    if (!course || this.columns.length("course.task") > 1 << 23) return null;
    const [tasks, operations] = await Promise.all(["task", "operation"].map((one) => this.columns.part(`course.${one}`)));
    const found = new Float64Array(tasks.length / num);
    for (let cell = 0; cell < tasks.length; cell++) {
      found[Math.floor(cell / num)] += Math.max(tasks[cell], operations[cell]);
    }
    const most = Math.max(...found) || 1;
    return found.map((one) => one / most);
  }

  #threads(rows, pe) {
    const [x, y] = [Math.floor(pe / this.head.height), pe % this.head.height];
    const lanes = [];
    for (const thread of [TASKS, MAIN, 0, 1, 2, 3, 4, 5, 6, 7]) {
      const which = [];
      for (let row = 0; row < rows.length; row++) if (rows.thread[row] === thread) which.push(row);
      if (!which.length && thread !== TASKS) continue;
      const short = this.head.threads[thread].replace("microthread", "thread").replace("main", "operations");
      lanes.push(lane(`(${x}, ${y}) ${short}`, pe, rows, which, "begin", "end", "span"));
    }
    return lanes;
  }

  async #wavelets(pe) {
    if (!state.colors.size) return [];
    const rows = await this.columns.rows("pass", pe), lanes = [];
    const [x, y] = [Math.floor(pe / this.head.height), pe % this.head.height];
    for (const one of [...state.colors].sort((a, b) => a - b)) {
      const which = [];
      for (let row = 0; row < rows.length; row++) if (rows.color[row] === one) which.push(row);
      if (which.length) lanes.push(lane(`(${x}, ${y}) color ${one}`, pe, rows, which, "landed", "gone", "pass"));
    }
    return lanes;
  }

  x(cycle, w) { return LABEL + (cycle - this.begin) * (w - LABEL) / (this.end - this.begin); }

  cycle(x, w) { return this.begin + (x - LABEL) * (this.end - this.begin) / (w - LABEL); }

  // Show other cycles; at least four, at most all.
  look(begin, end) {
    const whole = this.head.cycles || 1, size = Math.min(whole, Math.max(this.isTrace ? 0.01 : 4, end - begin));
    this.begin = Math.max(0, Math.min(whole - size, begin));
    this.end = this.begin + size;
    this.redraw();
  }

  zoom(factor, at = (this.begin + this.end) / 2) {
    this.look(at - (at - this.begin) * factor, at + (this.end - at) * factor);
  }

  // Keep the cycle in sight.
  follow() {
    const size = this.end - this.begin;
    if (state.cycle < this.begin || state.cycle > this.end) this.look(state.cycle - size / 2, state.cycle + size / 2);
  }

  draw(context, w, h) {
    this.paper = { ink: color("--ink"), muted: color("--muted"), paper: color("--paper"), grid: color("--grid"), accent: color("--accent") };
    this.stays = STAYS.map((one) => color(`--${one.replace(" ", "-")}`));
    this.control = color("--control");
    context.fillStyle = this.paper.paper;
    context.fillRect(0, 0, w, h);
    this.#axis(context, w, h);
    const room = h - OVERVIEW - AXIS;
    this.top = Math.max(0, Math.min(this.top, this.lanes.length * LANE - room));
    context.save();
    context.beginPath();
    context.rect(0, OVERVIEW + AXIS, w, room);
    context.clip();
    this.lanes.forEach((one, index) => {
      const y = OVERVIEW + AXIS + index * LANE - this.top;
      if (y > OVERVIEW + AXIS - LANE && y < h) this.#lane(context, one, y, w);
    });
    context.restore();
    this.#overview(context, w);
    this.#cursor(context, w, h);
  }

  #axis(context, w, h) {
    const size = this.end - this.begin, step = tick(size / Math.max(2, (w - LABEL) / 110));
    context.font = "11px system-ui";
    context.textAlign = "center";
    for (let at = Math.ceil(this.begin / step) * step; at <= this.end; at += step) {
      const x = this.x(at, w);
      context.fillStyle = this.paper.grid;
      context.fillRect(x, OVERVIEW + AXIS - 4, 1, h);
      context.fillStyle = this.paper.muted;
      context.fillText(step < 1 ? at.toFixed(2) : count(at), x, OVERVIEW + AXIS - 8);
    }
    context.textAlign = "left";
    context.fillText(this.isTrace ? "microseconds" : "cycles", 8, OVERVIEW + AXIS - 8);
  }

  #lane(context, one, y, w) {
    context.fillStyle = one.pe === state.pe && !this.isTrace ? this.paper.ink : this.paper.muted;
    context.font = "12px system-ui";
    context.fillText(one.name, 8, y + 13, LABEL - 30);
    if (one.isFirst) context.fillText("×", LABEL - 16, y + 13);
    context.fillStyle = this.paper.grid;
    context.fillRect(LABEL, y + LANE - 1, w, 1);
    const { begins, ends } = one, scale = (w - LABEL) / (this.end - this.begin);
    let index = before(one.latest, this.begin);
    context.font = "11px system-ui";
    while (index < begins.length && begins[index] < this.end) {
      const end = ends[index] < 0 ? this.head.cycles : ends[index];
      const x0 = Math.max(LABEL, LABEL + (begins[index] - this.begin) * scale);
      const x1 = Math.max(x0 + 1, Math.min(w, LABEL + (end - this.begin) * scale));
      context.fillStyle = this.#fill(one, index);
      context.fillRect(x0, y + 2, x1 - x0 - (x1 - x0 > 3 ? 0.6 : 0), LANE - 5);
      if (x1 - x0 > 46) this.#text(context, one, index, x0, y, x1);
      if (this.#isChosen(one, index)) {
        context.strokeStyle = this.paper.ink;
        context.lineWidth = 2;
        context.strokeRect(x0, y + 2, x1 - x0, LANE - 5);
      }
      // What lies in the pixel that is drawn is not looked at.
      const next = x1 - x0 <= 1 ? before(one.latest, this.begin + (x1 - LABEL) / scale) : 0;
      index = Math.max(index + 1, next);
    }
  }

  #fill(one, index) {
    if (one.kind === "pass") return one.rows.control[one.which[index]] ? this.control : this.stays[one.rows.stay[one.which[index]]];
    if (one.kind === "host") return this.paper.accent;
    return hue(one.rows.name[one.which[index]], 52);
  }

  #text(context, one, index, x0, y, x1) {
    context.fillStyle = "#fff";
    context.save();
    context.beginPath();
    context.rect(x0, y, x1 - x0 - 3, LANE);
    context.clip();
    context.fillText(this.name(one, index), x0 + 4, y + 13);
    context.restore();
  }

  name(one, index) {
    if (one.kind === "host") return one.names[index];
    if (one.kind === "pass") return `0x${one.rows.data[one.which[index]].toString(16)}`;
    return this.head.names[one.rows.name[one.which[index]]];
  }

  #isChosen(one, index) {
    if (one.kind === "span") return one.rows.offset + one.which[index] === state.span;
    return one.kind === "pass" && one.rows.wavelet[one.which[index]] === state.wavelet;
  }

  #overview(context, w) {
    const whole = this.head.cycles || 1, scale = (w - LABEL) / whole;
    context.fillStyle = this.paper.grid;
    context.fillRect(LABEL, 4, w - LABEL, OVERVIEW - 8);
    if (this.density) {
      context.fillStyle = this.paper.muted;
      const bin = this.head.course.bin_cycles;
      this.density.forEach((one, n) => {
        const x = LABEL + n * bin * scale;
        context.fillRect(x, OVERVIEW - 4 - one * (OVERVIEW - 8), Math.max(1, bin * scale), one * (OVERVIEW - 8));
      });
    }
    const [x0, x1] = [LABEL + this.begin * scale, LABEL + this.end * scale];
    context.strokeStyle = this.paper.accent;
    context.lineWidth = 2;
    context.strokeRect(x0, 3, Math.max(3, x1 - x0), OVERVIEW - 6);
    context.fillStyle = this.paper.muted;
    context.font = "11px system-ui";
    context.fillText("whole run", 8, 17);
  }

  #cursor(context, w, h) {
    const x = this.x(state.cycle, w);
    context.fillStyle = this.paper.accent;
    if (x >= LABEL) context.fillRect(x - 0.5, OVERVIEW, 1.5, h);
    context.fillRect(LABEL + state.cycle * (w - LABEL) / (this.head.cycles || 1) - 0.5, 0, 1.5, OVERVIEW);
  }

  // The lane and the item below the pointer; an index of -1 where there is none.
  at(event) {
    const w = this.canvas.clientWidth;
    const one = this.lanes[Math.floor((event.offsetY - OVERVIEW - AXIS + this.top) / LANE)];
    if (event.offsetY < OVERVIEW + AXIS || !one) return [null, -1];
    const reach = (this.end - this.begin) / (w - LABEL), cycle = this.cycle(event.offsetX, w);
    for (let index = before(one.latest, cycle - 2 * reach); index < one.begins.length; index++) {
      if (one.begins[index] > cycle + reach) break;
      if (one.ends[index] < 0 || one.ends[index] > cycle - 2 * reach) return [one, index];
    }
    return [one, -1];
  }

  listen() {
    const { canvas } = this, info = document.getElementById("timeline-info");
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      drag = this.#drag(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) drag(event);
      const [one, index] = this.at(event);
      if (!state.isKept) info.textContent = index >= 0 ? this.tell(one, index) : "";
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.click(event);
      drag = null;
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const size = this.end - this.begin;
      if (event.ctrlKey || event.offsetY < OVERVIEW + AXIS || event.altKey) {
        this.zoom(Math.exp(event.deltaY / 400), this.cycle(event.offsetX, canvas.clientWidth));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = (event.deltaX || event.deltaY) * size / 900;
        this.look(this.begin + by, this.end + by);
      } else { this.top += event.deltaY; this.redraw(); }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  // What a drag does, by where it begins: move or resize the window, or move the lanes.
  #drag(event) {
    const w = this.canvas.clientWidth, whole = this.head.cycles || 1, scale = (w - LABEL) / whole;
    const from = { x: event.offsetX, y: event.offsetY, begin: this.begin, end: this.end, top: this.top };
    const isAbove = from.y < OVERVIEW, edges = [this.begin, this.end].map((one) => LABEL + one * scale);
    const edge = isAbove ? edges.findIndex((one) => Math.abs(one - from.x) < 5) : -1;
    const act = (moved) => {
      const dx = moved.offsetX - from.x, dy = moved.offsetY - from.y;
      if (Math.hypot(dx, dy) > 3) act.moved = true;
      if (!act.moved) return;
      if (edge >= 0) this.look(edge ? from.begin : from.begin + dx / scale, edge ? from.end + dx / scale : from.end);
      else {
        const by = isAbove ? dx / scale : -dx * (from.end - from.begin) / (w - LABEL);
        this.top = isAbove ? from.top : from.top - dy;
        this.look(from.begin + by, from.end + by);
      }
    };
    return act;
  }

  click(event) {
    const w = this.canvas.clientWidth, [one, index] = this.at(event);
    if (event.offsetY < OVERVIEW) {
      const cycle = (event.offsetX - LABEL) * (this.head.cycles || 1) / (w - LABEL);
      set({ cycle: this.#whole(cycle), isKept: false });
    } else if (event.offsetX < LABEL && one) {
      if (one.isFirst && event.offsetX > LABEL - 22) set({ pes: state.pes.filter((pe) => pe !== one.pe) });
      else if (one.pe >= 0) set({ pe: one.pe });
    } else this.choose(one, index, this.#whole(this.cycle(event.offsetX, w)));
  }

  #whole(cycle) {
    const most = this.head.cycles || 0;
    return Math.max(0, Math.min(most, this.isTrace ? cycle : Math.round(cycle)));
  }

  // Keep an item beside the lanes, or let go of it, and go to its cycle.
  choose(one, index, cycle = index >= 0 ? one.begins[index] : state.cycle) {
    const found = { cycle, isKept: index >= 0, span: -1, wavelet: -1 };
    if (index >= 0) {
      const row = one.which?.[index];
      if (one.pe >= 0) found.pe = one.pe;
      if (one.kind === "span") {
        found.span = one.rows.offset + row;
        found.line = this.head.places?.[one.rows.place?.[row]] ?? null;
      } else if (one.kind === "pass") found.wavelet = one.rows.wavelet[row];
      const text = this.tell(one, index);
      document.getElementById("timeline-info").textContent = text;
      say(text);
    }
    set(found);
  }

  tell(one, index) {
    const row = one.which?.[index], { rows } = one, begin = one.begins[index], end = one.ends[index];
    const unit = this.isTrace ? "µs" : "cycles", long = end < 0 ? "not ended" : `${count(end - begin)} ${unit}`;
    const told = [one.name, this.name(one, index), `from ${count(begin)}`, long];
    if (one.kind === "pass") {
      told.push(rows.control[row] ? "control" : "data", STAYS[rows.stay[row]], `wavelet ${rows.wavelet[row]}`);
    } else if (rows?.elements?.[row]) told.push(`${count(rows.elements[row])} elements`);
    const place = this.head.places?.[rows?.place?.[row]];
    if (place) told.push(`${this.head.sources[place[0]]?.[0] ?? ""}:${place[1]} (${place[2]})`);
    if (this.isTrace) told.push(this.head.details[rows.offset + row]);
    return told.filter(Boolean).join(" · ");
  }

  key(event) {
    const size = this.end - this.begin;
    if (event.key === "+" || event.key === "=") this.zoom(1 / 1.4, state.cycle);
    else if (event.key === "-") this.zoom(1.4, state.cycle);
    else if (event.key === "0") this.look(0, this.head.cycles);
    else if (event.key === "PageDown") this.look(this.begin + size, this.end + size);
    else if (event.key === "PageUp") this.look(this.begin - size, this.end - size);
    else if (event.key === "Tab" || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    else this.#step(event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
    event.stopPropagation();
  }

  // Go to the next item of the selected PE's lanes, or the one before.
  #step(by) {
    const lanes = this.lanes.filter((one) => one.pe === state.pe || state.pe < 0);
    let found = null;
    for (const one of lanes) {
      one.begins.forEach((begin, index) => {
        const away = (begin - state.cycle) * by;
        if (away > 0 && (!found || away < found.away)) found = { one, index, away };
      });
    }
    if (found) this.choose(found.one, found.index);
  }
}

function host(operations) {
  const [names, begins, ends] = [0, 1, 2].map((n) => operations.map((one) => one[n]));
  return { name: "host", pe: -1, kind: "host", names, begins, ends, latest: highest(ends) };
}

function track(rows, number, name) {
  const all = Array.from({ length: rows.length }, (_, row) => row);
  return { ...lane(name, number, rows, all, "begin", "end", "span"), isFirst: false };
}

function lane(name, pe, rows, which, begin, end, kind) {
  const pick = (from) => which.map((row) => from[row]);
  const begins = pick(rows[begin]), ends = pick(rows[end]);
  return { name, pe, kind, rows, which, begins, ends, latest: highest(ends), isFirst: name.endsWith(" tasks") };
}

// The latest end up to each item, which is sorted even where ends are not.
function highest(ends) {
  let most = 0;
  return ends.map((one) => (most = Math.max(most, one < 0 ? Infinity : one)));
}

function tick(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((one) => one * power >= least);
}
