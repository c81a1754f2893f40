// Write: the text as tokens, what may come next, and one token after another.

import { Place } from "./answer.js";
import { form, numberOf } from "./form.js";
import { button, count, later, make, percent } from "./tools.js";

const SETTINGS = [
  { name: "temperature", label: "Temperature", kind: "number", value: "0.8", min: 0, max: 5, step: 0.1, hint: "0 takes the likeliest" },
  { name: "top_k", label: "Top-k", kind: "number", value: "", min: 0, step: 1, placeholder: "off", hint: "keep the k likeliest" },
  { name: "top_p", label: "Top-p", kind: "number", value: "", min: 0.01, max: 1, step: 0.01, placeholder: "off", hint: "keep the fewest that reach p" },
  { name: "min_p", label: "Min-p", kind: "number", value: "", min: 0, max: 1, step: 0.01, placeholder: "off", hint: "keep those near the best" },
  { name: "seed", label: "Seed", kind: "number", value: "1", min: 0, step: 1, hint: "another one draws anew" },
];
const PACES = [["600", "slow"], ["150", "calm"], ["0", "as fast as it goes"]];

export const write = {
  title: "Write",
  says: "Type a text, see it as the model reads it, and let it go on token by token; choose another token to branch off.",
  mount,
};

function mount(body, state, page) {
  let text = state.text ?? page.model.prompt;
  let keep = numberOf(state.keep); // prompt tokens that are left, after a branch inside the prompt
  let then = state.then ? state.then.split(".").map(Number) : [];
  let prompt = null; // the prompt's ids, once the server has told them
  let promptText = "";
  let next = null; // what may come after the text as it is now; nothing while that is being asked
  let asking = null;
  let playing = false;
  let timer;

  const place = new Place("write");
  const area = make("textarea", { id: "text", rows: 4, spellcheck: "false" });
  area.value = text;
  const settings = form(SETTINGS, state, () => ask(), null);
  settings.element.classList.add("settings");
  const pace = make("select", { "aria-label": "Pace" }, PACES.map(([value, name]) => make("option", { value }, name)));
  pace.value = "150";
  const tools = {
    step: button("Step", step, { class: "main" }),
    play: button("Play", () => (playing ? pause() : play())),
    undo: button("Undo", undo),
    again: button("Start over", () => move(null, [])),
  };
  const written = make("p", { class: "written" });
  const chips = make("ol", { class: "chips" });
  const reading = make("p", { class: "reading", "aria-live": "polite" });
  const candidates = make("ol", { class: "candidates" });
  const removed = make("ul", { class: "removed" });
  const nextTitle = make("h2", {}, "What may come next");
  const saver = make("div", { class: "saver" });
  const key = make("p", { class: "hint key-of-bars" }, make("span", { class: "swatch-bar final" }), "drawn with ",
    make("span", { class: "swatch-bar model" }), "the model's own probability");

  body.append(
    make("div", { class: "writing" },
      make("div", { class: "left" },
        make("div", { class: "field wide" }, make("label", { for: "text" }, "Text"), area),
        make("div", { class: "player", role: "group", "aria-label": "Go on" },
          tools.step, tools.play, tools.undo, tools.again, pace),
        written),
      make("div", { class: "below" },
        make("h2", {}, "The text as tokens"),
        make("p", { class: "note" }, "Each with its position, its id and its bytes. Press one to cut the text behind it and go on from there."),
        make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tokens" }, chips), reading),
      make("div", { class: "right" },
        make("div", { class: "headline" }, nextTitle, saver), key, candidates, removed,
        make("details", { class: "more", open: true }, make("summary", {}, "How the next token is drawn"), settings.element))),
    place.element);

  const typed = later(350, () => {
    text = area.value;
    [keep, then, prompt] = [null, [], null];
    ask();
  });
  area.addEventListener("input", () => (pause(), typed()));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) step();
  });
  settings.element.addEventListener("input", later(250, () => ask()));

  function address() {
    return { text, keep, then: then.join("."), ...settings.values(true) };
  }

  /** Asks for the next token of the text as it is now. */
  function ask() {
    next = null;
    const mine = (asking = asked().finally(() => {
      if (asking === mine) asking = null;
    }));
    return mine;
  }

  async function asked() {
    page.replace(address());
    const options = Object.fromEntries(Object.entries(settings.values()).map(([name, value]) => [name, numberOf(value)]));
    options.temperature ??= 0;
    options.seed ??= 0;
    const whole = prompt ? [...prompt.slice(0, keep ?? undefined), ...then] : null;
    if (!prompt) {
      const first = await place.ask("next", { prompt: text, ...options }, { quiet: true });
      if (!first) return false;
      prompt = first.data.tokens;
      promptText = first.data.text;
      if (!then.length && keep === null) return show(first);
      return asked();
    }
    const answer = await place.ask("next", { prompt: whole, ...options }, { quiet: true });
    return answer ? show(answer) : false;
  }

  function show(answer) {
    next = answer;
    const data = answer.data;
    const nPrompt = data.tokens.length - then.length;
    paintText(data, nPrompt);
    paintChips(data, nPrompt);
    paintNext(data);
    saver.replaceChildren(place.saver(answer));
    tools.undo.disabled = !then.length;
    tools.again.disabled = !then.length && keep === null;
    const full = data.tokens.length >= page.model.most;
    tools.step.disabled = tools.play.disabled = full;
    if (full) {
      pause();
      place.fail(`the text has ${data.tokens.length} tokens, which is as many as this page shows: undo, or shorten it`);
    }
    return true;
  }

  function paintText(data, nPrompt) {
    const before = keep === null ? promptText : data.text.slice(0, commonLength(data.text, promptText));
    const begins = data.text.startsWith(before);
    written.replaceChildren(make("span", { class: "given" }, begins ? before : ""), begins ? data.text.slice(before.length) : data.text);
    written.hidden = !then.length;
  }

  function paintChips(data, nPrompt) {
    reading.textContent = "";
    chips.replaceChildren(...data.tokens.map((id, i) => {
      const words = `position ${i}, id ${id}${data.bytes[i] ? `, bytes ${data.bytes[i]}` : ""}`;
      const chip = make("button", {
        type: "button", class: i < nPrompt ? "chip" : "chip new", onclick: () => cut(i + 1),
        onfocus: () => tell(), onpointerenter: () => tell(),
        "aria-label": `${data.labels[i]}, ${words}`,
      }, make("span", { class: "label" }, data.labels[i]),
      make("span", { class: "place" }, String(i)), make("span", { class: "id" }, String(id)),
      make("span", { class: "bytes" }, data.bytes[i] || "–"));
      const tell = () => (reading.textContent = `‘${data.labels[i]}’: ${words}`);
      return make("li", {}, chip);
    }));
    if (then.length) chips.parentElement.scrollTop = chips.parentElement.scrollHeight;
  }

  function paintNext(data) {
    const most = Math.max(...data.candidates.map((one) => Math.max(one.final, one.model)));
    candidates.replaceChildren(...data.candidates.map((one) => {
      const taken = one.removed_by ? `removed by ${called(one.removed_by)}` : "";
      const row = make("button", {
        type: "button", class: `candidate${one.id === data.picked ? " picked" : ""}${one.removed_by ? " gone" : ""}`,
        onclick: () => choose(one.id),
        "aria-label": `${one.label}: ${percent(one.model)} to the model, ${taken || `drawn with ${percent(one.final)}`}${one.id === data.picked ? ", picked" : ""}; go on with it`,
      }, make("span", { class: "label" }, one.label, one.ends ? make("span", { class: "tag" }, "end") : null),
      make("span", { class: "track" }, bar("model", one.model / most), bar("final", one.final / most)),
      make("span", { class: "number" }, one.removed_by ? make("s", {}, percent(one.model)) : percent(one.final)),
      make("span", { class: "fate" }, taken || (one.id === data.picked ? "● next" : "")));
      return make("li", {}, row);
    }));
    removed.replaceChildren(...data.removed.map((one) => make("li", {},
      make("strong", {}, one.filter), ` removed ${count(one.n_ids)} tokens with ${percent(one.mass)} of the probability`)));
  }

  /** On with the token that is picked, once it is known: of a text that has just grown, it is not the one shown. */
  async function step() {
    while (asking) await asking;
    if (!next) return ask();
    return tools.step.disabled ? false : choose(next.data.picked);
  }

  function choose(id) {
    if (!next) return false; // what is shown is of the text before
    const other = id !== next.data.picked;
    if (other) {
      pause();
      return move(keep, [...then, id]);
    }
    then = [...then, id];
    return ask();
  }

  function undo() {
    pause();
    then = then.slice(0, -1);
    ask();
  }

  /** Cuts the text to its first n tokens. */
  function cut(n) {
    if (!next) return;
    const nPrompt = next.data.tokens.length - then.length;
    if (n >= nPrompt) move(keep, then.slice(0, n - nPrompt));
    else move(n, []);
  }

  /** To another text, from which Back leads to this one. */
  function move(newKeep, newThen) {
    pause();
    if (newKeep === keep && newThen.join() === then.join()) return false;
    page.go({ ...address(), keep: newKeep, then: newThen.join(".") });
    return true;
  }

  async function play() {
    playing = true;
    tools.play.textContent = "Pause";
    while (playing && body.isConnected) {
      while (asking) await asking;
      const ends = next?.data.candidates.find((one) => one.id === next.data.picked)?.ends;
      const began = performance.now();
      if (!(await step()) || ends) break;
      const rest = Number(pace.value) - (performance.now() - began);
      await new Promise((done) => (timer = setTimeout(done, Math.max(0, rest))));
    }
    pause();
  }

  function pause() {
    playing = false;
    tools.play.textContent = "Play";
  }

  ask();
  return {
    update(to) {
      pause();
      const changed = (to.text ?? page.model.prompt) !== text;
      text = to.text ?? page.model.prompt;
      if (changed) prompt = null;
      if (document.activeElement !== area) area.value = text;
      keep = numberOf(to.keep);
      then = to.then ? to.then.split(".").map(Number) : [];
      for (const { name, value } of SETTINGS) settings.field(name).value = to[name] ?? value;
      ask();
    },
    leave() {
      clearTimeout(timer);
      pause();
      place.cancel();
    },
  };
}

const called = (name) => ({ known: "the tokenizer", top_k: "top-k", top_p: "top-p", min_p: "min-p" })[name] ?? name;

function bar(kind, share) {
  const one = make("span", { class: `share ${kind}` });
  one.style.width = `${Math.min(100, share * 100)}%`;
  return one;
}

function commonLength(one, other) {
  let n = 0;
  while (n < one.length && one[n] === other[n]) n++;
  return n;
}
