// Puts the panes together.
import { Columns } from "#columns";
import { Debug } from "#debug";
import { Fabric } from "#fabric";
import { KEYS, listen } from "#keys";
import { follow, remembered } from "#live";
import { Memory } from "#memory";
import { Search } from "#search";
import { Detail, Source } from "#source";
import state, { set, watch } from "#state";
import { Timeline } from "#timeline";
import { Traces } from "#traces";
import { count, drawing, hue, make, shortName } from "#words";

const $ = (id) => document.getElementById(id);
const isServed = !$("data").textContent.trim();

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").setAttribute("aria-pressed", String(name === "dark"));
  set({ theme: name });
}

function tabs() {
  for (const button of document.querySelectorAll("[data-tab]")) {
    button.addEventListener("click", () => tab(button.dataset.tab));
  }
}

function tab(name) {
  for (const button of document.querySelectorAll("[data-tab]")) {
    button.setAttribute("aria-selected", String(button.dataset.tab === name));
    $(`pane-${button.dataset.tab}`).hidden = button.dataset.tab !== name;
  }
  set({ tab: {} });
}

// Panes go and come back; one of them may fill the page.
function panes() {
  for (const button of document.querySelectorAll("[data-pane]")) {
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(isOn));
      $(button.dataset.pane).hidden = !isOn;
      document.body.classList.toggle(`no-${button.dataset.pane}`, !isOn);
    });
  }
  for (const button of document.querySelectorAll("[data-expand]")) {
    button.addEventListener("click", () => {
      const isOn = $(button.dataset.expand).classList.toggle("expanded");
      button.setAttribute("aria-pressed", String(isOn));
    });
  }
  for (const handle of document.querySelectorAll("[data-resize]")) resize(handle);
}

function resize(handle) {
  const [name, axis] = handle.dataset.resize.split(" ");
  const change = (by) => {
    const size = parseFloat(getComputedStyle(document.body).getPropertyValue(name)) - by;
    document.body.style.setProperty(name, `${Math.max(80, size)}px`);
  };
  handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
  handle.addEventListener("pointermove", (event) => {
    if (handle.hasPointerCapture(event.pointerId)) change(axis === "x" ? event.movementX : event.movementY);
  });
  handle.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -20, ArrowUp: -20, ArrowRight: 20, ArrowDown: 20 }[event.key];
    if (by) { change(by); event.preventDefault(); event.stopPropagation(); }
  });
}

// Colors that have a route, with their names, to be shown or not.
function colors(head) {
  head.used = new Set(head.routes.flatMap((own) => own.map(([one]) => one)));
  const boxes = [...head.used].sort((a, b) => a - b).map((one) => {
    const box = make("input", { type: "checkbox", id: `color-${one}`, change: () => {
      const chosen = new Set(state.colors);
      if (box.checked) chosen.add(one); else chosen.delete(one);
      set({ colors: chosen });
    } });
    const mark = make("span", { class: "mark" });
    mark.style.background = hue(one, 45);
    const names = head.colors[one];
    return make("li", {}, make("label", { for: `color-${one}` }, box, mark, ` ${one}`),
      names.length ? make("details", {}, make("summary", {}, names[0]), ...names.slice(1).map((name) => make("div", {}, name))) : "");
  });
  $("colors").append(...boxes);
  if (!boxes.length) $("colors").append(make("li", { class: "note" }, "no color has a route"));
  $("all").addEventListener("click", () => set({ colors: new Set(head.used) }));
  $("none").addEventListener("click", () => set({ colors: new Set() }));
  watch(["colors"], () => {
    for (const one of head.used) $(`color-${one}`).checked = state.colors.has(one);
  });
}

function layers(fabric) {
  const all = fabric.layers();
  $("layer").append(...Object.entries(all).map(([value, told]) => make("option", { value }, told)));
  $("layer").addEventListener("change", () => set({ layer: $("layer").value }));
  $("position").addEventListener("change", () => set({ position: Number($("position").value) }));
  set({ layer: Object.keys(all)[0] });
}

