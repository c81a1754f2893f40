// Forms from a list of fields. Their values go to the address, and come from there.

import { make } from "./tools.js";

let made = 0;

/**
 * fields: { name, label, kind: "text" | "lines" | "number" | "select" | "check", value, options, hint, when, ...attributes }.
 * Returns { element, values(), field(name) }; values that equal their defaults are left out of values(true).
 */
export function form(fields, given, submit, words = "Ask") {
  const controls = {};
  const conditions = []; // of fields that are there only beside certain values of others
  const parts = fields.map((field) => {
    const id = `field-${++made}`;
    const hint = field.hint ? make("span", { class: "hint", id: `${id}-hint` }, field.hint) : null;
    const control = controlOf(field, id, given[field.name] ?? field.value, hint && hint.id);
    controls[field.name] = { field, control };
    const label = make("label", { for: id }, field.label);
    const inside = field.kind === "check" ? [control, label] : [label, control];
    const part = make("div", { class: `field${field.kind === "check" ? " check" : ""}${field.wide ? " wide" : ""}` }, inside, hint);
    if (field.when) conditions.push(() => (part.hidden = !field.when(api.values())));
    return part;
  });
  const element = make("form", { class: "form", novalidate: true }, parts,
    words ? make("div", { class: "submit" }, make("button", { type: "submit", class: "main" }, words)) : null);
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
  });
  const read = ({ field, control }) => (field.kind === "check" ? control.checked : control.value);
  const api = {
    element,
    field: (name) => controls[name].control,
    values(changed = false) {
      const found = {};
      for (const [name, one] of Object.entries(controls)) {
        const value = read(one);
        if (!changed || String(value) !== String(one.field.value ?? "")) found[name] = value;
      }
      return found;
    },
  };
  const settle = () => conditions.forEach((one) => one());
  element.addEventListener("change", settle);
  settle();
  return api;
}

function controlOf(field, id, value, hint) {
  const { name, label, kind, value: _, options, hint: __, wide, when, ...attributes } = field;
  const common = { id, name, "aria-describedby": hint, ...attributes };
  if (kind === "lines") {
    const area = make("textarea", { rows: 3, spellcheck: "false", ...common });
    area.value = value ?? "";
    return area;
  }
  if (kind === "select") {
    const select = make("select", common, options.map((one) => {
      const [key, text] = Array.isArray(one) ? one : [one, one];
      return make("option", { value: key }, text);
    }));
    select.value = value ?? "";
    return select;
  }
  if (kind === "check") {
    const box = make("input", { type: "checkbox", ...common });
    box.checked = value === true || value === "true";
    return box;
  }
  const input = make("input", { type: kind === "number" ? "number" : "text", autocomplete: "off", spellcheck: "false", ...common });
  input.value = value ?? "";
  return input;
}

/** A number of a field, or nothing where it is left empty. */
export const numberOf = (text) => (text === "" || text === undefined || text === null ? null : Number(text));
