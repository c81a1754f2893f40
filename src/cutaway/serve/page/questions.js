// The questions that are a form and an answer: what each says of itself, its fields, and what is asked.

import { Place } from "./answer.js";
import { form, numberOf } from "./form.js";

const PROMPT = { name: "text", label: "Text", kind: "lines", wide: true };
const target = (label, hint = "its text, such as ·Paris with a leading space, or #id; empty: what the model itself says") =>
  ({ name: "target", label, kind: "text", hint });
const versus = { name: "versus", label: "Against", kind: "text", hint: "another token, to compare with" };
const last = (label) => ({ name: "last", label, kind: "number", value: "32", hint: "empty: all; each costs a product with the head a layer" });
const token = (text) => (text ? text.replace(/^·/, " ") : null);

const LIST = {
  look: {
    title: "Look",
    says: "One screen: what comes next, how the layers got there, and which parts did most for it.",
    fields: () => [PROMPT],
    body: (v) => ({ prompt: v.text }),
  },
  lens: {
    title: "Lens",
    says: "What the model would say if it stopped after each layer, at every position.",
    fields: () => [PROMPT, target("Token to follow"),
      last("Positions, counted from the end"),
      { name: "actual", label: "Follow the token that really comes next", kind: "check", value: false },
      { name: "sublayers", label: "Also after every attention", kind: "check", value: false }],
    body: (v) => ({ prompt: v.text, target: token(v.target), actual: v.actual, sublayers: v.sublayers, last: numberOf(v.last) }),
  },
  contributions: {
    title: "Contributions",
    says: "What every head and feed-forward adds to the score of a token; the parts sum to the whole.",
    fields: () => [PROMPT, target("Token"), versus,
      { name: "position", label: "Position", kind: "number", value: "-1", hint: "-1 is the last" }],
    body: (v) => ({ prompt: v.text, target: token(v.target), versus: token(v.versus), position: numberOf(v.position) ?? -1 }),
  },
  senses: {
    title: "Senses",
    says: "One word in several sentences: where its vectors part, and which heads and feed-forwards part them.",
    long: true,
    fields: () => [
      { name: "word", label: "Word", kind: "text", value: "bank" },
      { name: "sentences", label: "Sentences, one a line", kind: "lines", rows: 4, wide: true,
        value: "They sat down on the grass of the river bank\nThe boat lay below the muddy bank\nShe put all her money in the bank\nHe owed a large sum to the bank" },
      { name: "groups", label: "Their senses, one a line", kind: "lines", rows: 4, value: "river\nriver\nmoney\nmoney", hint: "empty: each its own" }],
    body: (v) => ({ word: v.word, sentences: filled(v.sentences), groups: filled(v.groups).length ? filled(v.groups) : null }),
  },
  neighbours: {
    title: "Neighbours",
    says: "Which tokens have rows like this one's: what the model knows of a token before it reads any context.",
    fields: (model) => [
      { name: "token", label: "Token", kind: "text", value: model.prompt === "1 2 3" ? "#5" : "·the", hint: "its text, ·the for one with a leading space, or #id" },
      { name: "by", label: "Near by", kind: "select", value: "cosine", options: [["cosine", "angle (cosine)"], ["dot", "dot product"]] },
      { name: "space", label: "Rows of", kind: "select", value: "embedding", options: [["embedding", "the embedding W_E"], ["unembedding", "the head W_U"]] }],
    body: (v) => ({ token: token(v.token) ?? "", by: v.by, space: v.space }),
  },
  effects: {
    title: "Effects",
    says: "What each part does, found by taking it away, or by patching it from another text, one part at a time; an estimate comes first.",
    long: true,
    fields: () => [PROMPT,
      { name: "what", label: "Parts", kind: "select", value: "heads", options: [["heads", "every head"], ["attn", "every attention, at each position"], ["ff", "every feed-forward, at each position"], ["resid", "the stream, at each position"]] },
      { name: "how", label: "Replaced by", kind: "select", value: "zero", options: [["zero", "zeros"], ["mean", "its mean over the positions"], ["patch", "what it is in another text"]] },
      { name: "source", label: "The other text, for patching", kind: "lines", rows: 2, hint: "as many tokens as the text", when: (v) => v.how === "patch" },
      target("Token"), versus,
      { name: "estimate", label: "Only the estimate", kind: "check", value: false, hint: "one pass and its gradient; for texts of up to 256 tokens" }],
    body: (v) => ({ prompt: v.text, estimate: v.estimate, what: v.what, how: v.how, source: v.how === "patch" ? v.source || null : null, target: token(v.target), versus: token(v.versus) }),
  },
  compare: {
    title: "Compare",
    says: "Two models side by side on one text: losses, layers, heads, weights.",
    long: true,
    fields: (model) => [PROMPT, { name: "other", label: "The other model", kind: "select", value: model.others[0] ?? "", options: model.others },
      last("Positions that the lens reads, counted from the end")],
    body: (v) => ({ prompt: v.text, other: v.other, last: numberOf(v.last) }),
    missing: (model) => (model.others.length ? null : `Start the server with another model to compare with: cutaway serve -m ${model.name} --with NAME`),
  },
  exact: {
    title: "Exactness",
    says: "Whether what is shown here is true: the parts add up, looking changes nothing, cached equals full.",
    fields: () => [PROMPT],
    body: (v) => ({ prompt: v.text }),
  },
  cost: {
    title: "Cost",
    says: "What a model holds and does: parameters, work and memory against the length, and what this machine measures.",
    fields: (model) => [
      { name: "of", label: "Model", kind: "select", value: "", options: [["", model.name], ...model.presets.map((name) => [name, `${name} (published size)`])] },
      { name: "context", label: "Context", kind: "number", min: 1, step: 1, value: "", placeholder: "the model's", hint: "tokens of a text" },
      { name: "batch", label: "Texts at once", kind: "number", min: 1, step: 1, value: "1" },
      { name: "tokens", label: "New tokens", kind: "number", min: 1, step: 1, value: "500" },
      { name: "dtype", label: "Type", kind: "select", value: "", options: [["", "bfloat16; float32 when measuring"], "float32", "bfloat16", "float16"] },
      { name: "hardware", label: "Hardware", kind: "select", value: "", options: [["", "none named"], ...model.hardware] },
      { name: "measure", label: "Measure it on this machine too (takes a while)", kind: "check", value: false }],
    body: (v) => ({ of: v.of || null, context: numberOf(v.context), batch: numberOf(v.batch) ?? 1, tokens: numberOf(v.tokens) ?? 500,
      dtype: v.dtype || null, hardware: v.hardware || null, measure: v.measure }),
  },
};

