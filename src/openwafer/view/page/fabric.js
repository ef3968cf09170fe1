// The wafer: PEs in the colors of a layer, routes, wavelets on their way; pan and zoom.
import state, { set, watch } from "#state";
import { DIRECTIONS, STAYS, STEPS, color, count, drawing, hue, say } from "#words";

const ROUTES_FROM = 14, GRID_FROM = 6, MOST_PES = 2500, SHADES = 256;

export class Fabric {
  constructor(columns, canvas) {
    Object.assign(this, { columns, canvas, head: columns.head });
    const { width, height } = this.head;
    this.image = new OffscreenCanvas(width, height);
    this.marks = new OffscreenCanvas(width, height);
    this.values = null;
    this.passes = new Map();
    this.scale = 0;
    this.redraw = drawing(canvas, (context, w, h) => this.draw(context, w, h));
    watch(["cycle", "layer"], () => this.paint());
    watch(["colors", "position"], () => this.mark());
    watch(["pe", "wavelet", "cycle", "theme"], () => { this.follow(); this.redraw(); });
    watch(["theme"], () => this.paint());
    this.listen();
  }

  async load() {
    [this.routesOf, this.imageOf] = await Promise.all(
      ["routes_of", "image_of"].map((name) => this.columns.part(name)));
    this.switches = null;
    if (this.columns.length("switch.cycle")) {
      const [first, cycle, of, position] = await Promise.all(
        ["first", "cycle", "color", "position"].map((name) => this.columns.part(`switch.${name}`)));
      this.switches = { first, cycle, color: of, position };
    }
    this.mark();
    await this.paint();
  }

  number(x, y) { return x * this.head.height + y; }

  place(pe) { return [Math.floor(pe / this.head.height), pe % this.head.height]; }

  layers() {
    const names = { image: "code" };
    const words = { task: "tasks at the cycle", operation: "operations at the cycle", traffic: "wavelets at the cycle" };
    const found = {};
    for (const one of this.head.course?.layers ?? []) found[one] = words[one];
    Object.assign(found, names);
    (this.head.map?.layers ?? []).forEach((name, index) => { found[`map ${index}`] = `${name}, whole run`; });
    return found;
  }

