// What is asked of the server. Every answer is JSON, or lines of it where a question takes long.

const KEY = "cutaway-key"; // kept for this tab alone, where the server asks for one
let needKey = null;

/** Who is called when the server wants a key: it promises one. */
export function onKeyNeeded(ask) {
  needKey = ask;
}

export class Failure extends Error {}

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(`/page/api/${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("the server does not answer: is it still running?");
  }
  if (response.status === 401 && needKey) {
    sessionStorage.setItem(KEY, await needKey(Boolean(key)));
    return request(path, options);
  }
  if (!response.ok) throw new Failure(await reason(response));
  return response;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answers ${response.status} ${response.statusText}`;
  }
}

export async function get(path, options) {
  return (await request(path, options)).json();
}

/** Asks, and hands what is told on the way to `progress`: how far it is, and what is found so far. */
export async function post(path, body, { signal, progress = () => {} } = {}) {
  const response = await request(path, { method: "POST", body: JSON.stringify(body), signal });
  if (!response.headers.get("Content-Type").startsWith("application/x-ndjson")) return response.json();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    text += value ?? "";
    const lines = text.split("\n");
    text = lines.pop();
    for (const line of lines) {
      const one = JSON.parse(line);
      if (one.error) throw new Failure(one.error.message);
      if (one.answer) return one.answer;
      progress(one.progress, one.so_far);
    }
    if (done) throw new Failure("the answer broke off: is the server still running?");
  }
}

/** Fetches an answer as one file and hands it to the browser's downloads. */
export async function save(id, name) {
  const response = await request(`answers/${id}/html`);
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = `${name}.html`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
