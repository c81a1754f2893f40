// Training: a run as its folder tells it, looked at again every few seconds while the view is open.

import { Place } from "./answer.js";
import { form } from "./form.js";
import { get } from "./server.js";
import { make } from "./tools.js";

const EVERY = 5000; // ms

export const training = {
  title: "Training",
  says: "A training run, finished or under way: how its loss falls, and what it writes by now.",
  mount,
};

function mount(body, state, page) {
  if (!page.model.run) {
    body.append(make("p", {}, "Start the server with the folder of a run to see it here:"), make("pre", {}, `cutaway serve -m ${page.model.name} --run FOLDER`));
    return {};
  }
  const place = new Place("training");
  const heads = new Place("heads-over-checkpoints");
  let timer, last = null;
  const fields = form([
    { name: "text", label: "Text", kind: "lines", rows: 2, wide: true, value: page.model.prompt },
    { name: "head", label: "Head", kind: "text", value: "0.0", hint: "layer.head" }], state, grow, "Show it in every checkpoint");
  body.append(place.element, make("section", { class: "later" }, make("h2", {}, "One head over the checkpoints"), fields.element, heads.element));

  async function grow() {
    const { text, head } = fields.values();
    page.replace({ text, head, run: 1 });
    const answer = await heads.ask("ask/growing", { prompt: text, head });
    if (answer) heads.show(answer);
  }

  async function look() {
    if (!document.hidden) {
      try {
        const answer = await get("run");
        place.fail("");
        const said = JSON.stringify({ ...answer, id: "" });
        if (said !== last && !place.content.contains(document.activeElement)) place.show(answer);
        last = said;
      } catch (error) {
        place.fail(error.message);
      }
    }
    if (body.isConnected) timer = setTimeout(look, EVERY);
  }

  look();
  if (state.run) grow();
  return {
    leave() {
      clearTimeout(timer);
      heads.cancel();
    },
  };
}