  // The share, 0 to 255, of each PE in the layer.
  async #values() {
    const { width, height, course, map } = this.head, num = width * height;
    if (state.layer.startsWith("map ")) {
      const index = Number(state.layer.slice(4)), cells = map.columns * map.rows;
      const cycles = await this.columns.part("map", index * cells, (index + 1) * cells);
      const most = this.head.cycles || 1;
      return Uint8Array.from({ length: num }, (_, pe) => {
        const [x, y] = this.place(pe);
        return 255 * cycles[Math.floor(y / map.pes) * map.columns + Math.floor(x / map.pes)] / most;
      });
    }
    if (state.layer === "image" || !course) return this.imageOf;
    const bin = Math.min(Math.floor(state.cycle / course.bin_cycles), this.columns.length(`course.${state.layer}`) / num - 1);
    return this.columns.part(`course.${state.layer}`, bin * num, (bin + 1) * num);
  }

  async paint() {
    const asked = (this.asked = (this.asked ?? 0) + 1);
    const values = await this.#values();
    if (asked !== this.asked) return;
    const { width, height } = this.head, context = this.image.getContext("2d");
    const pixels = context.createImageData(width, height), table = this.#table();
    const cells = new Uint32Array(pixels.data.buffer);
    for (let x = 0, pe = 0; x < width; x++) {
      for (let y = 0; y < height; y++, pe++) cells[y * width + x] = table[values[pe] & 255];
    }
    context.putImageData(pixels, 0, 0);
    this.values = values;
    this.redraw();
  }

  #table() {
    const pen = new OffscreenCanvas(SHADES, 1).getContext("2d", { willReadFrequently: true });
    if (state.layer === "image") {
      for (let n = 0; n < SHADES; n++) { pen.fillStyle = hue(n, 62); pen.fillRect(n, 0, 1, 1); }
    } else {
      const shades = pen.createLinearGradient(0, 0, SHADES, 0);
      ["--cold", "--warm", "--hot"].forEach((name, n) => shades.addColorStop(n / 2, color(name)));
      pen.fillStyle = shades;
      pen.fillRect(0, 0, SHADES, 1);
    }
    return new Uint32Array(pen.getImageData(0, 0, SHADES, 1).data.buffer);
  }

  // PEs that a chosen color passes, for a wafer that is too small on the screen for lines.
  mark() {
    if (!this.routesOf) return;
    const { width, height } = this.head, context = this.marks.getContext("2d");
    const pixels = context.createImageData(width, height), cells = new Uint32Array(pixels.data.buffer);
    const has = this.head.routes.map((own) => own.some(([one]) => state.colors.has(one)));
    for (let pe = 0; pe < width * height; pe++) {
      const [x, y] = this.place(pe);
      if (has[this.routesOf[pe]]) cells[y * width + x] = 0xd02020e0;
    }
    context.putImageData(pixels, 0, 0);
    this.redraw();
  }

  // Inputs and outputs of a color at a PE, at the switch position of the cycle or of the choice.
  route(pe, wanted) {
    const own = this.head.routes[this.routesOf[pe]].find(([one]) => one === wanted);
    if (!own) return null;
    let position = own[1];
    if (state.position >= 0) position = Math.min(state.position, own[2].length - 1);
    else if (this.switches) {
      const { first, cycle, color: of, position: to } = this.switches;
      for (let row = first[pe]; row < first[pe + 1] && cycle[row] <= state.cycle; row++) {
        if (of[row] === wanted) position = to[row];
      }
    }
    const [rx, tx] = own[2][Math.min(position, own[2].length - 1)];
    return { rx, tx, position, positions: own[2].length };
  }

  fit() {
    const { clientWidth, clientHeight } = this.canvas, { width, height } = this.head;
    this.scale = Math.min(clientWidth / (width + 1), clientHeight / (height + 1), 120);
    this.left = (clientWidth - width * this.scale) / 2;
    this.top = (clientHeight - height * this.scale) / 2;
    this.redraw();
  }

  zoom(factor, atX = this.canvas.clientWidth / 2, atY = this.canvas.clientHeight / 2) {
    const scale = Math.max(0.25, Math.min(200, this.scale * factor));
    this.left = atX - (atX - this.left) * scale / this.scale;
    this.top = atY - (atY - this.top) * scale / this.scale;
    this.scale = scale;
    this.redraw();
  }

  center(pe, scale = Math.max(this.scale, 48)) {
    const [x, y] = this.place(pe);
    this.scale = scale;
    this.left = this.canvas.clientWidth / 2 - (x + 0.5) * scale;
    this.top = this.canvas.clientHeight / 2 - (y + 0.5) * scale;
    this.redraw();
  }

  // Rectangle of PEs that are on the screen.
  visible() {
    const { width, height } = this.head;
    const edge = (from, size) => Math.max(0, Math.floor(-from / this.scale)) + size;
    return {
      x0: edge(this.left, 0), y0: edge(this.top, 0),
      x1: Math.min(width, Math.ceil((this.canvas.clientWidth - this.left) / this.scale)),
      y1: Math.min(height, Math.ceil((this.canvas.clientHeight - this.top) / this.scale)),
    };
  }

  draw(context, w, h) {
    if (!this.values) return;
    if (!this.scale) this.fit();
    const { width, height } = this.head, { scale, left, top } = this;
    context.fillStyle = color("--paper");
    context.fillRect(0, 0, w, h);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, left, top, width * scale, height * scale);
    const seen = this.visible(), num = (seen.x1 - seen.x0) * (seen.y1 - seen.y0);
    const isClose = scale >= ROUTES_FROM && num <= MOST_PES;
    if (!isClose && state.colors.size) context.drawImage(this.marks, left, top, width * scale, height * scale);
    if (scale >= GRID_FROM) this.#grid(context, seen);
    if (isClose) this.#close(context, seen);
    this.#way(context);
    if (state.pe >= 0) this.#frame(context, state.pe, color("--ink"), 2.5);
    if (width * scale > w * 1.3 || height * scale > h * 1.3) this.#inset(context, w, h);
  }

  #grid(context, { x0, y0, x1, y1 }) {
    context.strokeStyle = color("--paper");
    context.lineWidth = Math.min(4, this.scale / 14);
    context.beginPath();
    for (let x = x0; x <= x1; x++) {
      context.moveTo(this.left + x * this.scale, this.top + y0 * this.scale);
      context.lineTo(this.left + x * this.scale, this.top + y1 * this.scale);
    }
    for (let y = y0; y <= y1; y++) {
      context.moveTo(this.left + x0 * this.scale, this.top + y * this.scale);
      context.lineTo(this.left + x1 * this.scale, this.top + y * this.scale);
    }
    context.stroke();
  }

  #close(context, { x0, y0, x1, y1 }) {
    const chosen = [...state.colors].sort((a, b) => a - b);
    for (let x = x0; x < x1; x++) {
      for (let y = y0; y < y1; y++) {
        const pe = this.number(x, y);
        chosen.forEach((one, index) => this.#route(context, pe, one, index, chosen.length));
        this.#wavelets(context, pe, chosen);
        if (this.scale > 56) {
          context.fillStyle = color("--ink");
          context.font = "10px system-ui";
          context.fillText(`${x}, ${y}`, this.left + x * this.scale + 5, this.top + (y + 1) * this.scale - 6);
        }
      }
    }
  }

  // Where the lines of a color cross in a PE, so that several do not cover each other.
  #middle(pe, index, num) {
    const [x, y] = this.place(pe), shift = num > 1 ? (index / (num - 1) - 0.5) * 0.5 : 0;
    return [this.left + (x + 0.5 + shift) * this.scale, this.top + (y + 0.5 + shift) * this.scale, shift];
  }

  #route(context, pe, one, index, num) {
    const route = this.route(pe, one);
    if (!route) return;
    const [midX, midY] = this.#middle(pe, index, num), [x, y] = this.place(pe);
    const half = this.scale / 2, cx = this.left + (x + 0.5) * this.scale, cy = this.top + (y + 0.5) * this.scale;
    context.strokeStyle = context.fillStyle = hue(one, 45);
    context.lineWidth = Math.max(1.2, this.scale / 26);
    for (let side = 0; side < 4; side++) {
      const goes = route.tx >> side & 1, comes = route.rx >> side & 1;
      if (!goes && !comes) continue;
      const [dx, dy] = STEPS[side];
      const endX = dx ? cx + dx * half : midX, endY = dy ? cy + dy * half : midY;
      context.beginPath();
      context.moveTo(midX, midY);
      context.lineTo(endX, endY);
      context.stroke();
      if (goes) arrow(context, endX, endY, dx, dy, this.scale / 9);
    }
    const size = this.scale / 13;
    context.beginPath();
    if (route.tx >> 4 & 1) context.arc(midX, midY, size * 1.25, 0, 7);
    else if (route.rx >> 4 & 1) context.rect(midX - size, midY - size, 2 * size, 2 * size);
    context.fill();
  }

  #wavelets(context, pe, chosen) {
    const own = this.passes.get(pe);
    if (!own) {
      if (own === undefined && this.columns.has("pass.first")) {
        this.passes.set(pe, null);
        this.columns.rows("pass", pe).then((rows) => { this.passes.set(pe, rows); this.redraw(); });
      }
      return;
    }
    const { landed, gone } = own, now = state.cycle;
    for (let row = before(landed, now) - 1, n = 0; row >= 0 && n < 64; row--, n++) {
      const until = gone[row] < 0 ? Infinity : gone[row];
      if (until <= now || landed[row] > now) continue;
      const index = chosen.indexOf(own.color[row]);
      const [x, y] = this.#middle(pe, Math.max(0, index), index < 0 ? 1 : chosen.length);
      context.beginPath();
      context.arc(x, y, Math.max(3, this.scale / 11), 0, 7);
      context.fillStyle = color(own.control[row] ? "--control" : `--${STAYS[own.stay[row]].replace(" ", "-")}`);
      context.fill();
      context.lineWidth = 1.5;
      context.strokeStyle = color("--paper");
      context.stroke();
    }
  }

  // The ways of the wavelet that is chosen.
  async follow() {
    if (state.wavelet === this.followed) return;
    this.followed = state.wavelet;
    this.way = state.wavelet < 0 ? null : await this.columns.rows("way", state.wavelet);
    this.redraw();
  }

  #way(context) {
    if (!this.way) return;
    const pes = new Set(this.way.pe);
    for (const pe of pes) this.#frame(context, pe, color("--accent"), 2);
  }

  #frame(context, pe, stroke, width) {
    const [x, y] = this.place(pe), size = Math.max(this.scale, 4);
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.strokeRect(this.left + x * this.scale, this.top + y * this.scale, size, size);
  }

  #inset(context, w, h) {
    const { width, height } = this.head, size = 130 / Math.max(width, height);
    const [x, y] = [w - width * size - 12, h - height * size - 12];
    this.overview = { x, y, size };
    context.globalAlpha = 0.92;
    context.drawImage(this.image, x, y, width * size, height * size);
    if (state.colors.size) context.drawImage(this.marks, x, y, width * size, height * size);
    context.globalAlpha = 1;
    context.strokeStyle = color("--muted");
    context.lineWidth = 1;
    context.strokeRect(x - 0.5, y - 0.5, width * size + 1, height * size + 1);
    const seen = this.visible();
    context.strokeStyle = color("--ink");
    context.lineWidth = 2;
    context.strokeRect(x + seen.x0 * size, y + seen.y0 * size, (seen.x1 - seen.x0) * size, (seen.y1 - seen.y0) * size);
  }

  at(event) {
    const x = Math.floor((event.offsetX - this.left) / this.scale), y = Math.floor((event.offsetY - this.top) / this.scale);
    const isIn = x >= 0 && y >= 0 && x < this.head.width && y < this.head.height;
    return isIn ? this.number(x, y) : -1;
  }

  tell(pe) {
    const [x, y] = this.place(pe), images = this.head.images;
    const routes = [...state.colors].map((one) => [one, this.route(pe, one)]).filter(([, route]) => route);
    const told = routes.map(([one, { rx, tx, position, positions }]) => {
      const names = (mask) => DIRECTIONS.filter((_, side) => mask >> side & 1).join("+") || "-";
      return `color ${one} ${names(rx)} → ${names(tx)}${positions > 1 ? ` (position ${position})` : ""}`;
    });
    return [`PE (${x}, ${y})`, images[this.imageOf[pe]], ...told].join(" · ");
  }

  listen() {
    const { canvas } = this, info = document.getElementById("fabric-info");
    let from = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      from = [event.clientX - this.left, event.clientY - this.top];
      moved = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (from) {
        const [left, top] = [event.clientX - from[0], event.clientY - from[1]];
        moved ||= Math.hypot(left - this.left, top - this.top) > 3;
        if (moved) { Object.assign(this, { left, top }); this.redraw(); }
      }
      const pe = this.at(event);
      info.textContent = pe >= 0 ? this.tell(pe) : "";
    });
    canvas.addEventListener("pointerup", (event) => {
      const pe = this.at(event);
      if (!moved && from) this.choose(pe);
      from = null;
    });
    canvas.addEventListener("dblclick", (event) => this.show(this.at(event)));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  choose(pe) {
    if (pe < 0) return;
    set({ pe });
    say(this.tell(pe));
  }

  // Bring a PE into the timeline and the panes beside.
  show(pe) {
    if (pe < 0) return;
    set({ pe, pes: state.pes.includes(pe) ? state.pes : [...state.pes, pe] });
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (moves[event.key]) {
      const [x, y] = state.pe < 0 ? [0, 0] : this.place(state.pe), [dx, dy] = moves[event.key];
      const { width, height } = this.head;
      this.choose(this.number(Math.max(0, Math.min(width - 1, x + dx)), Math.max(0, Math.min(height - 1, y + dy))));
    } else if (event.key === "+" || event.key === "=") this.zoom(1.3);
    else if (event.key === "-") this.zoom(1 / 1.3);
    else if (event.key === "Home") this.fit();
    else if (event.key === "Enter") this.show(state.pe);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function arrow(context, x, y, dx, dy, size) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x - dx * size - dy * size * 0.6, y - dy * size + dx * size * 0.6);
  context.lineTo(x - dx * size + dy * size * 0.6, y - dy * size - dx * size * 0.6);
  context.fill();
}

// How many of sorted numbers are at most a value.
export function before(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export const tellCycle = (cycle, of) => `cycle ${count(cycle)} of ${count(of)}`;
