// Keys of the whole page; panes that have the focus have their own as well.
import state, { set } from "#state";

export const KEYS = [
  ["← →", "one cycle back, on; with Shift ten, with Alt a hundred"],
  ["Space", "play on; with Shift back"], ["Home End", "first and last cycle"],
  ["/", "search"], ["d", "dark or light"], ["1 2 3 4 5 6", "wafer, trace, source, memory, debugger, timeline"],
  ["a", "the chosen PE into the timeline"], ["f", "fit the whole run"], ["?", "this list"],
  ["on the wafer", "arrows choose a PE, + - zoom, Home all of it, Enter into the timeline"],
  ["on the timeline", "↑ ↓ the item before, after; + - 0 zoom; Page keys move"],
];

export function listen(most, acts) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    const step = event.altKey ? 100 : event.shiftKey ? 10 : 1;
    const cycle = (to) => set({ cycle: Math.max(0, Math.min(most, to)), playing: 0 });
    if (event.key === "ArrowRight") cycle(state.cycle + step);
    else if (event.key === "ArrowLeft") cycle(state.cycle - step);
    else if (event.key === "Home") cycle(0);
    else if (event.key === "End") cycle(most);
    else if (event.key === " ") acts.play(event.shiftKey ? -1 : 1);
    else if (acts[event.key]) acts[event.key]();
    else return;
    if (event.target.matches("button") && event.key === " ") return;
    event.preventDefault();
  });
}
