// A run that goes on: the page is loaded again as there is more, and looks where it looked.
import state, { set } from "#state";
import { count } from "#words";

const KEY = "openwafer-live", WAIT = 1000;
const NAMES = ["pe", "pes", "layer", "position", "format"];

// Go where the page looked before there was more; at the end stays at the end.
export function remembered(columns, timeline) {
  const text = sessionStorage.getItem(KEY);
  if (!text) return;
  sessionStorage.removeItem(KEY);
  const found = JSON.parse(text), whole = columns.head.cycles;
  if (found.title !== columns.head.title) return;
  const known = NAMES.filter((name) => found[name] !== undefined).map((name) => [name, found[name]]);
  set({ ...Object.fromEntries(known), colors: new Set(found.colors), cycle: found.isAtEnd ? Math.round(whole) : found.cycle });
  const size = found.end - found.begin;
  if (found.isAtEnd) timeline.look(whole - size, whole);
  else timeline.look(found.begin, found.end);
  document.querySelector(`[data-tab="${found.tab}"]`)?.click();
}

function remember(columns, timeline) {
  const tab = document.querySelector("[data-tab][aria-selected=true]")?.dataset.tab;
  const whole = columns.head.cycles;
  const found = Object.fromEntries(NAMES.map((name) => [name, state[name]]));
  sessionStorage.setItem(KEY, JSON.stringify({ ...found, colors: [...state.colors], cycle: state.cycle, tab,
    title: columns.head.title, begin: timeline.begin, end: timeline.end,
    isAtEnd: state.cycle >= Math.round(whole) || timeline.end >= whole }));
}

// Ask the server whether there is more, as long as the run goes on.
export function follow(columns, timeline) {
  const note = document.getElementById("live"), shown = Number(document.body.dataset.live);
  const say = (text) => { note.hidden = false; if (note.textContent !== text) note.textContent = text; };
  const { head } = columns, hasEvents = head.kind !== "wafer" || columns.has("span.first");
  const end = hasEvents ? `what is shown ends at ${count(Math.round(head.cycles))}` : "so far its program and the host's operations are shown";
  const does = (doing) => say(`${doing || "The run goes on"}; ${end}.`);
  does(document.body.dataset.doing);
  async function ask() {
    let found;
    try {
      found = await (await fetch("progress")).json();
    } catch {
      say("openwafer view has ended; what is shown stays.");
      return;
    }
    // Who plays is not disturbed.
    if (found.version > shown && !state.playing) {
      remember(columns, timeline);
      location.reload();
      return;
    }
    if (found.told) say(`No more can be shown: ${found.told}`);
    else if (found.is_live) does(found.doing);
    if (found.is_live || found.version > shown) setTimeout(ask, WAIT);
    else say("The run is over.");
  }
  setTimeout(ask, WAIT);
}
