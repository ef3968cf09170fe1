// What is looked at. Panes watch it and change it; nothing else connects them.
const state = {
  cycle: 0, pe: -1, pes: [], colors: new Set(), layer: "", position: -1,
  span: -1, wavelet: -1, looked: null, line: null, playing: 0, speed: 1, format: "hex",
  // By which the server tells pages of one run apart.
  page: Math.floor(Math.random() * 2 ** 31),
};
const watchers = [];

export default state;

// Call a function with the names of what has changed, whenever one of these names is among them.
export function watch(names, call) { watchers.push([names, call]); }

export function set(changes) {
  const changed = Object.keys(changes).filter(
    (name) => typeof changes[name] === "object" || state[name] !== changes[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  for (const [names, call] of watchers) {
    if (names.some((name) => changed.includes(name))) call(changed);
  }
}
