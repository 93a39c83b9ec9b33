// Goes through the trace of a lesson step by step. It marks the moment in the sequence
// and in the picture of memory together with the line of the program.
"use strict";
(() => {
  const figure = document.querySelector("figure.steps");
  const steps = [...figure.querySelectorAll(".step")];
  const stack = figure.querySelector(".stack");  // the same steps, for a narrow screen
  const [sequence, memory] = figure.querySelectorAll(".sequence-scroll");
  const program = [...document.querySelectorAll("main [data-line]")];
  const others = [...figure.querySelector("template").content.querySelectorAll("span")];  // also lines that the page does not show
  if (!steps.length) return;

  const element = (name, attributes = {}, ...inside) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const button = (text, label) => element("button", { type: "button", "aria-label": label }, text);

  const first = button("First", "To the first step");
  const back = button("◀ Back", "One step back");
  const next = button("Next ▶", "One step on");
  const play = button("Play", "Play all steps");
  const count = element("span", { class: "soft" });
  const told = element("p", { class: "told", "aria-live": "polite" });
  const code = element("div", { class: "lines" });
  const controls = element("div", { class: "controls" },
    element("div", { class: "buttons", role: "group", "aria-label": "Steps of the trace" },
      first, back, next, play, count), told, code);
  figure.prepend(controls);
  figure.classList.add("live");

  // Removes the first spaces of a line. They may be in several elements.
  const outdent = (line, spaces) => {
    const texts = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
    while (spaces > 0 && texts.nextNode()) {
      const text = texts.currentNode;
      const blank = Math.min(spaces, text.data.length - text.data.trimStart().length);
      const whole = blank === text.data.length;
      text.data = text.data.slice(blank);
      spaces = whole ? spaces - blank : 0;
    }
  };

  // The lines around a line are cloned, so that they look as in the program below.
  const AROUND = 3;
  const excerpt = (role, line) => {
    const number = Number(line);
    const near = (x) => Math.abs(Number(x.dataset.line) - number) <= AROUND;
    const onPage = program.some((x) => Number(x.dataset.line) === number);
    const shown = (onPage ? program : others).filter(near);
    const box = element("div", {}, element("b", {}, role));
    const pre = element("pre", { tabindex: "0", role: "group", "aria-label": `Code of the ${role}` });
    const margin = Math.min(...shown.map((x) => x.textContent).filter((x) => x.trim())
      .map((x) => x.search(/\S/)));
    for (const one of shown) {
      const copy = one.cloneNode(true);
      copy.removeAttribute("data-line");
      outdent(copy, margin);
      copy.classList.toggle("now", Number(one.dataset.line) === number);
      pre.append(copy);
    }
    box.append(pre);
    return box;
  };

  const moments = (memory?.querySelector(".moments")?.dataset.moments ?? "").split(" ")
    .filter(Boolean).map((pair) => pair.split(",").map(Number));
  const now = memory?.querySelector("line.now");
  const place = (at) => {  // between two moments, in proportion
    const after = moments.findIndex(([t]) => t > at);
    if (after === 0) return moments[0][1] - 14;
    if (after < 0) return moments[moments.length - 1][1] + 3;
    const [[t1, x1], [t2, x2]] = [moments[after - 1], moments[after]];
    return x1 + 3 + (x2 - x1 - 6) * Math.min(1, (at - t1) / (t2 - t1));
  };

  const groups = memory ? [...memory.querySelectorAll(".group")] : [];

  // The names of memory and processes stay visible, above the part that scrolls.
  const names = memory ? [...memory.querySelectorAll("text.block, text.who")] : [];
  for (const name of names) name.parentNode.append(name);
  memory?.addEventListener("scroll", () => {
    for (const name of names) name.setAttribute("transform", `translate(${memory.scrollLeft} 0)`);
  });

  let current = -1;
  const show = (wanted) => {
    current = Math.max(0, Math.min(steps.length - 1, wanted));
    const step = steps[current];
    steps.forEach((other, i) => {
      other.classList.toggle("now", i === current);
      other.classList.toggle("later", i > current);
    });
    [...stack.children].forEach((item, i) => item.classList.toggle("now", i === current));
    const item = stack.children[current];
    stack.scrollTo({ top: item.offsetTop - stack.offsetTop - stack.clientHeight / 2 });
    count.textContent = `${current + 1} of ${steps.length}`;
    told.textContent = step.dataset.told ?? "";
    for (const group of groups)
      group.classList.toggle("now", group.dataset.memory === step.dataset.memory);
    back.disabled = first.disabled = current === 0;
    next.disabled = current === steps.length - 1;
    const lines = (step.dataset.lines ?? "").split(" ").filter(Boolean).map((x) => x.split(":"));
    code.replaceChildren(...lines.map(([role, line]) => excerpt(role, line)));
    for (const line of program)
      line.classList.toggle("now", lines.some(([, number]) => number === line.dataset.line));
    const box = step.getBBox();
    sequence.scrollTo({ top: box.y - sequence.clientHeight / 2,
      left: box.x + box.width / 2 - sequence.clientWidth / 2 });
    if (now && moments.length) {
      const x = place(Number(step.dataset.at));
      now.setAttribute("x1", x);
      now.setAttribute("x2", x);
      const fits = x < memory.clientWidth - 60;
      memory.scrollTo({ left: fits ? 0 : x - memory.clientWidth / 2 });
    }
  };

  let timer = 0;
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  const move = (wanted) => { stop(); show(wanted); };
  back.addEventListener("click", () => move(current - 1));
  next.addEventListener("click", () => move(current + 1));
  first.addEventListener("click", () => move(0));
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (current === steps.length - 1) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (current === steps.length - 1) stop();
      else show(current + 1);
    }, 1500);
  });
  figure.addEventListener("keydown", (event) => {
    if (event.target.closest("pre")) return;
    if (event.key === "ArrowRight") move(current + 1);
    else if (event.key === "ArrowLeft") move(current - 1);
    else return;
    event.preventDefault();
  });
  [...stack.children].forEach((item, i) => item.addEventListener("click", () => move(i)));
  steps.forEach((step, i) => step.addEventListener("click", (event) => {
    if (!event.target.closest("a")) move(i);
  }));
  show(0);
})();
