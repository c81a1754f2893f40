// Small tools of the page: elements, numbers in words, where the reader is.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const button = (text, act, attributes = {}) => make("button", { type: "button", onclick: act, ...attributes }, text);

export function later(wait, act) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), wait);
  };
}

/** A share as a percentage, with as many digits as are worth reading. */
export function percent(share) {
  const value = share * 100;
  if (!value) return "0 %";
  if (value < 0.01) return "<0.01 %";
  return `${value >= 99.95 ? "100" : value >= 10 ? value.toFixed(1) : value.toFixed(2)} %`;
}

export const count = (n) => n.toLocaleString("en").replaceAll(",", "\u202f");

/** A large number in three digits: 134.5 M. */
export function short(n) {
  let step = 0;
  while (n >= 999.5 && step < 5) [n, step] = [n / 1000, step + 1];
  return `${n >= 100 || Number.isInteger(n) ? Math.round(n) : n.toPrecision(3)}${["", " k", " M", " G", " T", " P"][step]}`;
}

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Buttons of a grid of which one is in the tab order; arrow keys move among them. */
export function roving(element, rows) {
  const all = rows.flat();
  all.forEach((one, i) => (one.tabIndex = i ? -1 : 0));
  const enter = (one) => {
    for (const other of all) other.tabIndex = -1;
    one.tabIndex = 0;
    one.focus();
  };
  element.addEventListener("keydown", (event) => {
    const r = rows.findIndex((row) => row.includes(event.target));
    if (r < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const c = rows[r].indexOf(event.target);
    const to = {
      ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], ArrowUp: [r - 1, c], ArrowDown: [r + 1, c],
      Home: [r, 0], End: [r, rows[r].length - 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const row = rows[to[0]];
    if (row && to[1] >= 0) enter(row[Math.min(to[1], row.length - 1)]);
  });
  return enter;
}

/** Calls back whenever light turns to dark, as long as the element is on the page. */
export function onTheme(element, redraw) {
  const watch = new MutationObserver(() => (element.isConnected ? redraw() : watch.disconnect()));
  watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
}
