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
