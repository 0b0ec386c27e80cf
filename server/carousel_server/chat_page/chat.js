// The chat page: sessions on the server, transcripts in this tab. No build step and no outside assets.
"use strict";

const $ = (id) => document.getElementById(id);
const sessions = new Map(); // id -> {name, items: [{kind, ...}], calls: open calls}
let current = null;
let running = null; // {controller, requestId}

const WORDS = {
  session_lost: "This session ended with its server. Start a new one; the text above is still yours to copy.",
  session_expired: "This session was idle for too long, or made room for others. Start a new one.",
  session_busy: "This session is still answering. Wait for it, or stop it.",
  queue_full: "The server is full at the moment. Try again in a second.",
  sessions_full: "Every session of the server is in use. Try again soon.",
  session_full: "This session has no room left. Start a new one.",
  context_length_exceeded: "The conversation is longer than the model can read. Start a new session.",
  invalid_api_key: "The server needs an API key: enter it on the left.",
  loading: "The model is still loading.",
  draining: "This server is about to restart and takes no new sessions.",
  server_shutdown: "The server is shutting down.",
  cancelled: "Stopped.",
};

function headers() {
  const found = { "content-type": "application/json" };
  if ($("key").value) found.authorization = "Bearer " + $("key").value;
  return found;
}

async function call(method, path, body) {
  const reply = await fetch(path, { method, headers: headers(), body: body && JSON.stringify(body) });
  if (!reply.ok) throw await failure(reply);
  return reply.json();
}

async function failure(reply) {
  const found = await reply.json().catch(() => ({ error: { message: reply.statusText } }));
  return Object.assign(new Error(found.error.message), { code: found.error.code });
}

function words(error) {
  const known = WORDS[error.code];
  if (known) return error.code === "cancelled" ? known : `${known} (${error.message})`;
  return error instanceof TypeError ? "The server cannot be reached." : error.message;
}

// Sessions

async function create() {
  const body = {};
  if ($("system").value.trim()) body.system = $("system").value;
  if ($("temperature").value) body.temperature = Number($("temperature").value);
  if ($("tools").value.trim()) {
    try {
      body.tools = JSON.parse($("tools").value);
    } catch (error) {
      throw new Error("The tools are not JSON: " + error.message);
    }
  }
  const made = await call("POST", "v1/sessions", body);
  sessions.set(made.id, { name: "New session", items: [], calls: [] });
  show(made.id);
  return made.id;
}

async function drop(id) {
  try {
    await call("DELETE", "v1/sessions/" + id);
  } catch (error) {
    if (error.code === "session_busy") return say(words(error));
  }
  sessions.delete(id);
  if (current === id) show(sessions.keys().next().value ?? null);
  else list();
}

function list() {
  $("sessions").replaceChildren(
    ...[...sessions].map(([id, session]) => {
      const item = document.createElement("li");
      const name = button(session.name, () => show(id), "name");
      name.title = id;
      name.setAttribute("aria-current", String(id === current));
      const remove = button("×", () => drop(id), "drop");
      remove.setAttribute("aria-label", "Delete session " + session.name);
      item.append(name, remove);
      return item;
    }),
  );
}

function button(text, action, name) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.className = name;
  made.addEventListener("click", action);
  return made;
}

function show(id) {
  current = id;
  $("log").replaceChildren(...(sessions.get(id)?.items ?? []).map(render));
  list();
  say("");
  $("input").focus();
  scroll();
}

// What is on the page

function add(id, item) {
  sessions.get(id).items.push(item);
  if (id === current) $("log").append(render(item));
  scroll();
  return item;
}

function render(item) {
  const node = document.createElement("div");
  node.className = "turn " + item.kind;
  node.textContent = item.text;
  item.node = node;
  if (item.kind === "call") renderCall(node, item);
  return node;
}

function renderCall(node, item) {
  node.textContent = item.name + "(" + item.text + ")";
  if (item.result !== undefined) {
    node.append("\n→ " + item.result);
    return;
  }
  if (!item.complete) return;
  const form = document.createElement("form");
  const input = document.createElement("input");
  input.setAttribute("aria-label", "Result of " + item.name);
  input.placeholder = "result of this call";
  const answer = document.createElement("button");
  answer.textContent = "Answer";
  form.append(input, answer);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    item.result = input.value;
    renderCall(node, item);
    answerCalls(item.session);
  });
  node.append(form);
}

