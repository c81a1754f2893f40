// Tower: the model from its tokens to its next token, every part with its size; a part opens beside it.

import { Place } from "./answer.js";
import { draw } from "./figures.js";
import { form } from "./form.js";
import { get } from "./server.js";
import { button, count, make, onTheme, percent, roving, short, still } from "./tools.js";

const PICTURE = 24; // rows and columns of a small picture, at most

export const tower = {
  title: "Tower",
  says: "The whole model on your text, from tokens at the top to the next token at the bottom; open any part, and a head through all its stages.",
  mount,
};

function mount(body, state, page) {
  const place = new Place("tower");
  const asked = form([{ name: "text", label: "Text", kind: "lines", value: page.model.prompt, wide: true, rows: 2 }], state,
    () => page.go({ ...asked.values(), part: current.part }), "Show");
  const diagram = make("div", { class: "diagram" });
  const panel = make("section", { class: "panel", "aria-label": "The part that is open" });
  body.append(asked.element, place.element, make("div", { class: "towering" }, diagram, panel));
  let current = state, answer = null, parts = {}, opened = null;

  async function ask() {
    answer = await place.ask("ask/tower", { prompt: current.text ?? page.model.prompt });
    if (!answer) return;
    place.content.replaceChildren(make("div", { class: "headline" }, make("h2", {}, answer.heading), place.saver(answer)));
    build();
    open();
  }

  function build() {
    const data = answer.data;
    const total = data.parts.reduce((sum, part) => sum + part.n_parameters, 0);
    const [nLayers, nHeads, height, width] = data.pictures.shape;
    const bytes = Uint8Array.from(atob(data.pictures.data), (one) => one.charCodeAt(0));
    parts = {};
    const rows = [];
    const partOf = (kind, layer = null) => data.parts.find((part) => part.kind === kind && part.layer === layer);
    const block = (name, part, text, className = "") => {
      parts[name] = button("", () => page.go({ text: current.text, part: name }), { class: `part ${className}`, title: part?.does });
      parts[name].append(make("span", {}, text), ...(part ? [make("span", { class: "size" }, part.n_parameters ? short(part.n_parameters) : "shared")] : []));
      return parts[name];
    };
    const row = (label, inside, className = "") => {
      rows.push(inside.flat());
      return make("div", { class: `storey ${className}`, role: "group", "aria-label": label }, inside);
    };
    const storeys = [
      row("Embedding", [block("embedding", partOf("embedding"), "embedding W_E", "outer")], "single"),
      partOf("positions") ? row("Positions", [block("positions", partOf("positions"), "positions W_pos", "outer")], "single") : null,
    ];
    for (let layer = 0; layer < nLayers; layer++) {
      const heads = Array.from({ length: nHeads }, (_, head) => {
        const name = `${layer}.${head}`;
        const canvas = make("canvas", { width, height, "aria-hidden": "true" });
        parts[name] = make("button", { type: "button", class: "head", "aria-label": `layer ${layer}, head ${head}`,
          title: `head ${name}`, onclick: () => page.go({ text: current.text, part: name }) }, canvas);
        return parts[name];
      });
      storeys.push(row(`Layer ${layer}`, [
        block(`attention ${layer}`, null, String(layer), "no"),
        ...heads,
        block(`feed-forward ${layer}`, null, "FFN", "ff"),
      ], "layer"));
    }
    storeys.push(row("Final norm", [block("norm", partOf("norm"), "final norm", "outer")], "single"),
      row("Head", [block("head", partOf("head"), "head W_U", "outer")], "single"));
    const stream = block("stream", null, "residual stream", "stream");
    const grid = make("div", { class: "storeys" }, storeys);
    grid.style.setProperty("--heads", nHeads);
    rows.unshift([stream]);
    diagram.replaceChildren(
      make("p", { class: "hint" }, `Each small square is a head: from which position (down) it looks at which (across). FFN is the feed-forward, the number the layer's attention as a whole.`),
      make("p", { class: "tokens-in" }, `${count(data.tokens.length)} tokens ↓`), stream, grid,
      make("p", { class: "tokens-in" }, "the next token ↓"),
      make("p", { class: "hint" }, `${count(total)} parameters in all. Arrow keys move, Enter opens.`));
    enter = roving(diagram, rows);
    paint(bytes, height, width);
    onTheme(diagram, () => paint(bytes, height, width));
  }
  let enter = () => {};

  function paint(bytes, height, width) {
    const style = getComputedStyle(document.documentElement);
    const [r, g, b] = style.getPropertyValue("--more").trim().match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
    const n = height * width;
    diagram.querySelectorAll(".head canvas").forEach((canvas, i) => {
      const image = new ImageData(width, height);
      for (let j = 0; j < n; j++) {
        const value = bytes[i * n + j];
        image.data.set([r, g, b, value ? Math.round(255 * Math.sqrt((value - 1) / 254)) : 0], 4 * j);
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
    });
  }

  function open() {
    const name = current.part in parts ? current.part : "stream";
    for (const [one, element] of Object.entries(parts)) {
      if (one === name) element.setAttribute("aria-current", "true");
      else element.removeAttribute("aria-current");
    }
    opened?.cancel?.();
    opened = null;
    const [kind, layer] = name.split(" ");
    if (/^\d+\.\d+$/.test(name)) opened = openHead(name);
    else if (kind === "stream") openStream();
    else openPart(kind, layer === undefined ? null : Number(layer));
    if (current.part && matchMedia("(max-width: 1000px)").matches) {
      panel.scrollIntoView({ block: "start", behavior: still() ? "auto" : "smooth" });
    }
  }

  function openStream() {
    const data = answer.data;
    panel.replaceChildren(make("h2", {}, "The residual stream"),
      make("p", { class: "note" }, "Every part reads the stream and adds to it; none writes over it. Its length tells how large the sum has become."));
    draw({ kind: "lines", title: "Its length at the last position", note: "", x: "blocks behind", y: "length", log_x: false, log_y: false,
      series: [{ name: "length", x: data.stream.map((_, i) => i), y: data.stream }] }, panel, { level: 3 });
  }

  function openPart(kind, layer) {
    const data = answer.data;
    const part = data.parts.find((one) => one.kind === kind && one.layer === layer);
    const sum = (name) => data.parts.reduce((all, one) => all + one[name], 0);
    const fact = (name, value) => [make("dt", {}, name), make("dd", {}, value)];
    panel.replaceChildren(make("h2", {}, part.name), make("p", { class: "note" }, `It ${part.does}.`),
      make("dl", { class: "facts" },
        fact("parameters", part.n_parameters ? `${count(part.n_parameters)}, ${percent(part.n_parameters / sum("n_parameters"))} of the model` : "none of its own"),
        fact("work on this text", `${short(part.n_flops)}FLOP, ${percent(part.n_flops / (sum("n_flops") || 1))} of the pass`),
        kind === "feed-forward" ? fact("neurons", count(page.model.config.d_ff)) : null,
        kind === "attention" ? fact("heads", `${page.model.config.n_heads}, which read ${page.model.config.n_kv_heads} keys and values of ${page.model.config.d_head} numbers`) : null));
    if (kind === "feed-forward") openNeurons(layer);
    if (kind === "attention") {
      panel.append(make("p", {}, "Its heads: ", Array.from({ length: page.model.config.n_heads }, (_, head) =>
        make("a", { class: "headlink", href: page.link("tower", { text: current.text, part: `${layer}.${head}` }) }, `${layer}.${head}`))));
    }
  }

  async function openNeurons(layer) {
    const neurons = new Place("neurons");
    opened = neurons;
    panel.append(neurons.element);
    const found = await neurons.ask("ask/neurons", { prompt: current.text ?? page.model.prompt, layer }, { quiet: true });
    if (found) neurons.show(found, { level: 4 });
  }

  function openHead(name) {
    const [layer, head] = name.split(".").map(Number);
    const data = answer.data;
    const inside = new Place(`head-${name}`);
    const kinds = Object.entries(data.kinds).map(([kind, values]) => [kind, values[layer][head]]).filter(([, value]) => value !== null);
    panel.replaceChildren(make("div", { class: "headline" }, make("h2", {}, `Head ${name}`), make("span", { class: "saver" })),
      make("ul", { class: "kinds" }, kinds.map(([kind, value]) => make("li", { title: data.meanings[kind] },
        make("span", {}, kind), make("strong", {}, value.toFixed(2))))),
      inside.element);
    openStages(inside, name);
    return inside;
  }

  async function openStages(inside, name) {
    const found = await inside.ask("ask/head", { prompt: current.text ?? page.model.prompt, head: name });
    if (!found) return;
    panel.querySelector(".saver").replaceChildren(inside.saver(found));
    const { stages, labels } = found.data;
    const view = make("div", { role: "tabpanel", id: "stage", class: "stage" });
    const tabs = stages.map((stage, i) => button(stage, () => choose(i), { role: "tab", "aria-controls": "stage", id: `stage-${i}` }));
    const list = make("div", { role: "tablist", "aria-label": "Stages", class: "tabs" },
      tabs.flatMap((tab, i) => (i ? [make("span", { "aria-hidden": "true", class: "then" }, "→"), tab] : [tab])));
    list.addEventListener("keydown", (event) => {
      const at = tabs.indexOf(event.target);
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined || !tabs[to]) return;
      event.preventDefault();
      tabs[to].focus();
      choose(to);
    });
    const rest = make("div", { class: "rest" });
    inside.content.replaceChildren(list, view, follow(found, labels, inside), rest);
    found.figures.slice(stages.length + 1).forEach((figure) => draw(figure, rest, { level: 3 }));
    const given = Number(current.stage);
    await choose(given >= 0 && given < stages.length ? given : 3, true);

    async function choose(i, first = false) {
      tabs.forEach((tab, j) => {
        tab.setAttribute("aria-selected", String(i === j));
        tab.tabIndex = i === j ? 0 : -1;
      });
      view.setAttribute("aria-labelledby", `stage-${i}`);
      if (!first) page.replace((current = { ...current, stage: i }));
      try {
        if (found.figures[i].later) found.figures[i] = await get(`answers/${found.id}/figures/${i}`);
        if (tabs[i].getAttribute("aria-selected") !== "true") return;
        view.replaceChildren();
        draw(found.figures[i], view, { level: 3 });
      } catch (error) {
        inside.fail(error.message);
      }
    }
  }

  /** One query and one key through all stages. */
  function follow(found, labels, inside) {
    const option = (label, i) => make("option", { value: i }, `${i}: ${label}`);
    const query = make("select", { id: "query" }, labels.map(option));
    const key = make("select", { id: "follow-key" }, labels.map(option));
    query.value = labels.length - 1;
    key.value = Math.max(0, labels.length - 2);
    const out = make("div");
    const details = make("details", { class: "rows follow" }, make("summary", {}, "Follow one cell through all stages"),
      make("div", { class: "choices" }, make("label", { class: "choice" }, "query ", query), make("label", { class: "choice" }, "key ", key)), out);
    const show = async () => {
      try {
        const figures = await get(`answers/${found.id}/cell/${query.value}/${key.value}`);
        out.replaceChildren();
        for (const figure of figures) draw(figure, out, { level: 3 });
      } catch (error) {
        inside.fail(error.message);
      }
    };
    query.addEventListener("change", show);
    key.addEventListener("change", show);
    details.addEventListener("toggle", () => details.open && !out.firstChild && show());
    return details;
  }

  ask();
  return {
    update(to) {
      const text = (one) => one.text ?? page.model.prompt;
      const same = text(to) === text(current) && answer;
      const focused = Object.values(parts).includes(document.activeElement);
      current = to;
      if (!same) {
        asked.field("text").value = text(to);
        return void ask();
      }
      open();
      if (focused && parts[to.part]) enter(parts[to.part]);
    },
    leave() {
      place.cancel();
      opened?.cancel?.();
    },
  };
}
