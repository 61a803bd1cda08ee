"use strict";
// Answers of the server; in an exported report, answers that were written beside the page.
R.ApiError = class extends Error {
  constructor(body) {
    super(body.message);
    Object.assign(this, body);
  }
};

R.query = (parameters) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") query.append(name, item);
    }
  }
  return query.toString();
};

R.api = async (path, parameters, post) => {
  if (R.exported) return R.exported.answer(path, parameters || {});
  const query = R.query(parameters);
  let response;
  try {
    response = await fetch(`api/${path}${query ? `?${query}` : ""}`, post
      ? {
        method: "POST",
        headers: { "content-type": "application/json", ...R.tokenHeader() },
        body: JSON.stringify(post),
      }
      : undefined);
  } catch {
    throw new R.ApiError({
      kind: "unreachable",
      message: "The server does not answer.",
      hint: "is `rldbg ui` still running?",
    });
  }
  let body;
  try {
    body = await response.json();
  } catch {
    body = null;
  }
  if (!response.ok || !body) {
    throw new R.ApiError(
      (body && body.error) || { kind: "internal", message: `The server answered ${response.status}.`, hint: "" },
    );
  }
  return body;
};

R.tokenHeader = () => (R.token ? { authorization: `Bearer ${R.token}` } : {});

// Asks until long work is done; tells `running` how long it has taken.
R.job = async (view, path, parameters, running) => {
  for (let wait = 150;; wait = Math.min(wait * 1.5, 1500)) {
    const answer = await R.api(path, parameters);
    if (answer.state === "done") return answer.result;
    if (!view.alive) throw new R.Gone();
    if (running) running(answer.seconds);
    await new Promise((resolve) => {
      setTimeout(resolve, wait);
    });
  }
};

R.Gone = class extends Error {};
