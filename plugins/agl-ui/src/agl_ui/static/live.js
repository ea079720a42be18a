// Keeps a page as its store is: on a word from the server the page is asked for again, and what is
// marked data-live and has changed is put in its place. Nothing is asked for while nobody looks.
(() => {
  "use strict";
  const address = document.body.dataset.events;
  if (!address || !window.EventSource) return;
  const mark = document.getElementById("live-mark");
  let source = null, waiting = false, again = false;

  const show = (state) => { if (mark) { mark.dataset.state = state; mark.textContent = state; } };

  async function refresh() {
    if (document.hidden || waiting) { again = true; return; }
    waiting = true;
    again = false;
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(old.id);
        if (!fresh || fresh.innerHTML === old.innerHTML || old.contains(document.activeElement)) continue;
        const places = [...old.querySelectorAll(".scroll")].map((one) => [one.scrollTop, one.scrollLeft]);
        const open = [...old.querySelectorAll("details")].map((one) => one.open);
        old.replaceChildren(...fresh.childNodes);
        [...old.querySelectorAll(".scroll")].forEach((one, at) => {
          if (places[at]) [one.scrollTop, one.scrollLeft] = places[at];
        });
        [...old.querySelectorAll("details")].forEach((one, at) => { if (at in open) one.open = open[at]; });
      }
      show("live");
    } catch {
      show("waiting");
    }
    // The store may change faster than anyone reads.
    setTimeout(() => { waiting = false; if (again) refresh(); }, 1000);
  }

  function follow() {
    if (source || document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("change", refresh);
    source.addEventListener("open", () => show("live"));
    source.addEventListener("error", () => show("waiting"));
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { if (source) source.close(); source = null; return; }
    follow();
    refresh();
  });
  follow();
})();
