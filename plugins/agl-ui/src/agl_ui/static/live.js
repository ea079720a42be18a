// Keeps a page as its store is. The server says when what the page is about has changed, since the
// cursor that the page has; then the page's own address is asked for again, which has the window
// that is seen and no more, and what is marked data-live and has changed is put in its place.
// Nothing is asked for while nobody looks, and an answer that took long is asked for less often.
(() => {
  "use strict";
  const address = document.body.dataset.events;
  if (!address || !window.EventSource) return;
  const LEAST = 1000, MOST = 30000;  // milliseconds between two questions
  const TIMES = 30;  // and so many times what the last answer took: 3 % of a core at most
  // A browser has six connections to a host. So many pages of all windows hold one to be told of
  // changes; any more ask for themselves every few seconds, until one is free.
  const STREAMS = 4, POLL = 5000;
  const SAID = {
    live: "This page follows the store",
    held: "Something has changed where you have selected text or the keyboard is; it comes when you leave",
    waiting: "The server does not say whether anything has changed; it is asked again",
  };
  const mark = document.getElementById("live-mark");
  const held = new Map();  // Part of the page -> what came while somebody was in it.
  let source = null, isOpen = false, cursor = null;
  let isEntering = false, free = null, poll = 0;
  let asking = false, again = false, trouble = "", fails = 0, old = 0;

  function say() {
    const state = trouble || !isOpen ? "waiting" : held.size ? "held" : "live";
    if (!mark) return;
    mark.title = trouble || SAID[state];
    if (mark.dataset.state !== state) { mark.dataset.state = state; mark.textContent = state; }
  }

  function put(part, fresh) {
    const text = fresh.innerHTML;
    const places = [...part.querySelectorAll(".scroll, .words, .ids, pre")].map((one) => [one.scrollTop, one.scrollLeft]);
    const open = [...part.querySelectorAll("details")].map((one) => one.open);
    const ticked = new Set([...part.querySelectorAll("input:checked")].map((one) => one.value));
    part.replaceChildren(...fresh.childNodes);
    part.toggleAttribute("data-live", fresh.hasAttribute("data-live"));  // its parts may follow apart from now on
    if (fresh.dataset.until) part.dataset.until = fresh.dataset.until;
    else delete part.dataset.until;
    for (const one of part.querySelectorAll("input[type=checkbox]")) one.checked = ticked.has(one.value);
    [...part.querySelectorAll("details")].forEach((one, at) => { if (at in open) one.open = open[at]; });
    [...part.querySelectorAll(".scroll, .words, .ids, pre")].forEach((one, at) => {
      if (!places[at]) return;
      if (one.dataset.window) one.dataset.place = places[at][0];
      else [one.scrollTop, one.scrollLeft] = places[at];
    });
    // What a script makes of it does not count as a change.
    part.agl = text;
    for (const one of part.querySelectorAll("[data-live]")) one.agl = one.innerHTML;
  }

  function isInUse(part) {
    const chosen = document.getSelection();
    return part.contains(document.activeElement) || (chosen && !chosen.isCollapsed && chosen.containsNode(part, true));
  }

  function place(fresh) {
    for (const [part, one] of fresh) {
      if (isInUse(part)) held.set(part, one);
      else { held.delete(part); put(part, one); }
    }
    say();
    document.dispatchEvent(new Event("agl:fresh"));
    // Some of it is true for so long only, with no change in the store.
    clearTimeout(old);
    const seconds = [...document.querySelectorAll("[data-until]")].map((one) => Number(one.dataset.until));
    if (seconds.length) old = setTimeout(refresh, Math.max(LEAST, 1000 * Math.min(...seconds, 3600)));
  }

  function changed(page) {
    const found = [];
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(part.id);
      if (fresh && fresh.innerHTML !== (part.agl ?? part.innerHTML)) found.push([part, fresh]);
      else held.delete(part);
    }
    return found;
  }

  async function refresh() {
    if (document.hidden || asking) { again = true; return; }
    asking = true;
    again = false;
    const here = new URL(location.pathname + location.search, location.origin);
    if (here.searchParams.has("again")) {  // computed once for who asked, and not at each change
      here.searchParams.delete("again");
      history.replaceState(history.state, "", here.pathname + here.search + location.hash);
    }
    const begin = performance.now();
    let wait = LEAST;
    try {
      const answer = await fetch(here, { credentials: "same-origin" });
      const text = await answer.text();
      wait = Math.max(LEAST, TIMES * (performance.now() - begin));
      if (!answer.ok) throw new Error(`it answered ${answer.status}`);
      trouble = "";
      fails = 0;
      place(changed(new DOMParser().parseFromString(text, "text/html")));
    } catch (error) {
      trouble = `This page could not be asked for again (${error.message}); what stands here is older. It is tried again`;
      again = true;
      wait = Math.min(MOST, LEAST * 2 ** fails++);
      say();
    }
    setTimeout(() => { asking = false; if (again) refresh(); }, wait);
  }

  // Whether one of the connections is free; it is this page's until it calls free().
  async function enter() {
    if (!navigator.locks) return true;
    for (let n = 0; n < STREAMS; n++) {
      const has = await new Promise((tell) => {
        navigator.locks.request(`agl-ui-stream-${n}`, { ifAvailable: true }, (lock) => {
          tell(Boolean(lock));
          return lock ? new Promise((done) => { free = done; }) : undefined;
        });
      });
      if (has) return true;
    }
    return false;
  }

  async function follow() {
    if (source || document.hidden || isEntering) return;
    isEntering = true;
    const has = await enter();
    isEntering = false;
    if (document.hidden) { leave(); return; }
    if (!has) {
      isOpen = true;
      poll = setTimeout(() => { refresh(); follow(); }, POLL);
      return;
    }
    const from = new URL(address, location.href);
    if (cursor) from.searchParams.set("since", cursor);
    source = new EventSource(from);
    source.addEventListener("change", (event) => { cursor = event.lastEventId || cursor; refresh(); });
    source.addEventListener("open", () => { isOpen = true; say(); });
    source.addEventListener("error", () => {
      isOpen = false;
      say();
      // A browser tries again by itself where nobody answers, but not where the answer was no.
      if (source && source.readyState === EventSource.CLOSED) { leave(); setTimeout(follow, MOST / 6); }
    });
  }

  function leave() {
    if (source) source.close();
    if (free) free();
    clearTimeout(poll);
    source = free = null;
    isOpen = false;
  }

  // After the event: the focus may go to another place of the same part.
  const release = () => setTimeout(() => { if (held.size) place([...held]); });

  for (const part of document.querySelectorAll("[data-live]")) part.agl = part.innerHTML;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { leave(); return; }
    follow();
    if (again) refresh();
  });
  document.addEventListener("focusout", release);
  document.addEventListener("selectionchange", release);
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", (event) => { if (event.persisted) { follow(); refresh(); } });
  place([]);
  follow();
})();
