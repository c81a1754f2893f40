// Claims: fourteen cards, each put to the test on this model when it is asked to be.

import { Place } from "./answer.js";
import { get } from "./server.js";
import { button, make } from "./tools.js";

export const claims = {
  title: "Claims",
  says: "Fourteen claims about every transformer, each tested here and now on this model, with a control that must fail.",
  mount,
};

function mount(body, state, page) {
  const all = button("Test all, one by one", testAll, { class: "main" });
  const tally = make("p", { class: "hint", role: "status" });
  const list = make("ol", { class: "cards" });
  body.append(make("div", { class: "aside" }, all, tally), list);
  const cards = {};
  let stopped = false, running = false;

  async function build() {
    let found;
    try {
      found = await get("claims");
    } catch (error) {
      list.replaceWith(make("p", { class: "error", role: "alert" }, error.message));
      return;
    }
    for (const claim of found) list.append(card(claim));
    const asked = cards[state.claim];
    if (!asked) return;
    asked.element.scrollIntoView({ block: "start" });
    if (state.run) asked.test();
  }

  function card(claim) {
    const place = new Place(`claim-${claim.number}`);
    const verdict = make("span", { class: "verdict" });
    const one = { place };
    const start = button("Test it", () => {
      page.replace({ text: state.text, claim: claim.number, run: 1 });
      one.test();
    }, { "aria-label": `Test claim ${claim.number}: ${claim.title}` });
    one.element = make("li", { class: "card", id: `claim-${claim.number}` },
      make("div", { class: "headline" }, make("h2", {}, make("span", { class: "no" }, `${claim.number}`), claim.title), verdict, start),
      make("p", {}, claim.says),
      make("details", {}, make("summary", {}, "How it is tested"),
        make("p", {}, make("strong", {}, "Measured: "), claim.criterion),
        make("p", {}, make("strong", {}, "Control: "), claim.control),
        claim.conditions.map((line) => make("p", {}, make("strong", {}, "Condition: "), line)),
        make("pre", {}, claim.code)),
      place.element);
    one.test = async () => {
      start.disabled = true;
      verdict.textContent = "";
      const answer = await place.ask("ask/claim", { number: claim.number });
      start.disabled = false;
      if (!answer) return null;
      one.holds = answer.heading.endsWith("holds");
      verdict.textContent = one.holds ? "✓ holds" : "✗ fails";
      verdict.className = `verdict ${one.holds ? "good" : "bad"}`;
      const article = place.show(answer, { heading: false, only: (i) => i > 0 && i < answer.figures.length - 1 });
      article.append(place.saver(answer));
      start.textContent = "Test it again";
      count();
      return one.holds;
    };
    cards[claim.number] = one;
    return one.element;
  }

  function count() {
    const tested = Object.values(cards).filter((one) => one.holds !== undefined);
    tally.textContent = `${tested.filter((one) => one.holds).length} of ${tested.length} tested hold`;
  }

  async function testAll() {
    if (running) {
      stopped = true;
      return;
    }
    running = true;
    stopped = false;
    all.textContent = "Stop after this one";
    for (const one of Object.values(cards)) {
      if (stopped || !body.isConnected) break;
      await one.test();
    }
    running = false;
    all.textContent = "Test all, one by one";
  }

  build();
  return {
    leave() {
      stopped = true;
      for (const { place } of Object.values(cards)) place.cancel();
    },
  };
}
