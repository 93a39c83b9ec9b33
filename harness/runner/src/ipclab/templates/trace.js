// Shows the steps of the chosen process, memory, time and words.
"use strict";
(() => {
  const field = (name) => document.getElementById(name);
  const steps = [...document.querySelectorAll("#steps > li[data-t]")].map((element) => ({
    element,
    at: Number(element.dataset.t),
    processes: element.dataset.p.split(" "),
    memory: element.dataset.m,
    text: element.textContent.toLowerCase(),
  }));
  const show = () => {
    const process = field("process").value;
    const memory = field("memory").value;
    const from = Number(field("from").value || 0);
    const to = field("to").value === "" ? Infinity : Number(field("to").value);
    const words = field("words").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const step of steps) {
      const fits = (!process || step.processes.includes(process)) &&
        (!memory || step.memory === memory) && step.at >= from && step.at <= to &&
        words.every((word) => step.text.includes(word));
      step.element.hidden = !fits;
      shown += fits;
    }
    field("told").value = `${shown} of ${steps.length} steps`;
  };
  field("choices").addEventListener("input", show);
  field("choices").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/input|select/i.test(event.target.tagName)) {
      event.preventDefault();
      field("words").focus();
    } else if (event.key === "Escape") {
      field("choices").reset();
      show();
    }
  });
  show();
})();