export const questions = Object.fromEntries(Object.entries(LIST).map(([name, question]) => [name, viewOf(name, question)]));

function viewOf(name, question) {
  return { title: question.title, says: question.says, mount: (body, state, page) => mount(body, state, page, name, question) };
}

function mount(body, state, page, name, question) {
  const missing = question.missing?.(page.model);
  if (missing) {
    body.textContent = missing;
    return {};
  }
  const place = new Place(name);
  let fields, current = state;

  function build() {
    const defaults = question.fields(page.model).map((field) => (field.name === "text" ? { ...field, value: page.model.prompt } : field));
    fields = form(defaults, current, submit);
    body.replaceChildren(fields.element, place.element);
  }

  function submit() {
    page.go({ ...fields.values(true), run: question.long ? 1 : null, text: textOf() });
  }

  /** The text stays in the address also where it is the default one: other models have other defaults. */
  const textOf = () => (fields.values().text === undefined ? current.text : fields.values().text);

  async function ask() {
    const answer = await place.ask(`ask/${name}`, question.body(fields.values()));
    if (answer) place.show(answer);
  }

  build();
  if (!question.long || state.run) ask();
  return {
    update(to) {
      current = to;
      build();
      if (!question.long || to.run) ask();
      else place.clear();
    },
    leave: () => place.cancel(),
  };
}

const filled = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