function scroll() {
  $("log").scrollTop = $("log").scrollHeight;
}

function say(text) {
  $("status").textContent = text;
}

// Turns

async function send(text) {
  try {
    const id = current ?? (await create());
    const session = sessions.get(id);
    if (session.name === "New session") session.name = text.slice(0, 40);
    list();
    add(id, { kind: "user", text });
    await turn(id, [{ role: "user", content: text }]);
  } catch (error) {
    say(words(error));
  }
}

function answerCalls(id) {
  const session = sessions.get(id);
  if (session.calls.some((item) => item.result === undefined)) return;
  const messages = session.calls.map((item) => ({ role: "tool", tool_call_id: item.id, content: item.result }));
  session.calls = [];
  turn(id, messages);
}

async function turn(id, messages) {
  const controller = new AbortController();
  running = { controller, requestId: null };
  $("stop").disabled = false;
  $("send").disabled = true;
  say("waiting …");
  const reply = { id, text: null, calls: [] };
  try {
    const body = { session_id: id, stream: true, messages };
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(body),
      signal: controller.signal,
    });
    if (!response.ok) throw await failure(response);
    const deadline = response.headers.get("x-session-deadline");
    for await (const event of eventsOf(response.body)) take(reply, event);
    say(deadline === null ? "" : `This server restarts soon: the session ends ${deadline} s after this reply.`);
    sessions.get(id).calls = reply.calls;
    for (const item of reply.calls) {
      item.complete = true;
      renderCall(item.node, item);
    }
  } catch (error) {
    const stopped = error.name === "AbortError" || error.code === "cancelled";
    say(stopped ? "Stopped. The session is as it was before this message." : "");
    if (!stopped) add(id, { kind: "error", text: words(error) });
  } finally {
    running = null;
    $("stop").disabled = true;
    $("send").disabled = false;
    $("input").focus();
  }
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const line = held.slice(0, end);
      held = held.slice(end + 2);
      if (line.startsWith(": ")) say(line.slice(2));
      else if (line === "data: [DONE]") return;
      else if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

function take(reply, event) {
  if (event.error) throw Object.assign(new Error(event.error.message), { code: event.error.code });
  if (running) running.requestId = event.id;
  const choice = event.choices[0];
  if (!choice) return;
  if (choice.delta.content) {
    reply.text ??= add(reply.id, { kind: "assistant", text: "" });
    reply.text.text += choice.delta.content;
    reply.text.node.textContent = reply.text.text;
    say("");
    scroll();
  }
  for (const part of choice.delta.tool_calls ?? []) {
    reply.calls[part.index] ??= add(reply.id, {
      kind: "call", session: reply.id, id: part.id, name: part.function.name, text: "",
    });
    const item = reply.calls[part.index];
    item.text += part.function.arguments;
    renderCall(item.node, item);
  }
  if (choice.finish_reason === "length") say("The reply was cut at its token limit.");
}

function stop() {
  if (!running) return;
  const { requestId, controller } = running;
  if (requestId) call("POST", `v1/requests/${requestId}/cancel`).catch(() => controller.abort());
  else controller.abort();
}

// Keys and buttons

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value;
  if (!text.trim() || running) return;
  $("input").value = "";
  send(text);
});
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.altKey && event.key.toLowerCase() === "n") create().catch((error) => say(words(error)));
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => create().catch((error) => say(words(error))));

async function look() {
  try {
    const health = await (await fetch("health")).json();
    $("health").textContent = health.status + (health.progress < 1 ? ` ${Math.round(health.progress * 100)} %` : "");
    if (!$("model").textContent && health.status === "serving") {
      const model = (await call("GET", "v1/models")).data[0];
      $("model").textContent = `${model.id} · ${model.max_model_len} tokens`;
    }
  } catch {
    $("health").textContent = "not reachable";
  }
}
look();
setInterval(look, 5000);
