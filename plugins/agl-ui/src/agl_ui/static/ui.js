// Keys for who has no mouse in hand, and the two things that a click may change.
(() => {
  "use strict";
  const typing = (one) => one.closest("input, select, textarea, [contenteditable]");
  const rows = () => [...document.querySelectorAll("table.list tbody tr")].map((row) => row.querySelector("a[href]")).filter(Boolean);

  function step(by) {
    const links = rows();
    if (!links.length) return;
    const here = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const next = links[Math.min(links.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  const press = (selector) => { const found = document.querySelector(selector); if (found) found.click(); return found; };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && typing(event.target)) { event.target.blur(); return; }
    if (typing(event.target)) return;
    const tab = Number(event.key);
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "n") press('.pages a[rel="next"]');
    else if (event.key === "f") press('.pages a[rel="first"]');
    else if (event.key === "r") press(".brand");
    else if (tab >= 1 && tab <= 9) press(`.tabs a:nth-of-type(${tab})`);
    else if (event.key === "?") { const help = document.getElementById("keys"); if (help) help.open = !help.open; }
    else if (event.key === "/") {
      const field = document.querySelector(".filters input:not([type=hidden]):not([type=checkbox]), .filters select, .filters input");
      if (!field) return;
      event.preventDefault();
      field.focus();
    }
  });

  // A button that needs several choices waits for them; the list of runs may be placed anew.
  const count = () => { for (const one of document.querySelectorAll("button[data-least]")) one.disabled = one.form.querySelectorAll(":checked").length < Number(one.dataset.least); };
  new MutationObserver(count).observe(document.body, { childList: true, subtree: true });
  document.addEventListener("change", count);
  window.addEventListener("pageshow", count);  // a browser may restore what was ticked

  // Charts tell the values of the step under the pointer; steps that a mouse is dragged over are drawn alone.
  const [band, tip] = ["band", "tip"].map((name) => Object.assign(document.createElement("div"), { className: name, hidden: true }));
  document.body.append(band, tip);
  let begin = null;
  function nearest(svg, x) {
    const { a, e } = svg.getScreenCTM();
    const points = [...svg.querySelectorAll("path[data-at]")].flatMap((path) => {
      const at = path.dataset.at.split(" ").map((one) => one.split(":"));
      return [...path.getAttribute("d").matchAll(/[ML](\S+)/g)].map((one, n) => ({ x: one[1] * a + e, step: at[n][0], says: `${path.dataset.name} ${at[n][1]}` }));
    });
    if (!points.length) return null;
    const found = points.reduce((one, other) => (Math.abs(other.x - x) < Math.abs(one.x - x) ? other : one));
    return { ...found, svg, says: `step ${found.step}: ${points.filter((one) => one.step === found.step).map((one) => one.says).join(", ")}` };
  }
  function lay(one, left, top, width, height) {
    one.hidden = false;
    Object.assign(one.style, { left: `${left + scrollX}px`, top: `${top + scrollY}px`, width: width && `${width}px`, height: height && `${height}px` });
  }
  function point(event) {
    const svg = begin ? begin.svg : event.target.closest && event.target.closest(".chart svg");
    const found = svg && svg.isConnected && nearest(svg, event.clientX);
    band.hidden = tip.hidden = true;
    if (!found) { begin = null; return; }
    const box = svg.getBoundingClientRect(), from = begin ? begin.x : found.x;
    lay(band, Math.min(from, found.x), box.top, Math.max(1, Math.abs(from - found.x)), box.height);
    tip.textContent = found.says;
    lay(tip, 0, box.top, "", "");
    lay(tip, Math.max(0, Math.min(found.x + 10, innerWidth - tip.offsetWidth - 10)), box.top, "", "");
    return found;
  }
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", (event) => {
    const found = point(event);
    if (!found || event.pointerType !== "mouse" || event.button || !found.svg.closest("[data-zoom]")) return;
    begin = found;
    event.preventDefault();
  });
  document.addEventListener("pointerup", (event) => {
    const found = begin && point(event), first = begin;
    begin = null;
    if (!found || first.step === found.step) return;
    const here = new URL(location.pathname + location.search, location.origin);
    const [from, to] = [first.step, found.step].sort((one, other) => one - other);
    here.searchParams.set("from", from);
    here.searchParams.set("to", to);
    location.assign(here);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-act]");
    if (!button) return;
    event.preventDefault();
    if (!button.dataset.asked) {  // the first click asks back
      button.dataset.asked = "1";
      button.textContent = `Really ${button.dataset.act}?`;
      return;
    }
    button.disabled = true;
    const said = document.getElementById("act-answer");
    try {
      const answer = await fetch(new URL(button.dataset.address, location.origin), {  // no name and token in it
        method: "POST", credentials: "same-origin",
        headers: { "Content-Type": "application/json" }, body: JSON.stringify({ do: button.dataset.act }),
      });
      const told = await answer.json();
      if (answer.ok) { location.reload(); return; }
      said.textContent = told.detail;
    } catch (error) {
      said.textContent = `The server does not answer (${error.message}). Is it still running?`;
    }
    button.disabled = false;
  });
})();
