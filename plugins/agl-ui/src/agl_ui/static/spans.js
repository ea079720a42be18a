// The spans of a long trace: only those that are seen are here. Scrolling asks for the window that
// comes into view, and puts it in the place of the one before, between two empty rows that are as
// high as all that is not here.
(() => {
  "use strict";
  const AHEAD = 30;
  let box = null, body = null, height = 28, asked = -1, running = null, timer = 0;

  const pad = (rows) => {
    const row = document.createElement("tr");
    row.className = "pad";
    row.setAttribute("aria-hidden", "true");
    const cell = row.appendChild(document.createElement("td"));
    cell.colSpan = 3;
    cell.style.height = `${Math.max(0, rows) * height}px`;
    return row;
  };

  function put(first, total, rows) {
    body.dataset.first = first;
    body.dataset.total = total;
    body.replaceChildren(pad(first), ...rows, pad(total - first - rows.length));
  }

  async function look() {
    const total = Number(body.dataset.total), first = Number(body.dataset.first);
    const shown = body.rows.length - 2;
    const top = Math.floor(box.scrollTop / height), bottom = Math.ceil((box.scrollTop + box.clientHeight) / height);
    const isHere = top >= first && (bottom <= first + shown || first + shown >= total);
    const want = Math.max(0, Math.min(top - AHEAD, total - 1));
    if (isHere || want === asked) return;
    if (running) running.abort();
    running = new AbortController();
    asked = want;
    box.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(`${box.dataset.window}&from=${want}`, { signal: running.signal, credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("tbody");
      put(Number(fresh.dataset.first), Number(fresh.dataset.total), [...fresh.rows].map((row) => document.adoptNode(row)));
      const here = new URL(location.href);
      if (want) here.searchParams.set("spans", want); else here.searchParams.delete("spans");
      history.replaceState(history.state, "", here);
      asked = -1;
      box.removeAttribute("aria-busy");
      look();
    } catch (error) {
      if (error.name === "AbortError") return;
      asked = -1;
      box.removeAttribute("aria-busy");
    }
  }

  function begin() {
    box = document.getElementById("waterfall");
    if (!box || !box.dataset.window) return;
    body = box.querySelector("tbody");
    if (!body.rows.length || body.querySelector(".pad")) return;
    document.documentElement.classList.add("scripted");
    height = body.rows[0].getBoundingClientRect().height || height;
    const first = Number(body.dataset.first);
    const kept = box.scrollTop;
    put(first, Number(body.dataset.total), [...body.rows]);
    box.scrollTop = box.dataset.place || (kept >= first * height ? kept : first * height);
    box.addEventListener("scroll", () => {
      cancelAnimationFrame(timer);
      timer = requestAnimationFrame(look);
    }, { passive: true });
  }

  document.addEventListener("agl:fresh", begin);
  begin();
  const why = location.hash === "#why" && document.getElementById("why-title");
  if (why) why.focus({ preventScroll: true });
})();
