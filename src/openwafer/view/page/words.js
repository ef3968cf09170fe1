// Numbers, directions and wavelets in words, and elements of the page.
const counted = new Intl.NumberFormat("en-US");
export const DIRECTIONS = ["west", "east", "south", "north", "ramp"];
export const STAYS = ["active", "delayed", "back-pressured", "still there"];
export const ENDS = ["taken by a core", "filtered", "gone to the host", "lost", "still there"];
export const STEPS = [[-1, 0], [1, 0], [0, 1], [0, -1], [0, 0]];

export const count = (number) => counted.format(Math.round(number));
export const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)}%` : "");

// A source without its folders; one of the library is named whole.
export const shortName = (name) => (name.startsWith("<") ? name : name.split("/").pop());

export function sides(mask) {
  return DIRECTIONS.filter((_, side) => mask >> side & 1).join(", ") || "nowhere";
}

const bits = new DataView(new ArrayBuffer(4));

function half(word) {
  const [sign, exponent, fraction] = [word >> 15 ? -1 : 1, word >> 10 & 31, word & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * fraction / 1024);
}

export const FORMATS = {
  hex: (word) => `0x${word.toString(16).padStart(8, "0")}`,
  "hex, index and data": (word) =>
    `0x${(word >>> 16).toString(16).padStart(4, "0")} 0x${(word & 65535).toString(16).padStart(4, "0")}`,
  u32: (word) => String(word),
  i32: (word) => String(word | 0),
  f32: (word) => { bits.setUint32(0, word); return bits.getFloat32(0).toPrecision(6); },
  "u16, u16": (word) => `${word >>> 16}, ${word & 65535}`,
  "i16, i16": (word) => `${word >> 16}, ${word << 16 >> 16}`,
  "f16, f16": (word) => `${half(word >>> 16).toPrecision(4)}, ${half(word & 65535).toPrecision(4)}`,
};

// An element with attributes and children; a function as attribute is a listener.
export function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Colors of the fabric, of tasks and of code, each far from the one before it.
export const hue = (number, light = 55) => `hsl(${(number * 137.5 + 205) % 360} 62% ${light}%)`;

// Say something to who reads the page by ear, and to tests.
export function say(text) { document.getElementById("said").textContent = text; }

// A canvas that is as sharp as the screen; draws in the next frame, and when its size changes.
export function drawing(canvas, draw) {
  let asked = false;
  const context = canvas.getContext("2d");
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      const ratio = devicePixelRatio, { clientWidth: width, clientHeight: height } = canvas;
      if (!width || !height) return;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
      }
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      draw(context, width, height);
    });
  }
  new ResizeObserver(redraw).observe(canvas);
  return redraw;
}
