// Shows the entries ([data-state]) that have the words and one of the pressed states. A
// group without a shown entry is also hidden. "/" moves to the field for words, and
// Escape shows everything again. A link to a hidden entry also shows everything.
"use strict";
(() => {
  const form = document.querySelector(".filter");
  const words = form.querySelector("input");
  const told = form.querySelector("output");
  const buttons = [...document.querySelectorAll("[data-show]")];
  const groups = [...document.querySelectorAll("[data-group]")];
  const entries = [...document.querySelectorAll("[data-state]")].map((element) => ({
    element,
    states: element.dataset.state.split("|"),
    text: element.textContent.toLowerCase(),
  }));

  const pressed = () => buttons
    .filter((button) => button.getAttribute("aria-pressed") === "true")
    .map((button) => button.dataset.show);

  const show = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const states = pressed();
    let shown = 0;
    for (const entry of entries) {
      const fits = wanted.every((word) => entry.text.includes(word)) &&
        (!states.length || states.some((state) => entry.states.includes(state)));
      entry.element.hidden = !fits;
      shown += fits;
    }
    for (const group of groups)
      group.hidden = !group.querySelector("[data-state]:not([hidden])");
    told.value = `${shown} of ${entries.length} shown`;
    remember(wanted, states);
  };

  // Folded parts are open while the reader searches.
  const folds = [...document.querySelectorAll("details.lesson")]
    .map((element) => ({ element, open: element.open }));

  // The address contains the search, so that a reader can send it to somebody.
  const remember = (wanted, states) => {
    for (const { element, open } of folds)
      element.open = open || wanted.length > 0 || states.length > 0;
    const kept = new URLSearchParams();
    if (words.value.trim()) kept.set("q", words.value.trim());
    for (const state of states) kept.append("show", state);
    const query = kept.toString();
    try {
      history.replaceState(null, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
    } catch { /* this page has no address of its own */ }
  };

  const showAll = () => {
    words.value = "";
    for (const button of buttons) button.setAttribute("aria-pressed", "false");
    show();
  };

  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.closest("[hidden]")) showAll();
    for (let at = target.closest("details"); at; at = at.parentElement.closest("details"))
      at.open = true;
    target.scrollIntoView();
  };

  for (const button of buttons) {
    button.disabled = false;
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!on));
      show();
    });
  }
  words.addEventListener("input", () => {
    show();
    entries.find((entry) => !entry.element.hidden)?.element
      .scrollIntoView({ block: "nearest" });
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") showAll();
    else if (event.key === "/" && document.activeElement !== words) {
      event.preventDefault();
      words.focus();
    }
  });
  window.addEventListener("hashchange", follow);
  form.hidden = false;
  const asked = new URLSearchParams(location.search);
  words.value = asked.get("q") ?? "";
  for (const button of buttons)
    if (asked.getAll("show").includes(button.dataset.show)) button.setAttribute("aria-pressed", "true");
  show();
  follow();
})();
