// Keeps a page as its store is. The server says when what the page is about has changed, since the
// cursor that the page has; then the page's own address is asked for again, which has the window
// that is seen and no more, and what is marked data-live and has changed is put in its place.
// Nothing is asked for while nobody looks, and never more than once a second.
(() => {
  "use strict";
  const address = document.body.dataset.events;
  if (!address || !window.EventSource) return;
  const mark = document.getElementById("live-mark");
  let source = null, waiting = false, again = false, cursor = null;

  const show = (state) => { if (mark && mark.dataset.state !== state) { mark.dataset.state = state; mark.textContent = state; } };

  function put(old, fresh) {
    const places = [...old.querySelectorAll(".scroll, .words, .ids, pre")].map((one) => [one.scrollTop, one.scrollLeft]);
    const open = [...old.querySelectorAll("details")].map((one) => one.open);
    old.replaceChildren(...fresh.childNodes);
    [...old.querySelectorAll("details")].forEach((one, at) => { if (at in open) one.open = open[at]; });
    [...old.querySelectorAll(".scroll, .words, .ids, pre")].forEach((one, at) => {
      if (!places[at]) return;
      if (one.dataset.window) one.dataset.place = places[at][0];
      else [one.scrollTop, one.scrollLeft] = places[at];
    });
  }

  async function refresh() {
    if (document.hidden || waiting) { again = true; return; }
    waiting = true;
    again = false;
    try {
      const answer = await fetch(new URL(location.pathname + location.search, location.origin), { headers: { "X-Live": "1" }, credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(old.id);
        // What a script made of the old one does not count as a change.
        const text = fresh && fresh.innerHTML;
        if (!fresh || text === (old.agl || old.innerHTML)) continue;
        if (old.contains(document.activeElement) || hasSelection(old)) { again = true; continue; }
        put(old, fresh);
        old.agl = text;
      }
      document.dispatchEvent(new Event("agl:fresh"));
      show("live");
    } catch {
      show("waiting");
    }
    // The store may change faster than anyone reads.
    setTimeout(() => { waiting = false; if (again && !document.activeElement.closest("[data-live]")) refresh(); }, 1000);
  }

  function hasSelection(part) {
    const chosen = document.getSelection();
    return chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode);
  }

  function follow() {
    if (source || document.hidden) return;
    const from = new URL(address, location.href);
    if (cursor) from.searchParams.set("since", cursor);
    source = new EventSource(from);
    source.addEventListener("change", (event) => { cursor = event.lastEventId || cursor; refresh(); });
    source.addEventListener("open", () => show("live"));
    source.addEventListener("error", () => show("waiting"));
  }

  for (const part of document.querySelectorAll("[data-live]")) part.agl = part.innerHTML;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { if (source) source.close(); source = null; return; }
    follow();
  });
  document.addEventListener("focusout", () => { if (again) refresh(); });
  window.addEventListener("pagehide", () => { if (source) source.close(); source = null; });
  window.addEventListener("pageshow", (event) => { if (event.persisted) { follow(); refresh(); } });
  follow();
})();
