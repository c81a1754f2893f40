// The page: which view is shown is told by the address, and so is all that the view needs to be the same again.

import { themeButton } from "./figures.js";
import { claims } from "./claims.js";
import { experiment } from "./experiment.js";
import { questions } from "./questions.js";
import { quiz } from "./quiz.js";
import { get, onKeyNeeded } from "./server.js";
import { make, short } from "./tools.js";
import { tower } from "./tower.js";
import { training } from "./training.js";
import { write } from "./write.js";

const GROUPS = [
  ["Watch", { write, tower }],
  ["Look inside", pick("look", "lens", "contributions", "senses", "neighbours", "effects")],
  ["Change it", { experiment, ...pick("compare") }],
  ["Check it", { ...pick("exact"), claims, quiz }],
  ["Size it", { ...pick("cost"), training }],
];
const VIEWS = Object.assign({}, ...GROUPS.map(([, views]) => views));
const main = document.querySelector("main");
const links = {};
let model, shown = null;

function pick(...names) {
  return Object.fromEntries(names.map((name) => [name, questions[name]]));
}

/** What the address says: the view, and its settings. */
function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return [path in VIEWS ? path : "write", Object.fromEntries(new URLSearchParams(query))];
}

export function addressOf(name, state) {
  const kept = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  const query = new URLSearchParams(kept).toString();
  return `#/${name}${query ? `?${query}` : ""}`;
}

/** What a view may do with the address: replace it quietly, or go on to another state, so that Back comes back here. */
function contextOf(name) {
  return {
    model,
    replace(state) {
      if (shown?.name !== name) return;
      history.replaceState(null, "", addressOf(name, state));
      carry(state.text);
    },
    go(state, view = name) {
      const to = addressOf(view, state);
      if (to === location.hash) route();
      else location.hash = to;
    },
    link: addressOf,
  };
}

/** The text goes with the reader from view to view. */
function carry(text) {
  for (const [name, link] of Object.entries(links)) link.setAttribute("href", addressOf(name, { text }));
}

function route() {
  const [name, state] = read();
  const view = VIEWS[name];
  carry(state.text);
  for (const [one, link] of Object.entries(links)) {
    if (one === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (shown?.name === name && shown.update) return void shown.update(state);
  shown?.leave?.();
  const heading = make("h1", { tabindex: -1 }, view.title);
  const body = make("div", { class: `view-${name}` });
  main.replaceChildren(heading, make("p", { class: "lead" }, view.says), body);
  const first = shown === null;
  shown = { name };
  Object.assign(shown, view.mount(body, state, contextOf(name)) ?? {});
  document.title = `${view.title} · ${model.name} · Cutaway`;
  const nav = document.querySelector(".views");
  nav.scrollLeft = links[name].offsetLeft - (nav.clientWidth - links[name].clientWidth) / 2;
  if (first) return;
  scrollTo(0, 0);
  heading.focus({ preventScroll: true });
}

function frame() {
  const config = model.config;
  const size = `${short(model.n_parameters)} parameters, ${config.n_layers} layers, ${config.n_heads} heads, ${model.dtype}`;
  document.querySelector(".topbar").replaceChildren(
    make("a", { class: "brand", href: "#/write" }, "Cutaway"),
    make("p", { class: "about" }, make("strong", {}, model.name), make("span", {}, size)), themeButton());
  const nav = document.querySelector(".views");
  nav.replaceChildren(...GROUPS.map(([title, views], i) => make("div", { class: "group" },
    make("h2", { id: `group-${i}` }, title),
    make("ul", { "aria-labelledby": `group-${i}` }, Object.entries(views).map(([name, view]) => {
      links[name] = make("a", { href: addressOf(name, {}) }, view.short ?? view.title);
      return make("li", {}, links[name]);
    })))));
}

function askForKey(wrong) {
  return new Promise((given) => {
    const field = make("input", { type: "password", id: "key", autocomplete: "current-password", required: true });
    const ask = make("form", { class: "form key" },
      make("div", { class: "field" }, make("label", { for: "key" }, "API key of this server"), field,
        make("span", { class: "hint" }, wrong ? "That key was not right." : "It is kept in this tab alone.")),
      make("div", { class: "submit" }, make("button", { type: "submit", class: "main" }, "Go on")));
    const dialog = make("dialog", { "aria-label": "API key" }, ask);
    ask.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.remove();
      given(field.value);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

onKeyNeeded(askForKey);
try {
  model = await get("model");
  frame();
  addEventListener("hashchange", route);
  route();
  document.body.dataset.ready = "true";
} catch (error) {
  main.replaceChildren(make("p", { class: "error", role: "alert" }, error.message));
}
