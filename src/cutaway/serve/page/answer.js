// One question at a time: that it is being worked on, how far it is, a way to stop it, the answer, or what was wrong.

import { draw } from "./figures.js";
import { get, post, save } from "./server.js";
import { button, make } from "./tools.js";

/** A place for answers. `ask` resolves to the answer, or to null where it failed or was cancelled. */
export class Place {
  constructor(name) {
    this.name = name;
    this.status = make("div", { class: "status", role: "status" });
    this.alert = make("p", { class: "error", role: "alert" });
    this.content = make("div", { class: "answer" });
    this.element = make("div", { class: "place" }, this.status, this.alert, this.content);
    this.controller = null;
  }

  async ask(path, body, { quiet = false } = {}) {
    this.cancel();
    const controller = (this.controller = new AbortController());
    const timer = setTimeout(() => this.#working(quiet), quiet ? 1200 : 150);
    try {
      const progress = (said, soFar) => {
        this.#progress(said, timer);
        if (soFar) this.#showSoFar(soFar);
      };
      const answer = await post(path, body, { signal: controller.signal, progress });
      this.fail("");
      return answer;
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error.message);
      return null;
    } finally {
      clearTimeout(timer);
      if (this.controller === controller) this.#rest();
    }
  }

  cancel() {
    this.controller?.abort();
    this.#rest();
  }

  /** Nothing is asked, nothing is shown. */
  clear() {
    this.cancel();
    this.fail("");
    this.content.replaceChildren();
  }

  /** What was wrong, in one line; nothing takes it away. */
  fail(words) {
    this.alert.textContent = words;
    if (words) this.content.classList.remove("stale");
  }

  /** Draws an answer's figures. */
  show(answer, { heading = true, level = 3, only = () => true } = {}) {
    const article = make("article", { class: `answered of-${this.name}` });
    const read = this.content.contains(document.activeElement);
    const title = make("h2", { tabindex: -1 }, answer.heading);
    if (heading) article.append(make("div", { class: "headline" }, title, this.saver(answer)));
    this.content.replaceChildren(article);
    answer.figures.forEach((figure, i) => only(i) && drawInto(article, answer, figure, i, level, (words) => this.fail(words)));
    if (read) title.focus({ preventScroll: true }); // who was in what was found so far is in what takes its place
    return article;
  }

  /** Stands there until the whole answer does; what is asked now is no longer what is shown dimmed. */
  #showSoFar(answer) {
    this.show(answer).classList.replace("answered", "so-far");
    this.content.classList.remove("stale");
  }

  saver(answer) {
    return button("Save as a file", async (event) => {
      event.target.disabled = true;
      try {
        await save(answer.id, `cutaway-${this.name}`);
      } catch (error) {
        this.fail(error.message);
      }
      event.target.disabled = false;
    }, { class: "quiet", title: "One HTML file that needs no network" });
  }

  #working(quiet) {
    this.content.classList.add("stale");
    this.bar = make("progress", { "aria-label": "Working" });
    this.words = make("span", {}, "Working…");
    this.status.replaceChildren(this.bar, this.words, button("Cancel", () => this.#stop(), { class: "quiet" }));
    if (!quiet) this.element.setAttribute("aria-busy", "true");
  }

  #stop() {
    this.cancel();
    if (this.content.querySelector(".so-far")) this.status.append(make("span", {}, "Cancelled: this is what was found until then."));
  }

  #progress({ done, total, words }, timer) {
    clearTimeout(timer);
    if (!this.status.firstChild) this.#working(false);
    if (total) {
      this.bar.max = total;
      this.bar.value = done;
    }
    const said = total ? `${done} of ${total} ${words}` : `${words}…`;
    if (this.words.textContent !== said) this.words.textContent = said;
  }

  #rest() {
    this.controller = null;
    this.status.replaceChildren();
    this.content.classList.remove("stale");
    this.element.removeAttribute("aria-busy");
  }
}

function drawInto(article, answer, figure, i, level, fail) {
  const path = `answers/${answer.id}/figures/${i}`;
  const options = { level, fetchMap: (name) => get(`${path}/${encodeURIComponent(name)}`) };
  if (!figure.later) return void draw(figure, article, options);
  const place = make("div", { class: "later" });
  article.append(place);
  place.append(button(`Show ${figure.title}`, async () => {
    try {
      const whole = await get(path);
      place.replaceChildren();
      draw(whole, place, options);
    } catch (error) {
      fail(error.message);
    }
  }));
}
