// Quiz: fourteen questions, one for each claim, marked by the claim's own experiment on this model.

import { Place } from "./answer.js";
import { get } from "./server.js";
import { button, make } from "./tools.js";

export const quiz = {
  title: "Quiz",
  says: "Fourteen questions about what a transformer does; the model itself marks your answers, by the experiment of each claim.",
  mount,
};

function mount(body, state, page) {
  const place = new Place("quiz");
  const card = make("div", { class: "quiz" });
  body.append(card, place.element);
  let current = state, questions = null;

  const seed = () => Math.floor(Number(current.seed)) || 1;
  const at = () => Math.min(Math.max(0, Math.floor(Number(current.at)) || 0), questions.length);
  const right = () => Math.floor(Number(current.right)) || 0;

  async function begin() {
    place.cancel();
    place.content.replaceChildren();
    try {
      questions = await get(`quiz/${seed()}`);
    } catch (error) {
      return void place.fail(error.message);
    }
    if (at() === questions.length) end();
    else put(questions[at()]);
  }

  function put(question) {
    const verdict = make("span", { class: "verdict", role: "status" });
    const submit = make("button", { type: "submit", class: "main" }, "Answer");
    const choices = Object.entries(question.answers).map(([letter, text]) => make("div", { class: "answer-given" },
      make("label", {}, make("input", { type: "radio", name: "given", value: letter, required: true }), make("span", {}, text))));
    const form = make("form", { class: "asked" }, make("div", { class: "answers", role: "radiogroup", "aria-labelledby": "question" }, choices),
      make("div", { class: "aside" }, submit, verdict));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const given = new FormData(form).get("given");
      if (!given) return;
      submit.disabled = true;
      const answer = await place.ask("ask/quiz", { seed: seed(), claim: question.claim, given });
      submit.disabled = false;
      if (!answer) return;
      const { right: letter, is_right: isRight } = answer.data;
      for (const item of choices) {
        const input = item.querySelector("input");
        input.disabled = true;
        if (input.value === letter) item.classList.add("right");
        else if (input.checked) item.classList.add("wrong");
      }
      verdict.textContent = isRight ? "✓ right" : "✗ not that one";
      verdict.className = `verdict ${isRight ? "good" : "bad"}`;
      const article = place.show(answer, { heading: false });
      article.append(place.saver(answer));
      const next = button(at() + 1 < questions.length ? "Next question" : "How it went", () =>
        page.go({ text: current.text, seed: seed(), at: at() + 1, right: right() + (isRight ? 1 : 0) }), { class: "main" });
      submit.replaceWith(next);
      next.focus();
    });
    card.replaceChildren(
      make("p", { class: "hint" }, `Question ${at() + 1} of ${questions.length}`, at() ? `, ${right()} right so far` : ""),
      make("h2", { id: "question" }, question.question), form);
  }

  function end() {
    card.replaceChildren(make("h2", {}, `${right()} of ${questions.length} right`),
      make("p", {}, "Each mark was made by an experiment on this model: its numbers stand under Claims."),
      button("Again, in another order", () => page.go({ text: current.text, seed: seed() + 1 }), { class: "main" }));
  }

  begin();
  return {
    update(to) {
      current = to;
      begin();
    },
    leave: () => place.cancel(),
  };
}
