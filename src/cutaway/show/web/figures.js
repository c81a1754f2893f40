// How figures look in a browser. `draw` puts one figure into an element, `page` a whole answer.
// The numbers come from cutaway.show.html, rounded there; none is made here. All words are set as text.

const SVG = "http://www.w3.org/2000/svg";
const LEVELS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 34, 40, 48, 56, 72]; // height of a cell [px]
const KINDS = { prose, tokens, table, bars, lines, heatmap: heatMap, heatmaps: heatMaps };
const MARKS = ["circle", "square", "triangle", "diamond", "cross", "ring"];
const DASHES = ["", "7 4", "2 4", "10 4 2 4", "12 5", "4 2"];
const N_HUES = 6;
let drawn = 0;

/**
 * Draws one figure into an element and returns what it made.
 * options.fetchMap(name) promises the numbers of one map of many (html.map_parts); options.level is that of headings.
 */
export function draw(figure, element, options = {}) {
  settle();
  const level = options.level ?? 3;
  const id = `figure-${++drawn}`;
  const body = make("div", { class: "body" });
  const section = make("section", { class: `figure ${figure.kind}` },
    make(`h${level}`, { id, tabindex: -1 }, figure.title),
    figure.note ? make("p", { class: "note" }, figure.note) : null, body);
  element.append(section);
  KINDS[figure.kind](figure, body, { ...options, level, titled: id });
  return section;
}

/** Draws a whole answer: contents, headings, figures, and a choice of light or dark. */
export function page(data, element) {
  const many = data.results.length > 1;
  const main = make("main", { id: "main" });
  const places = [];
  const header = make("header", { class: "top" },
    make("h1", {}, many ? data.title : data.results[0]?.heading ?? data.title), themeButton());
  element.append(header, main, make("footer", {},
    `Cutaway ${data.version}. Every number is one of the pass, rounded to the digits that are shown.`));
  for (const result of data.results) {
    const article = make("article", {});
    main.append(article);
    if (many) {
      const heading = make("h2", { tabindex: -1 }, result.heading);
      article.append(heading);
      places.push(heading);
    }
    for (const figure of result.figures) {
      const fetchMap = (name) => stored(`${figure.id}-${figure.names.indexOf(name)}`);
      const section = draw(figure, article, { level: many ? 3 : 2, fetchMap });
      if (!many) places.push(section.firstChild);
    }
  }
  if (places.length > (many ? 1 : 3)) main.before(contents(places));
}

function contents(places) {
  const go = (place) => (event) => {
    event.preventDefault();
    place.scrollIntoView({ behavior: still() ? "auto" : "smooth" });
    place.focus({ preventScroll: true });
  };
  const link = (place, i) => {
    place.id ||= `part-${i}`;
    return make("li", {}, make("a", { href: `#${place.id}`, onclick: go(place) }, place.textContent));
  };
  return make("nav", { class: "contents", "aria-label": "Contents" }, make("ol", {}, ...places.map(link)));
}