// The slider, and playing both ways: cycles a second, by the clock.
function transport(head) {
  const most = Math.round(head.cycles), slider = $("cycle"), number = $("number");
  slider.max = number.max = most;
  for (const field of [slider, number]) {
    field.addEventListener("input", () => set({ cycle: Math.max(0, Math.min(most, Number(field.value))), playing: 0 }));
  }
  watch(["cycle"], () => {
    slider.value = state.cycle;
    slider.setAttribute("aria-valuetext", `cycle ${count(state.cycle)} of ${count(most)}`);
    if (document.activeElement !== number) number.value = Math.round(state.cycle);
  });
  let last = 0, exact = 0;
  function step(now) {
    if (!state.playing) return;
    if (Math.round(exact) !== state.cycle) exact = state.cycle;
    exact = Math.max(0, Math.min(most, exact + state.playing * Number($("speed").value) * (now - last) / 1000));
    last = now;
    const isAtEnd = exact === (state.playing > 0 ? most : 0);
    set({ cycle: Math.round(exact), ...(isAtEnd ? { playing: 0 } : {}) });
    requestAnimationFrame(step);
  }
  const play = (way) => {
    const isNew = !state.playing;
    set({ playing: state.playing === way ? 0 : way });
    exact = state.cycle;
    last = performance.now();
    if (isNew && state.playing) requestAnimationFrame(step);
  };
  $("play").addEventListener("click", () => play(1));
  $("back").addEventListener("click", () => play(-1));
  watch(["playing"], () => {
    $("play").setAttribute("aria-pressed", String(state.playing === 1));
    $("back").setAttribute("aria-pressed", String(state.playing === -1));
  });
  return play;
}

function help() {
  $("keys").append(...KEYS.map(([key, told]) => make("tr", {}, make("th", { scope: "row" }, key), make("td", {}, told))));
  $("help").addEventListener("click", () => $("help-box").showModal());
}

function wafer(columns, timeline, play) {
  const { head } = columns, fabric = new Fabric(columns, $("fabric-canvas"));
  set({ height: head.height });
  colors(head);
  layers(fabric);
  const traces = new Traces(columns, $("pane-trace"));
  new Source(columns, $("pane-source"));
  new Detail(columns, $("detail"), fabric);
  new Memory($("pane-memory"), isServed);
  new Debug(head, $("pane-debug"), isServed);
  new Search(head, $("search"), $("hits"), fabric);
  watch(["asked"], () => {
    const [file, line] = state.line;
    traces.text.value = `${shortName(head.sources[file][0])}:${line}`;
    traces.filter();
  });
  $("fit").addEventListener("click", () => fabric.fit());
  $("to-pe").addEventListener("click", () => state.pe >= 0 && fabric.center(state.pe));
  const act = { play, "/": () => $("search").focus(), d: () => $("theme").click(), f: () => timeline.look(0, head.cycles),
    a: () => fabric.show(state.pe), "?": () => $("help").click(), 1: () => $("fabric-canvas").focus(), 6: () => $("lanes").focus() };
  ["trace", "source", "memory", "debug"].forEach((name, index) => { act[index + 2] = () => { tab(name); $(`tab-${name}`).focus(); }; });
  listen(Math.round(head.cycles), act);
  return fabric.load().then(() => fabric);
}

function describe(head) {
  document.title = `${head.title} · openwafer`;
  $("title").textContent = head.title;
  const size = head.kind === "trace" ? `${head.tracks.length} tracks, ${count(head.cycles)} µs`
    : `${head.width} × ${head.height} PEs of ${head.arch}, ${head.cycles ? `${count(head.cycles)} cycles` : "not run: routes and source only"}`;
  $("about").textContent = size;
  const isCut = head.is_cut && document.body.dataset.live === undefined;
  $("failure").textContent = head.failure ?? (isCut ? "The run was cut short; what is shown ends there." : "");
  $("failure").hidden = !$("failure").textContent;
}

async function start() {
  const columns = await Columns.open(), { head } = columns;
  document.body.classList.add(head.kind);
  describe(head);
  tabs();
  panes();
  help();
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const timeline = new Timeline(columns, $("lanes")), play = transport(head);
  const zooms = { "zoom-in": () => timeline.zoom(1 / 1.5), "zoom-out": () => timeline.zoom(1.5),
    "zoom-reset": () => timeline.look(0, 600), "zoom-fit": () => timeline.look(0, head.cycles), "clear": () => set({ pes: [] }) };
  for (const [id, act] of Object.entries(zooms)) $(id).addEventListener("click", act);
  let fabric = null;
  if (head.kind === "wafer") fabric = await wafer(columns, timeline, play);
  else listen(head.cycles, { play });
  await timeline.load();
  if (fabric && head.width * head.height) {
    const busy = await busiest(columns);
    if (busy >= 0) set({ pe: busy, pes: [busy] });
  }
  window.openwafer = { state, set, columns, timeline, fabric, drawing };
  remembered(columns, timeline);
  if (document.body.dataset.live !== undefined) follow(columns, timeline);
  document.body.dataset.ready = "yes";
}

// The PE with most tasks and operations, which is shown first.
async function busiest(columns) {
  if (!columns.has("span.first")) return -1;
  const first = await columns.part("span.first");
  let found = 0;
  for (let pe = 1; pe < first.length - 1; pe++) {
    if (first[pe + 1] - first[pe] > first[found + 1] - first[found]) found = pe;
  }
  return found;
}

start().catch((problem) => {
  $("failure").hidden = false;
  $("failure").textContent = `The page cannot show the run: ${problem.message}`;
  document.body.dataset.ready = "failed";
  throw problem;
});
