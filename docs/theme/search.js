// The search ranks the pages of the index (index.js) and shows each page with a line of
// context. A word counts by BM25 in the text, and in addition if it is in a title, in a
// heading or among the words by which people search for the page: the fewer words there,
// the more. The reader may type only the beginning of a word, and one or two letters may
// be wrong.
"use strict";
(() => {
  const IGNORED = new Set(("a all an and any are as at be been between by can could do does doing for from get got " +
    "had has have how i if in into is it its me my no not of on one or should so than that the their them " +
    "then there they this to up was we were what when where which whose why will with would " +
    "you your example examples").split(" "));
  // Title, heading, other words: place in an entry, weight, number of words of a usual size.
  const LABELS = [[1, 1.6, 4], [2, 2, 4], [3, 2.4, 40]];
  // What an entry gets if its name is what was typed. A word of the glossary gets less: a page
  // or a section about this word comes first.
  const NAMED = 1000, TERM = 14;
  const PAIR = 1.2;  // what a word gets in addition if the word beside it is beside it in a label, too
  // Words of readers and words of this book for the same thing.
  const ALIKE = ["cpu host", "crash die kill", "differ difference compare",
    "container docker podman", "untrusted safe security", "speed fast slow performance", "sync synchronise order"];
  const MOST = 8;
  let built = null;

  // A command's option of one letter is no word.
  const words = (text) => text.toLowerCase().replace(/(^|\s)-\w(?=\s|$)/g, " ")
    .match(/[a-z]+-\d+|[a-z_]\w*|\d+/g) || [];

  // Removes the usual endings of an English word, and spells American words like British
  // ones: free, frees, freed and freeing have the stem fre.
  const stem = (word) => /^[a-z]{3,}$/.test(word) ?
    word.replace(/([iy])z(e[ds]?|ing|ations?)$/, "$1s$2").replace(/ense$/, "ence")
      .replace(/(..)ie[sd]$/, "$1y").replace(/e[sd]$/, "e").replace(/(..)ing$/, "$1").replace(/([^s])s$/, "$1")
      .replace(/([bdgmnprt])\1$/, "$1").replace(/e$/, "") : word;

  const alike = new Map(ALIKE.flatMap((line) => {
    const group = words(line).map(stem);
    return group.map((word) => [word, group]);
  }));

  // The stems of a text without the words that say nothing. All stems if nothing remains.
  const telling = (text) => {
    const all = words(text), some = all.filter((word) => !IGNORED.has(word));
    return (some.length ? some : all).map(stem);
  };

  const build = () => {
    const postings = new Map();
    const lengths = [], beside = [];
    ipclabIndex.forEach((entry, number) => {
      const text = words(entry[4]).map(stem);
      const counts = new Map();
      for (const word of text) counts.set(word, (counts.get(word) || 0) + 1);
      const labels = new Map(), pairs = new Set();
      for (const [field, weight, usual] of LABELS) {
        const said = telling(entry[field]);
        for (const word of new Set(said))
          labels.set(word, (labels.get(word) || 0) + weight / Math.sqrt(1 + said.length / usual));
        said.forEach((word, i) => i && pairs.add(`${said[i - 1]} ${word}`));
      }
      beside.push(pairs);
      lengths.push(text.length);
      for (const word of new Set([...counts.keys(), ...labels.keys()])) {
        if (!postings.has(word)) postings.set(word, []);
        postings.get(word).push([number, counts.get(word) || 0, labels.get(word) || 0]);
      }
    });
    const mean = lengths.reduce((sum, x) => sum + x, 0) / lengths.length;
    return { postings, lengths, mean, beside, vocabulary: [...postings.keys()] };
  };

  // Returns the number of edits between two words, or a number greater than `most` if
  // there are more than `most` edits.
  const distance = (one, other, most) => {
    if (Math.abs(one.length - other.length) > most) return most + 1;
    let before = [], row = [...Array(other.length + 1).keys()];
    for (let i = 1; i <= one.length; i++) {
      const next = [i];
      for (let j = 1; j <= other.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1,
          row[j - 1] + (one[i - 1] !== other[j - 1]));
        if (i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1])
          next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      if (Math.min(...next) > most) return most + 1;
      before = row;
      row = next;
    }
    return row[other.length];
  };

  // Words of the index that the reader may mean by a typed word, each with its likelihood.
  const meant = (typed) => {
    const found = new Map();
    for (const word of alike.get(typed) || [])
      if (built.postings.has(word)) found.set(word, 0.8);
    if (built.postings.has(typed)) found.set(typed, 1);
    if (typed.length >= 3)
      for (const word of built.vocabulary)
        if (word.startsWith(typed) && !found.has(word))
          found.set(word, 0.3 + 0.4 * typed.length / word.length);
    if (!found.size && typed.length >= 4) {
      const most = typed.length >= 8 ? 2 : 1;
      const close = (word) => typed.length > 5 || word[0] === typed[0];  // "rust" must not find "must"
      for (const word of built.vocabulary)
        if (close(word) && distance(typed, word, most) <= most) found.set(word, 0.4);
    }
    if (!found.size && typed.length >= 4)
      for (const word of built.vocabulary)
        if (word.includes(typed)) found.set(word, 0.3);
    return found;
  };

  // Number of an entry -> its weight for each typed word.
  const score = (typed) => {
    const scores = new Map();
    typed.forEach((term, place) => {
      for (const [word, likely] of meant(term)) {
        const list = built.postings.get(word);
        const often = Math.max(list.length, built.postings.get(term)?.length || 0);
        const rare = Math.log(1 + (ipclabIndex.length - often + 0.5) / (often + 0.5));
        for (const [number, count, label] of list) {
          const long = 0.4 + 0.6 * built.lengths[number] / built.mean;
          const pairs = built.beside[number];
          const pair = pairs.has(`${typed[place - 1]} ${word}`) || pairs.has(`${word} ${typed[place + 1]}`);
          const value = likely * rare * (count * 2.2 / (count + 1.2 * long) + label + (pair ? PAIR : 0)) *
            ipclabIndex[number][5];
          if (!scores.has(number)) scores.set(number, Array(typed.length).fill(0));
          const worth = scores.get(number);
          worth[place] = Math.max(worth[place], value);
        }
      }
    });
    return scores;
  };

  const sum = (values) => values.reduce((all, x) => all + x, 0);

  // Returns the best section of each page that has the words, best page first. For each
  // word a page gets the best weight of its sections. A page whose sections are about
  // unrelated things gets the weights of its best section. A typed number that is the code
  // in a heading, such as 201, is what the reader looks for.
  const find = (text) => {
    const typed = [...new Set(telling(text))];
    const example = /\b(example|sample|tutorial|code)s?\b/i.test(text);
    const whole = text.trim().toLowerCase();
    const pages = new Map();
    for (const [number, found] of score(typed)) {
      const entry = ipclabIndex[number];
      const named = entry[5] > 0.6 && [entry[2].split(" (")[0], entry[1].split(":")[0].replace(/^\d\d /, "")]
        .some((name, i) => name.toLowerCase() === whole && (i === 0 || !entry[2]));
      const page = entry[0].split("#")[0];
      const values = found.map((x) => example && page.startsWith("lesson_") ? 2 * x : x);
      const exact = named ? (page === "glossary.html" ? TERM : NAMED * entry[5]) : 0;
      if (!pages.has(page)) pages.set(page, { best: 0, values: Array(typed.length).fill(0), bonus: 0 });
      const seen = pages.get(page);
      const coded = typed.some((word) => /^\d+$/.test(word) && entry[2].includes(`(${word})`));
      const worth = sum(values) * (values.filter(Boolean).length / typed.length) * (coded ? 4 : 1) +
        exact;
      if (worth > seen.best) Object.assign(seen, { best: worth, entry, ...(entry[6] && { values }) });
      seen.bonus = Math.max(seen.bonus, exact > TERM ? exact : 0, worth * 0.5);
      if (!entry[6]) seen.values = seen.values.map((x, i) => Math.max(x, values[i]));
    }
    return [...pages.values()]
      .map((x) => ({ ...x, worth: x.bonus +
        sum(x.values) * (x.values.filter(Boolean).length / typed.length) ** 2 }))
      .sort((a, b) => b.worth - a.worth)
      .slice(0, MOST).map((x) => ({ entry: x.entry, typed }));
  };

  // A piece of the text around the first typed word, with the typed words marked.
  const context = (text, typed) => {
    const like = (word) => typed.some((x) => stem(word.toLowerCase()).startsWith(x));
    const at = [...text.matchAll(/[\w-]+/g)].find((x) => like(x[0]))?.index ?? 0;
    const start = at > 60 ? text.indexOf(" ", at - 60) + 1 : 0;
    const line = document.createElement("span");
    line.className = "context";
    if (start) line.append("… ");
    for (const piece of text.slice(start, start + 150).split(/([\w-]+)/)) {
      if (piece && /\w/.test(piece) && like(piece)) {
        const mark = document.createElement("mark");
        mark.textContent = piece;
        line.append(mark);
      } else line.append(piece);
    }
    return line;
  };

  const box = document.getElementById("search");
  const hits = document.getElementById("hits");
  let chosen = -1;

  const choose = (next) => {
    const all = [...hits.querySelectorAll("a")];
    all[chosen]?.setAttribute("aria-selected", "false");
    chosen = all.length ? (next + all.length) % all.length : -1;
    all[chosen]?.setAttribute("aria-selected", "true");
    all[chosen]?.scrollIntoView({ block: "nearest" });
    if (chosen >= 0) box.setAttribute("aria-activedescendant", all[chosen].id);
    else box.removeAttribute("aria-activedescendant");
  };

  const close = () => {
    hits.hidden = true;
    box.setAttribute("aria-expanded", "false");
    choose(-1);
    chosen = -1;
  };

  const show = () => {
    hits.replaceChildren();
    chosen = -1;
    box.removeAttribute("aria-activedescendant");
    const text = box.value.trim();
    if (!text) return close();
    built ??= build();
    const found = find(text);
    found.forEach(({ entry, typed }, number) => {
      const hit = document.createElement("a");
      hit.href = entry[0];
      hit.id = `hit-${number}`;
      hit.setAttribute("role", "option");
      hit.setAttribute("aria-selected", "false");
      const title = document.createElement("b");
      title.textContent = entry[1];
      hit.append(title);
      if (entry[2]) hit.append(` › ${entry[2]}`);
      hit.append(context(entry[4], typed));
      hits.append(hit);
    });
    if (!found.length) {
      const none = document.createElement("div");
      none.setAttribute("role", "option");
      none.setAttribute("aria-selected", "false");
      none.className = "none";
      none.textContent = "Nothing found. Try one word, a number or the name of a call.";
      hits.append(none);
    }
    hits.hidden = false;
    box.setAttribute("aria-expanded", "true");
  };

  box.addEventListener("input", show);
  box.addEventListener("focus", show);
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Escape") close();
    else if (event.key === "Enter") (hits.querySelectorAll("a")[Math.max(chosen, 0)])?.click();
    else return;
    event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".search")) close();
  });
  hits.addEventListener("click", (event) => { if (event.target.closest("a")) close(); });
  if (document.activeElement === box) show();
})();