/** The numbers of one map that stand further down in this document, which may still be coming in. */
async function stored(id) {
  if (!document.getElementById(id) && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  return JSON.parse(document.getElementById(id).textContent);
}

// ---- small tools

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function still() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// ---- numbers in words

const signs = (text) => text.replace("-", "−");

/** Three significant digits, but no more after the point than were sent. */
function shown(value, digits = 12, significant = 3) {
  if (value === null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size && (size >= 1e6 || size < Math.max(1e-4, 0.5 * 10 ** -Math.max(digits, 0)))) {
    return signs(value.toExponential(2));
  }
  const after = significant - 1 - (size ? Math.floor(Math.log10(size) + 1e-9) : 0);
  return signs(group(value.toFixed(clamp(after, 0, Math.max(digits, 0)))));
}

function group(text) {
  const [whole, rest] = text.split(".");
  const parted = whole.replace("-", "").length < 5 ? whole : whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return rest === undefined ? parted : `${parted}.${rest}`;
}

/** Numbers of one column, with as many digits after the point as the largest of them needs; a small one has its own. */
function aligned(values) {
  const present = values.filter((value) => typeof value === "number");
  const largest = Math.max(0, ...present.map(Math.abs));
  const whole = present.every(Number.isInteger);
  const after = whole ? 0 : clamp(3 - Math.floor(Math.log10(largest || 1)), 0, 6);
  return values.map((value) => {
    if (typeof value !== "number") return value === null ? "" : String(value);
    const few = !Number.isInteger(value) && Math.abs(value) < 10 ** (1 - after);
    return few ? shown(value) : signs(largest >= 1e9 ? value.toExponential(2) : group(value.toFixed(after)));
  });
}

/** A label with its place where the sentence quotes it, as it does tokens: the same one may come more than once. */
function placed(figure, axis, i) {
  const label = figure[`${axis}s`][i];
  return figure.says.includes(`‘{${axis}}’`) ? `${label}(${i})` : label;
}

/** One cell of a heat map as a sentence; a quoted label, a token, has its position after it. */
function inWords(figure, map, row, column) {
  const value = map.values[row * map.columns + column];
  const unit = figure.unit && !figure.says.includes(figure.unit) ? ` ${figure.unit}` : "";
  const words = {
    row: figure.rows[row],
    column: figure.columns[column],
    value: Number.isNaN(value) ? figure.absent : shown(value, map.digits) + unit,
    cell: figure.cells?.[row][column] ?? "",
  };
  const places = { row, column };
  return figure.says.replace(/‘\{(row|column)\}’|\{(row|column|value|cell)\}/g, (_, quoted, name) =>
    quoted ? `‘${words[quoted]}’(${places[quoted]})` : words[name]);
}

/** What `packed` of cutaway.show made, as numbers again; NaN where there is none. */
async function unpack({ shape: sizes, digits, least, width, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const n = planes.length / width;
  const values = new Float64Array(n);
  for (let plane = 0; plane < width; plane++) {
    const weight = 256 ** plane;
    for (let i = 0; i < n; i++) values[i] += planes[plane * n + i] * weight;
  }
  const unit = 10 ** Math.abs(digits);
  for (let i = 0; i < n; i++) {
    const whole = values[i] - 1 + least;
    values[i] = values[i] === 0 ? NaN : digits < 0 ? whole * unit : whole / unit;
  }
  return { values, rows: sizes.at(-2), columns: sizes.at(-1), digits };
}

function extentOf(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 0];
}

// ---- light and dark

const themed = new Set(); // what draws itself again when light turns to dark

function settle() {
  const root = document.documentElement;
  if (root.dataset.theme) return;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => root.dataset.choice || setTheme(system.matches ? "dark" : "light");
  system.addEventListener("change", follow);
  follow();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  palette = {};
  for (const redraw of [...themed]) redraw();
}

function onTheme(element, redraw) {
  const watch = () => (element.isConnected ? redraw() : themed.delete(watch));
  themed.add(watch);
}

/** Turns the whole document from light to dark and back. */
export function themeButton() {
  settle();
  const root = document.documentElement;
  const button = make("button", { type: "button", class: "theme" });
  const label = () => {
    button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show in ${button.textContent.toLowerCase()} colours`);
  };
  button.addEventListener("click", () => {
    root.dataset.choice = root.dataset.theme === "dark" ? "light" : "dark";
    setTheme(root.dataset.choice);
  });
  onTheme(button, label);
  label();
  return button;
}

let palette = {};

/** A colour of the style sheet by its name. */
function colour(name) {
  return (palette[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
}

// ---- colours of numbers: lightness alone tells a share; a blue and a vermilion that everyone can tell apart the sign

const STOPS = {
  light: {
    share: ["f6f8fb", "c9dcee", "86b3d8", "3f7fb8", "1a528c", "08254a"],
    signed: ["7d2d00", "cc5f1d", "f2b48d", "f8f7f5", "9cc3e2", "2f78b4", "00365f"],
  },
  dark: {
    share: ["18222d", "1e4263", "2a6c9f", "529ccc", "9bcdea", "f1f9ff"],
    signed: ["ffcfae", "dd7d40", "96491c", "1d242c", "245f93", "5aa4dc", "b5defc"],
  },
};
const ramps = {};

/** 256 colours, as red, green, blue. */
function ramp(scale) {
  const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
  const name = scale === "signed" ? "signed" : "share";
  return (ramps[theme + name] ??= blend(STOPS[theme][name]));
}

function blend(stops) {
  const parts = stops.map((stop) => [0, 2, 4].map((i) => parseInt(stop.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (stops.length - 1);
    const at = Math.min(Math.floor(place), stops.length - 2);
    return parts[at].map((part, j) => Math.round(part + (parts[at + 1][j] - part) * (place - at)));
  });
}

/** Where a number lies on its scale, from 0 to 1. Shares among many keys are small: there the root spreads them. */
function placing(figure, [low, high]) {
  const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
  if (figure.scale === "signed") return (value) => 0.5 + value / largest / 2;
  if (figure.scale === "size") return (value) => (high > low ? (value - low) / (high - low) : 0.5);
  return figure.columns.length > 32 ? (value) => Math.sqrt(clamp(value, 0, 1)) : (value) => clamp(value, 0, 1);
}

function shades(figure, extent) {
  const colours = ramp(figure.scale);
  const place = placing(figure, extent);
  return (value) => colours[Math.round(clamp(place(value), 0, 1) * 255)];
}

/** Colours numbers as pixels; those without a number are left clear. */
function shadeInto(image, values, figure, extent) {
  const colours = Uint32Array.from(ramp(figure.scale), ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
  const place = placing(figure, extent);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < values.length; i++) {
    if (values[i] === values[i]) pixels[i] = colours[Math.round(clamp(place(values[i]), 0, 1) * 255)];
  }
  return image;
}

const luminance = (rgb) => {
  const [r, g, b] = rgb.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

/** Black or white, whichever is read more easily on a colour. */
const inkOn = (rgb) => (luminance(rgb) > 0.179 ? "#0b0f14" : "#ffffff");

function hatched(context, x, y, width, height) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = colour("absent");
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = colour("hatch");
  pen.beginPath();
  for (const shift of [-6, 0, 6]) pen.moveTo(shift, 6), pen.lineTo(shift + 6, 0);
  pen.stroke();
  context.fillStyle = context.createPattern(tile, "repeat");
  context.fillRect(x, y, width, height);
}

/** A heat map's scale with its numbers, and what the cells are that have none. */
function legend(figure, extent, digits, anyAbsent) {
  const [low, high] = extent;
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const spread = figure.scale === "share" && figure.columns.length > 32;
  const ends = { share: spread ? [0, 0.03, 0.1, 0.3, 1] : [0, 0.5, 1], signed: [-largest, 0, largest], size: [low, high] };
  const place = placing(figure, extent);
  const strip = make("span", { class: "strip", "aria-hidden": "true" });
  const numbers = make("span", { class: "numbers" });
  for (const value of ends[figure.scale]) {
    const mark = make("span", {}, figure.scale === "share" || !value ? String(value) : shown(value, digits));
    mark.style.left = `${(figure.scale === "size" && low === high ? 0 : place(value)) * 100}%`;
    numbers.append(mark, " ");
  }
  const absent = make("canvas", { class: "swatch", width: 18, height: 12, "aria-hidden": "true" });
  const paint = () => {
    const colours = ramp(figure.scale).filter((_, i) => i % 15 === 0).map((rgb) => `rgb(${rgb})`);
    strip.style.background = `linear-gradient(to right, ${colours})`;
    hatched(absent.getContext("2d"), 0, 0, 18, 12);
  };
  paint();
  const label = `Scale${figure.unit ? `, ${figure.unit}` : ""}`;
  const element = make("div", { class: "legend", role: "group", "aria-label": label },
    figure.unit ? make("span", { class: "unit" }, figure.unit) : null,
    make("span", { class: "scale" }, strip, numbers),
    anyAbsent ? make("span", { class: "absent" }, absent, figure.absent) : null);
  onTheme(element, paint);
  return element;
}

// ---- a heat map

async function heatMap(figure, body, options) {
  body.setAttribute("aria-busy", "true");
  const map = await unpack(figure.values);
  body.removeAttribute("aria-busy");
  cells(figure, map, body, { ...options, extent: extentOf(map.values) });
}

/** Cells with their edges, what one of them says, and the same as a table. `state` carries over to the next map. */
function cells(figure, map, body, { extent, titled, state = {} }) {
  if (!map.values.length) {
    body.append(make("p", { class: "note" }, `No numbers: ${map.rows} rows, ${map.columns} columns.`));
    return;
  }
  const anyAbsent = map.values.some(Number.isNaN);
  const reading = make("p", { class: "reading", "aria-live": "polite", "aria-atomic": "true" });
  const canvas = make("canvas", { "aria-hidden": "true" });
  const room = make("div", { class: "room" }, canvas);
  const hint = make("p", { class: "hint keys", id: `${titled}-hint-${++drawn}` },
    "Arrow keys move, Home and End go to the ends of a row, Enter to its largest, + and − zoom.");
  const view = make("div", {
    class: "view", tabindex: 0, role: "application", "aria-roledescription": "heat map",
    "aria-label": `${figure.title}: ${map.rows} by ${map.columns}, ${figure.row_axis} by ${figure.column_axis}`,
    "aria-describedby": hint.id,
  }, room);
  const button = (text, label, act) => make("button", { type: "button", "aria-label": label, onclick: act }, text);
  body.append(
    make("div", { class: "tools" }, legend(figure, extent, map.digits, anyAbsent),
      make("div", { class: "zoom" }, button("−", "Smaller cells", () => zoom(-1)),
        button("+", "Larger cells", () => zoom(1)), button("Fit", "Fit the width", () => zoom(0)))),
    view, reading, hint, inRows(figure, map));

  const font = `12px ${getComputedStyle(body).fontFamily || "sans-serif"}`;
  const pen = canvas.getContext("2d");
  pen.font = font;
  const wide = (texts) => texts.reduce((most, text) => Math.max(most, pen.measureText(text).width), 0);
  const available = body.clientWidth || 600;
  const left = Math.ceil(clamp(wide([...figure.rows, `${figure.row_axis} ↓`]) + 14, 40, available < 500 ? 92 : 150));
  const widestColumn = wide(figure.columns);
  const aspect = figure.cells ? 3 : 1;
  const picture = document.createElement("canvas"); // a pixel for each cell
  picture.width = map.columns;
  picture.height = map.rows;
  state.row = clamp(state.row ?? map.rows - 1, 0, map.rows - 1);
  state.column = clamp(state.column ?? largestOf(figure, map, state.row), 0, map.columns - 1);
  state.level ??= fitting();
  let hover = null;
  // as many digits in every cell, as the largest needs
  const power = Math.floor(Math.log10(Math.max(...extent.map(Math.abs)) || 1));
  const after = clamp(power < 0 ? 1 - power : 2 - power, 0, Math.max(map.digits, 0));

  function fitting() {
    if (figure.cells) return LEVELS.findLast((n) => n <= 34 && left + map.columns * n * aspect <= available) >= 24 ? 28 : 24;
    const fits = (n) => left + map.columns * n <= available - 2 && (n <= 14 || map.rows * n <= 560);
    return LEVELS.findLast((n) => n <= 44 && fits(n)) ?? 1;
  }
  const size = () => [state.level * aspect, state.level];
  const upright = () => widestColumn + 8 > size()[0];
  const top = () => (upright() ? Math.ceil(clamp(widestColumn + 12, 34, 110)) : 32);

  function lay() {
    const [width, height] = size();
    room.style.width = `${left + map.columns * width}px`;
    room.style.height = `${top() + map.rows * height}px`;
    view.style.width = `${left + map.columns * width + 2}px`;
    paint();
  }

  function pixels() {
    const image = shadeInto(new ImageData(map.columns, map.rows), map.values, figure, extent);
    picture.getContext("2d").putImageData(image, 0, 0);
    paint();
  }

  function paint() {
    const [cw, ch] = size();
    const [w, h] = [Math.min(view.clientWidth, left + map.columns * cw), Math.min(view.clientHeight, top() + map.rows * ch)];
    if (!w || !h) return;
    const ratio = devicePixelRatio || 1;
    canvas.style.width = `${w}px`;
    canvas.style.height = `${h}px`;
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
    const [x0, y0] = [left - view.scrollLeft, top() - view.scrollTop]; // where the first cell is
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = font;
    pen.textBaseline = "middle";
    pen.imageSmoothingEnabled = false;
    const [r0, r1] = [Math.max(0, Math.floor((top() - y0) / ch)), Math.min(map.rows, Math.ceil((h - y0) / ch))];
    const [c0, c1] = [Math.max(0, Math.floor((left - x0) / cw)), Math.min(map.columns, Math.ceil((w - x0) / cw))];
    pen.fillStyle = colour("surface");
    pen.fillRect(0, 0, w, h);
    pen.save();
    pen.beginPath();
    pen.rect(left, top(), w - left, h - top());
    pen.clip();
    const area = [x0 + c0 * cw, y0 + r0 * ch, (c1 - c0) * cw, (r1 - r0) * ch];
    if (anyAbsent) hatched(pen, ...area);
    pen.drawImage(picture, c0, r0, c1 - c0, r1 - r0, ...area);
    if (ch >= 10) rules(x0, y0, r0, r1, c0, c1, cw, ch);
    if (figure.cells ? ch >= 16 : ch >= 40 && after <= 3) texts(x0, y0, r0, r1, c0, c1, cw, ch);
    const at = hover ?? [state.row, state.column];
    outline(x0 + at[1] * cw, y0 + at[0] * ch, cw, ch);
    pen.restore();
    edges(x0, y0, r0, r1, c0, c1, cw, ch, w, h, at);
  }

  function rules(x0, y0, r0, r1, c0, c1, cw, ch) {
    pen.fillStyle = colour("surface");
    for (let r = r0; r <= r1; r++) pen.fillRect(x0 + c0 * cw, y0 + r * ch - 0.5, (c1 - c0) * cw, 1);
    for (let c = c0; c <= c1; c++) pen.fillRect(x0 + c * cw - 0.5, y0 + r0 * ch, 1, (r1 - r0) * ch);
  }

  function texts(x0, y0, r0, r1, c0, c1, cw, ch) {
    const shade = shades(figure, extent);
    pen.textAlign = "center";
    if (!figure.cells) pen.font = font.replace("12px", "11px");
    for (let r = r0; r < r1; r++) {
      for (let c = c0; c < c1; c++) {
        const value = map.values[r * map.columns + c];
        if (Number.isNaN(value) && !figure.cells) continue;
        pen.fillStyle = Number.isNaN(value) ? colour("ink") : inkOn(shade(value));
        const text = figure.cells ? figure.cells[r][c] : signs(value.toFixed(after)).replace(/^−(0\.?0*)$/, "$1");
        pen.fillText(cut(text, cw - 6), x0 + (c + 0.5) * cw, y0 + (r + 0.5) * ch + 0.5);
      }
    }
    pen.font = font;
  }

  function outline(x, y, cw, ch) {
    const inside = Math.min(cw, ch) >= 10;
    for (const [name, out] of inside ? [["surface", -3], ["accent", -1]] : [["surface", 3], ["accent", 1]]) {
      pen.strokeStyle = colour(name);
      pen.lineWidth = 2;
      pen.strokeRect(x - out, y - out, cw + 2 * out, ch + 2 * out);
    }
  }

  /** The names at the edges, as many as there is room for, and those of the cell that is read. */
  function edges(x0, y0, r0, r1, c0, c1, cw, ch, w, h, [row, column]) {
    const [head, stepRow, stepColumn] = [top(), Math.ceil(15 / ch), Math.ceil((upright() ? 15 : 1) / cw)];
    const clipped = (x, y, width, height, act) => {
      pen.save();
      pen.beginPath();
      pen.rect(x, y, width, height);
      pen.clip();
      act();
      pen.restore();
    };
    const far = (one, other, step, px) => step === 1 ? one !== other : Math.abs(one - other) * px >= 15;
    clipped(0, head, left, h - head, () => {
      pen.textAlign = "right";
      const write = (r, strong) => {
        pen.fillStyle = colour(strong ? "accent" : "soft");
        pen.font = strong ? `bold ${font}` : font;
        pen.fillText(cut(figure.rows[r], left - 12), left - 7, y0 + (r + 0.5) * ch);
      };
      for (let r = Math.ceil(r0 / stepRow) * stepRow; r < r1; r += stepRow) if (far(r, row, stepRow, ch)) write(r, false);
      if (row >= r0 && row < r1) write(row, true);
    });
    clipped(left, 0, w - left, head, () => {
      const write = (c, strong) => {
        pen.fillStyle = colour(strong ? "accent" : "soft");
        pen.font = strong ? `bold ${font}` : font;
        pen.save();
        pen.translate(x0 + (c + 0.5) * cw, upright() ? head - 7 : head / 2 + 1);
        if (upright()) pen.rotate(-Math.PI / 2);
        pen.textAlign = upright() ? "left" : "center";
        pen.fillText(cut(figure.columns[c], upright() ? head - 10 : cw - 4), 0, 0);
        pen.restore();
      };
      for (let c = Math.ceil(c0 / stepColumn) * stepColumn; c < c1; c += stepColumn) {
        if (far(c, column, stepColumn, cw)) write(c, false);
      }
      if (column >= c0 && column < c1) write(column, true);
    });
    pen.font = `italic ${font.replace("12px", "11px")}`;
    pen.fillStyle = colour("soft");
    pen.textAlign = "right";
    pen.fillText(cut(`${figure.column_axis} →`, left - 10), left - 7, head - 22);
    pen.fillText(cut(`${figure.row_axis} ↓`, left - 10), left - 7, head - 8);
  }

  function cut(text, width) {
    if (pen.measureText(text).width <= width) return text;
    const parts = Array.from(text);
    while (parts.length > 1 && pen.measureText(`${parts.join("")}…`).width > width) parts.pop();
    return `${parts.join("")}…`;
  }

  const read = () => {
    reading.textContent = inWords(figure, map, ...(hover ?? [state.row, state.column]));
  };

  function move(row, column) {
    state.row = clamp(row, 0, map.rows - 1);
    state.column = clamp(column, 0, map.columns - 1);
    hover = null;
    reveal();
    read();
    paint();
  }

  function reveal() {
    const [cw, ch] = size();
    const [x, y] = [state.column * cw, state.row * ch];
    const [w, h] = [view.clientWidth - left, view.clientHeight - top()];
    view.scrollLeft = clamp(view.scrollLeft, x + cw + 4 - w, Math.max(0, x - 4));
    view.scrollTop = clamp(view.scrollTop, y + ch + 4 - h, Math.max(0, y - 4));
  }

  function zoom(step) {
    state.level = step === 0 ? fitting() : LEVELS[clamp(LEVELS.indexOf(state.level) + step, 0, LEVELS.length - 1)];
    lay();
    reveal();
    paint();
  }

  function cellAt(event) {
    const box = view.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - view.clientLeft, event.clientY - box.top - view.clientTop];
    const [cw, ch] = size();
    const [c, r] = [Math.floor((x - left + view.scrollLeft) / cw), Math.floor((y - top() + view.scrollTop) / ch)];
    return x < left || y < top() || c >= map.columns || r >= map.rows ? null : [r, c];
  }

  const keys = {
    ArrowUp: () => move(state.row - 1, state.column),
    ArrowDown: () => move(state.row + 1, state.column),
    ArrowLeft: () => move(state.row, state.column - 1),
    ArrowRight: () => move(state.row, state.column + 1),
    PageUp: () => move(state.row - 10, state.column),
    PageDown: () => move(state.row + 10, state.column),
    Home: (event) => move(event.ctrlKey ? 0 : state.row, 0),
    End: (event) => move(event.ctrlKey ? map.rows - 1 : state.row, map.columns - 1),
    Enter: () => move(state.row, largestOf(figure, map, state.row)),
    "+": () => zoom(1),
    "=": () => zoom(1),
    "-": () => zoom(-1),
    0: () => zoom(0),
  };
  view.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.altKey || event.metaKey || (event.ctrlKey && !/Home|End/.test(event.key))) return;
    event.preventDefault();
    keys[event.key](event);
  });
  const point = (cell) => {
    hover = cell;
    read();
    paint();
  };
  view.addEventListener("pointermove", (event) => event.pointerType === "mouse" && point(cellAt(event)));
  view.addEventListener("pointerleave", () => hover && point(null));
  view.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) move(...cell);
  });
  view.addEventListener("scroll", paint);
  new ResizeObserver(paint).observe(view);
  onTheme(view, pixels);
  lay();
  pixels();
  reveal();
  read();
}

/** The column of a row's largest number, of a signed one the farthest from zero. */
function largestOf(figure, map, row) {
  return ranked(figure, map, row)[0] ?? 0;
}

function ranked(figure, map, row) {
  const at = (column) => map.values[row * map.columns + column];
  const key = figure.scale === "signed" ? (column) => Math.abs(at(column)) : at;
  return Array.from({ length: map.columns }, (_, column) => column)
    .filter((column) => !Number.isNaN(at(column))).sort((one, other) => key(other) - key(one));
}

/** A heat map as a table and in sentences, made when it is asked for; a large one by rows. */
function inRows(figure, map) {
  const details = make("details", { class: "rows" }, make("summary", {}, "As a table and in words"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(map.rows * map.columns <= 400 && map.columns <= 20 ? whole(figure, map) : byRow(figure, map));
  });
  return details;
}

function sentences(list) {
  return make("ol", { class: "words" }, ...list.map((text) => make("li", {}, text)));
}

function whole(figure, map) {
  const text = (r, c) => {
    const value = map.values[r * map.columns + c];
    const number = Number.isNaN(value) ? figure.absent : shown(value, map.digits);
    return figure.cells ? `${figure.cells[r][c]} (${number})` : number;
  };
  const rows = figure.rows.map((_, r) => [placed(figure, "row", r), ...figure.columns.map((_, c) => text(r, c))]);
  const said = figure.rows.flatMap((_, r) => ranked(figure, map, r).slice(0, 1).map((c) => inWords(figure, map, r, c)));
  const columns = [`${figure.row_axis} \\ ${figure.column_axis}`, ...figure.columns.map((_, c) => `>${placed(figure, "column", c)}`)];
  return make("div", {}, sheet(columns, rows, `${figure.title}, as a table`, { heads: true }), sentences(said));
}

function byRow(figure, map) {
  const content = make("div", {});
  const choice = make("select", {}, ...figure.rows.map((row, i) => make("option", { value: i }, `${i}: ${row}`)));
  const show = () => {
    const r = Number(choice.value);
    const order = ranked(figure, map, r);
    const absent = map.columns - order.length;
    const values = figure.columns.map((_, c) => map.values[r * map.columns + c]);
    const rows = figure.columns.map((column, c) => [c, column, Number.isNaN(values[c]) ? null : values[c]]);
    const present = rows.filter((row) => row[2] !== null);
    content.replaceChildren(
      sentences(order.slice(0, 10).map((c) => inWords(figure, map, r, c))),
      sheet([">place", figure.column_axis, `>${figure.unit || "value"}`], present, `${figure.row_axis} ${placed(figure, "row", r)}`),
      absent ? make("p", { class: "note" }, `${absent} more: ${figure.absent}.`) : "");
  };
  choice.value = map.rows - 1;
  choice.addEventListener("change", show);
  show();
  return make("div", {}, make("label", { class: "choice" }, `${figure.row_axis} `, choice), content);
}

// ---- many heat maps

async function heatMaps(figure, body, options) {
  const grid = make("div", { class: "grid", role: "grid", "aria-label": figure.title });
  const panel = make("div", { class: "open", "aria-live": "off" });
  const state = {};
  const layered = figure.names.every((name) => /^\d+\.\d+$/.test(name));
  const called = (name) => (layered ? `layer ${name.replace(".", ", head ")}` : name);
  const [rows, columns] = figure.shape;
  const small = await unpack(figure.small);
  const buttons = figure.names.map((name, i) => make("button", {
    type: "button", tabindex: i ? -1 : 0, "aria-label": called(name), "aria-pressed": "false", onclick: () => open(i),
  }, make("canvas", { width: small.columns, height: small.rows, "aria-hidden": "true" }),
  layered ? null : make("span", { class: "name" }, name)));

  lay();
  paint();
  onTheme(grid, paint);
  const patch = `${Math.ceil(rows / small.rows)} × ${Math.ceil(columns / small.columns)}`;
  const which = figure.scale === "signed" ? "number farthest from zero" : "largest number";
  const pooled = patch === "1 × 1" ? "" : `A small picture shows the ${which} of every ${patch} cells, an opened one all. `;
  body.append(make("p", { class: "hint" }, `${pooled}Arrow keys move from one to the next, Enter opens one.`),
    make("div", { class: "split" }, make("div", { class: "thumbs" }, grid), panel));
  await open(0);

  function lay() {
    grid.style.setProperty("--across", figure.across);
    grid.classList.toggle("layered", layered);
    const cell = (role, text) => make("span", { role }, text);
    const heads = (from) => figure.names.slice(from, from + figure.across);
    if (layered) {
      const numbers = heads(0).map((name) => cell("columnheader", name.split(".")[1]));
      grid.append(make("div", { role: "row" }, make("span", { role: "columnheader", class: "corner" }, "head →", make("br"), "layer ↓"), ...numbers));
    }
    for (let from = 0; from < buttons.length; from += figure.across) {
      const line = buttons.slice(from, from + figure.across).map((one) => make("span", { role: "gridcell" }, one));
      grid.append(make("div", { role: "row" },
        layered ? cell("rowheader", figure.names[from].split(".")[0]) : null, ...line));
    }
  }

  function paint() {
    const n = small.rows * small.columns;
    buttons.forEach((button, i) => {
      const image = new ImageData(small.columns, small.rows);
      shadeInto(image, small.values.subarray(i * n, (i + 1) * n), figure, figure.extent);
      button.firstChild.getContext("2d").putImageData(image, 0, 0);
    });
  }

  function focus(i) {
    if (i < 0 || i >= buttons.length) return;
    for (const button of buttons) button.tabIndex = -1;
    buttons[i].tabIndex = 0;
    buttons[i].focus();
  }

  async function open(i) {
    const name = figure.names[i];
    buttons.forEach((button, j) => {
      button.setAttribute("aria-pressed", String(i === j));
      button.tabIndex = i === j ? 0 : -1;
    });
    panel.setAttribute("aria-busy", "true");
    state.name = name;
    const map = await unpack(await options.fetchMap(name));
    if (state.name !== name) return; // another was opened meanwhile
    panel.removeAttribute("aria-busy");
    const heading = make(`h${options.level + 1}`, { "aria-live": "polite" }, called(name));
    const inside = make("div", { class: "body" });
    panel.replaceChildren(heading, inside);
    cells({ ...figure, title: `${figure.title}: ${called(name)}` }, map, inside, { ...options, extent: figure.extent, state });
  }

  grid.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target.closest("button"));
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -figure.across, ArrowDown: figure.across };
    const places = { Home: 0, End: buttons.length - 1 };
    if (!(event.key in steps) && !(event.key in places)) return;
    event.preventDefault();
    focus(places[event.key] ?? at + steps[event.key]);
  });
}

// ---- tables, words, tokens, bars

/** A table whose columns sort; one whose name begins with > holds numbers. Long ones show their beginning first. */
function sheet(columns, rows, label, { heads = false, first = 100 } = {}) {
  const numeric = columns.map((column) => column.startsWith(">"));
  const text = columns.map((_, c) => (numeric[c] ? aligned(rows.map((row) => row[c])) : rows.map((row) => row[c] ?? "")));
  const order = rows.map((_, i) => i);
  const body = make("tbody");
  const buttons = columns.map((column, c) => make("button", { type: "button", onclick: () => sort(c) }, column.replace(/^>/, "")));
  const headers = buttons.map((button, c) => make("th", { scope: "col", class: numeric[c] ? "number" : null }, button.textContent ? button : ""));
  let limit = rows.length > first + 20 ? first : rows.length;
  let [sorted, up] = [null, true];
  const more = make("button", { type: "button", class: "more", onclick: () => ((limit = rows.length), show()) }, `Show all ${rows.length} rows`);

  function sort(c) {
    up = sorted === c ? !up : !numeric[c];
    sorted = c;
    const none = (value) => value === null || value === undefined || value === "";
    order.sort((one, other) => {
      const [a, b] = [rows[one][c], rows[other][c]];
      if (none(a) || none(b)) return none(a) - none(b);
      const by = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return up ? by : -by;
    });
    headers.forEach((header, i) => {
      if (i === c) header.setAttribute("aria-sort", up ? "ascending" : "descending");
      else header.removeAttribute("aria-sort");
    });
    show();
  }

  function show() {
    body.replaceChildren(...order.slice(0, limit).map((r) => make("tr", {}, ...columns.map((_, c) => {
      const head = heads && c === 0;
      return make(head ? "th" : "td", { class: numeric[c] ? "number" : null, scope: head ? "row" : null }, String(text[c][r]));
    }))));
    more.hidden = limit >= rows.length;
  }

  show();
  return make("div", { class: "sheet" },
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      make("table", {}, make("thead", {}, make("tr", {}, ...headers)), body)), more);
}

function table(figure, body) {
  body.append(sheet(figure.columns, figure.rows, figure.title));
}

function prose(figure, body) {
  body.append(...figure.lines.map((line) => make("p", {}, line)));
}

function tokens(figure, body) {
  const chips = figure.labels.map((label, i) => make("li", {},
    make("span", { class: "label" }, label),
    make("span", { class: "place" }, make("span", { class: "unseen" }, ", position "), String(figure.first + i)),
    make("span", { class: "id" }, make("span", { class: "unseen" }, ", id "), String(figure.ids[i]))));
  body.append(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": figure.title },
    make("ol", { class: "chips", start: figure.first }, ...chips)),
  make("p", { class: "hint" }, "Below each token its position, left, and its id, right."));
}

function bars(figure, body) {
  const values = figure.values.map((value) => value ?? 0);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const span = high - low || 1;
  const texts = aligned(figure.values);
  const rows = figure.labels.map((label, i) => {
    const bar = make("span", { class: values[i] < 0 ? "bar less" : "bar" });
    bar.style.left = `${((Math.min(values[i], 0) - low) / span) * 100}%`;
    bar.style.width = `${(Math.abs(values[i]) / span) * 100}%`;
    const zero = make("span", { class: "zero" });
    zero.style.left = `${(-low / span) * 100}%`;
    return make("tr", {}, make("th", { scope: "row" }, label),
      make("td", { class: "track", "aria-hidden": "true" }, make("div", {}, bar, zero)),
      make("td", { class: "number" }, texts[i] || "–"));
  });
  body.append(make("table", { class: "barred" },
    make("thead", { class: figure.unit ? null : "unseen" }, make("tr", {}, make("th", { scope: "col" }, make("span", { class: "unseen" }, "what")),
      make("td", { "aria-hidden": "true" }), make("th", { scope: "col", class: "number" }, figure.unit || "value"))),
    make("tbody", {}, ...rows)));
}

// ---- lines

function lines(figure, body, { titled }) {
  const series = figure.series.map(({ name, x, y }) => ({
    name, points: x.map((at, i) => [at, y[i]]), fits: ([at, value]) =>
      at !== null && value !== null && (!figure.log_x || at > 0) && (!figure.log_y || value > 0),
  }));
  const present = series.flatMap((one) => one.points.filter(one.fits));
  if (!present.length) {
    body.append(make("p", { class: "note" }, "No numbers."));
    return;
  }
  const xs = [...new Set(series.flatMap((one) => one.points.map(([at]) => at)))].filter((at) => at !== null)
    .filter((at) => !figure.log_x || at > 0).sort((one, other) => one - other);
  const reading = make("p", { class: "reading", "aria-live": "polite", "aria-atomic": "true" });
  const hint = make("p", { class: "hint keys", id: `${titled}-hint` }, "Left and right arrow keys move along, Home and End go to the ends.");
  const view = make("div", { class: "plot", tabindex: 0, role: "application", "aria-roledescription": "plot",
    "aria-label": `${figure.title}: ${figure.y} by ${figure.x}`, "aria-describedby": hint.id });
  const list = make("ul", { class: "names" }, ...series.map(({ name }, i) => make("li", {},
    shape("svg", { width: 34, height: 12, viewBox: "0 0 34 12", "aria-hidden": "true" },
      shape("path", { d: "M1 6H33", class: `line hue-${i % N_HUES}`, "stroke-dasharray": dash(i) }), mark(i, 17, 6)), name)));
  const at = new Map(series.map((one) => [one, new Map(one.points.map(([x, y]) => [x, y]))]));
  const rows = xs.map((x) => [x, ...series.map((one) => at.get(one).get(x) ?? null)]);
  const details = make("details", { class: "rows" }, make("summary", {}, "As a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(sheet([`>${figure.x}`, ...series.map(({ name }) => `>${name}`)], rows, `${figure.title}, as a table`));
  });
  body.append(make("p", { class: "axis" }, figure.y, figure.log_y ? " (log scale)" : ""), view, list, reading, hint, details);
  let chosen = xs.length - 1;
  let cursor, toX, width;

  function paint() {
    width = Math.max(280, view.clientWidth || 640);
    const height = clamp(Math.round(width * 0.5), 220, 380);
    const direct = width >= 560 && series.length > 1 && series.length <= 8;
    const named = direct ? Math.min(170, 20 + 7.2 * Math.max(...series.map(({ name }) => name.length))) : 14;
    const box = { left: 64, right: width - named, top: 12, bottom: height - 44 };
    const x = axis(present.map(([value]) => value), figure.log_x, box.left, box.right, width / 90);
    const y = axis(present.map(([, value]) => value), figure.log_y, box.bottom, box.top, height / 48, true);
    toX = x.place;
    const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const tick of y.ticks) {
      const at = y.place(tick);
      svg.append(shape("path", { d: `M${box.left} ${at}H${box.right}`, class: tick === 0 ? "rule zero" : "rule" }),
        shape("text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, tickText(tick)));
    }
    for (const tick of x.ticks) {
      const at = x.place(tick);
      svg.append(shape("path", { d: `M${at} ${box.bottom}v5`, class: "rule" }),
        shape("text", { x: at, y: box.bottom + 19, "text-anchor": "middle" }, tickText(tick)));
    }
    svg.append(shape("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle", class: "title" },
      figure.x + (figure.log_x ? " (log scale)" : "")));
    cursor = shape("path", { class: "cursor", "data-span": `${box.top} ${box.bottom}` });
    svg.append(cursor);
    const ends = series.map((one, i) => trace(svg, one, i, x.place, y.place)).map((end, i) => ({ ...end, i }));
    list.hidden = direct || series.length < 2;
    if (direct) label(svg, ends.filter(({ y: end }) => end !== undefined), box);
    view.replaceChildren(svg);
    choose(chosen);
  }

  function trace(svg, one, i, placeX, placeY) {
    let path = "", gap = true, end = {};
    const marks = shape("g", {});
    const every = Math.ceil(one.points.length / 12);
    one.points.forEach((point, n) => {
      if (!one.fits(point)) return void (gap = true);
      const [px, py] = [placeX(point[0]).toFixed(1), placeY(point[1]).toFixed(1)];
      path += `${gap ? "M" : "L"}${px} ${py}`;
      gap = false;
      end = { x: Number(px), y: Number(py) };
      if (n % every === 0 || n === one.points.length - 1) marks.append(mark(i, Number(px), Number(py)));
    });
    svg.append(shape("path", { d: path, class: `line hue-${i % N_HUES}`, "stroke-dasharray": dash(i) }), marks);
    return end;
  }

  /** The name of each line at its end, moved apart where they would meet. */
  function label(svg, ends, box) {
    ends.sort((one, other) => one.y - other.y);
    let last = -Infinity;
    for (const end of ends) last = end.at = Math.max(end.y, last + 15);
    let next = box.bottom + 15;
    for (const end of ends.toReversed()) next = end.at = Math.min(end.at, next - 15);
    for (const { i, x, y, at } of ends) {
      svg.append(shape("path", { d: `M${x + 5} ${y}L${box.right + 8} ${at}`, class: "lead" }),
        shape("text", { x: box.right + 12, y: at + 4, class: `direct hue-${i % N_HUES}` }, series[i].name));
    }
  }

  function choose(i) {
    chosen = clamp(i, 0, xs.length - 1);
    const [from, to] = cursor.dataset.span.split(" ");
    cursor.setAttribute("d", `M${toX(xs[chosen])} ${from}V${to}`);
    const values = rows[chosen].slice(1).map((value, n) => {
      const text = Number.isInteger(value) ? tickText(value) : shown(value);
      return series.length > 1 ? `${series[n].name} ${text}` : `${figure.y} ${text}`;
    });
    reading.textContent = `${figure.x} ${tickText(xs[chosen])}: ${values.join(", ")}`;
  }

  view.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });
  view.addEventListener("pointermove", (event) => {
    const at = event.clientX - view.getBoundingClientRect().left;
    choose(xs.reduce((best, x, i) => (Math.abs(toX(x) - at) < Math.abs(toX(xs[best]) - at) ? i : best), 0));
  });
  new ResizeObserver(() => Math.abs((view.clientWidth || width) - width) > 1 && paint()).observe(view);
  paint();
}

const dash = (i) => DASHES[i % DASHES.length] || null;

const tickText = (value) => {
  const size = Math.abs(value);
  if (size && (size >= 1e6 || size < 1e-3)) return signs(value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e"));
  return signs(group(String(Number(value.toPrecision(6)))));
};

/** Where numbers of an axis lie, and which of them are written. */
function axis(values, log, from, to, n, fromZero = false) {
  const scale = log ? Math.log10 : (value) => value;
  let [low, high] = [Math.min(...values.map(scale)), Math.max(...values.map(scale))];
  if (high - low < 1e-12 * Math.max(1, Math.abs(high))) [low, high] = log ? [low - 0.5, high + 0.5] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  if (fromZero && !log && low > 0 && low < 0.3 * high) low = 0;
  const place = (value) => from + ((scale(value) - low) / (high - low)) * (to - from);
  const least = values.every(Number.isInteger) ? 1 : 0;
  return { place, ticks: log ? powers(low, high, n) : rounds(low, high, n, least) };
}

function rounds(low, high, n, least) {
  const raw = Math.max(least, (high - low) / Math.max(2, n));
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((one) => one * power >= raw) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function powers(low, high, n) {
  const within = (value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9;
  const list = (factors, step) => {
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power += step) ticks.push(...factors.map((one) => Number(`${one}e${power}`)));
    return ticks.filter(within);
  };
  for (const factors of [[1, 2, 5], [1, 3]]) if (list(factors, 1).length <= n + 1) return list(factors, 1);
  if (list([1], 1).length < 2) return list([1, 2, 5], 1);
  return list([1], Math.ceil(list([1], 1).length / (n + 1)));
}

function mark(i, x, y) {
  const kind = MARKS[i % MARKS.length];
  const hue = `mark hue-${i % N_HUES}`;
  if (kind === "circle" || kind === "ring") return shape("circle", { cx: x, cy: y, r: 3.2, class: `${hue} ${kind}` });
  const paths = {
    square: "m-3-3h6v6h-6z", triangle: "m0-4 4 7h-8z", diamond: "m0-4.5 4 4.5-4 4.5-4-4.5z", cross: "m-3.5-3.5 7 7m0-7-7 7",
  };
  return shape("path", { d: `M${x} ${y}${paths[kind]}`, class: `${hue} ${kind}` });
}
