// What every page does: it opens the menu on a small screen, switches between light and
// dark, adds copy buttons, and loads the search when the reader needs it.
"use strict";
(() => {
  const root = document.documentElement;
  const script = (name) => new Promise((done) => {
    const element = document.createElement("script");
    element.src = name;
    element.onload = done;
    document.head.append(element);
  });

  const menu = document.getElementById("menu-button");
  menu.addEventListener("click", () => {
    const open = root.classList.toggle("menu-open");
    menu.setAttribute("aria-expanded", String(open));
    if (open && current) current.closest("#menu").scrollTop = current.offsetTop - 120;
  });
  document.getElementById("menu").addEventListener("click", (event) => {
    if (!event.target.closest("a")) return;
    root.classList.remove("menu-open");
    menu.setAttribute("aria-expanded", "false");
  });

  document.getElementById("theme-button").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" :
      matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = localStorage.theme = dark ? "light" : "dark";
  });

  const box = document.getElementById("search");
  let wanted = null;
  const ready = () => wanted ??= script("index.js").then(() => script("search.js"));
  for (const sign of ["focus", "input"]) box.addEventListener(sign, ready, { once: true });
  box.form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    box.focus();
  });
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) ready().then(() => { box.value = asked; box.focus(); });

  // A copy button on every program and command.
  for (const code of document.querySelectorAll("main div.code, main [data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy-button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const text = code.dataset.copy ??
        [...code.querySelectorAll(".line")].map((line) => line.textContent).join("\n") + "\n";
      try {
        await navigator.clipboard.writeText(text);
      } catch {  // in some browsers a page that is opened as a file may not use the clipboard
        const area = document.createElement("textarea");
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    code.append(button);
  }

  // Marks the current section in the menu.
  const places = [...document.querySelectorAll("#menu .sections a")]
    .map((link) => ({ link, heading: document.getElementById(decodeURIComponent(link.hash.slice(1))) }));
  if (places.length) {
    const mark = () => {
      const read = places.filter(({ heading }) => heading?.getBoundingClientRect().top < 140).pop();
      for (const place of places) place.link.classList.toggle("read", place === read);
    };
    addEventListener("scroll", mark, { passive: true });
    mark();
  }
  const current = document.querySelector("#menu [aria-current]");
  if (current) current.closest("#menu").scrollTop = current.offsetTop - 120;

  // Opens all folded parts before the page is printed.
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("main details:not([open])")) folded.open = true;
  });

  if (document.querySelector(".steps")) script("steps.js");
})();
