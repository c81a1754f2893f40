// Experiment: parts switched off or dropped, and what becomes of the next token, the text and the loss.

import { Place } from "./answer.js";
import { form, numberOf } from "./form.js";
import { button, make, roving } from "./tools.js";

const WITHOUT = [
  ["mask", "the mask", "every position sees every other, later ones too"],
  ["scale", "the scale", "scores are not divided by √d"],
  ["positions", "the positions", "nothing tells where a token stands"],
];

export const experiment = {
  title: "Experiment",
  says: "Switch heads and feed-forwards off, or drop the mask, the scale or the positions, and see what it does against the model as it is.",
  mount,
};

function mount(body, state, page) {
  const { n_layers: nLayers, n_heads: nHeads } = page.model.config;
  const place = new Place("experiment");
  const switches = {};
  let current, fields, off, drops;

  function build(given) {
    current = given;
    off = new Set([...listed(given.heads), ...listed(given.ff).map((layer) => `ff ${layer}`)]);
    fields = form([
      { name: "text", label: "Text", kind: "lines", wide: true, rows: 2, value: page.model.prompt },
      { name: "how", label: "What is off is replaced by", kind: "select", value: "zero", options: [["zero", "zeros"], ["mean", "its mean over the positions"]] },
      { name: "n_new", label: "New tokens, greedily", kind: "number", value: "24", min: 0, max: 200, step: 1 }], given, submit, "Run");
    const dropped = listed(given.without);
    drops = WITHOUT.map(([name, label, says]) => {
      const box = make("input", { type: "checkbox", id: `drop-${name}`, name });
      box.checked = dropped.includes(name);
      return make("div", { class: "field check" }, box, make("label", { for: `drop-${name}` }, `Drop ${label}`), make("span", { class: "hint" }, says));
    });
    const rows = Array.from({ length: nLayers }, (_, layer) => [
      ...Array.from({ length: nHeads }, (_, head) => toggle(`${layer}.${head}`, `layer ${layer}, head ${head}`, String(head))),
      toggle(`ff ${layer}`, `layer ${layer}, feed-forward`, "FFN")]);
    const grid = make("div", { class: "switches", role: "group", "aria-label": "Heads and feed-forwards; a pressed one is off" },
      rows.map((row, layer) => make("div", { class: "row" }, make("span", { class: "no" }, String(layer)), row)));
    grid.style.setProperty("--heads", nHeads);
    roving(grid, rows);
    const tally = make("p", { class: "hint tally", "aria-live": "polite" });
    grid.addEventListener("click", () => count(tally));
    count(tally);
    fields.element.querySelector(".submit").before(
      make("fieldset", { class: "wide" }, make("legend", {}, "Heads and feed-forwards"),
        make("p", { class: "hint" }, "A row is a layer; press one to switch it off. Arrow keys move."), grid,
        make("div", { class: "aside" }, tally, button("All on again", () => (off.clear(), refresh(tally)), { class: "quiet" }))),
      make("fieldset", { class: "wide drops" }, make("legend", {}, "Parts of every layer"), drops));
    body.replaceChildren(fields.element, place.element);
  }

  function toggle(name, label, text) {
    const one = button(text, () => {
      if (!off.delete(name)) off.add(name);
      one.setAttribute("aria-pressed", String(off.has(name)));
    }, { class: name.startsWith("ff") ? "switch ff" : "switch", "aria-label": `${label} off`, "aria-pressed": String(off.has(name)), title: label });
    return (switches[name] = one);
  }

  function refresh(tally) {
    for (const [name, one] of Object.entries(switches)) one.setAttribute("aria-pressed", String(off.has(name)));
    count(tally);
  }

  function count(tally) {
    const ff = [...off].filter((name) => name.startsWith("ff")).length;
    tally.textContent = off.size ? `off: ${several(off.size - ff, "head")}, ${several(ff, "feed-forward")}` : "all are on";
  }

  function chosen() {
    const names = [...off].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
    return {
      heads: names.filter((name) => !name.startsWith("ff")),
      ff: names.filter((name) => name.startsWith("ff")).map((name) => Number(name.slice(3))),
      without: drops.map((drop) => drop.querySelector("input")).filter((box) => box.checked).map((box) => box.name),
    };
  }

  function submit() {
    const { heads, ff, without } = chosen();
    page.go({ ...fields.values(true), text: fields.values().text, heads: heads.join(","), ff: ff.join(","), without: without.join(","), run: 1 });
  }

  async function ask() {
    const { heads, ff, without } = chosen();
    const { text, how, n_new } = fields.values();
    const answer = await place.ask("ask/experiment", { prompt: text, heads, feed_forwards: ff, how, without, n_new: numberOf(n_new) ?? 0 });
    if (answer) place.show(answer);
  }

  build(state);
  if (state.run) ask();
  return {
    update(to) {
      build(to);
      if (to.run) ask();
      else place.clear();
    },
    leave: () => place.cancel(),
  };
}

const several = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

const listed = (text) => (text ? text.split(",").filter(Boolean) : []);
