// Parts that the live page and the report share: elements, and the words of a prompt that an image got wrong.
"use strict";

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const marked = (words, remark) => make("mark", { class: "wrong", title: remark }, words, make("span", { class: "unseen" }, ` (${remark})`));

// `wrong` has [start, end, remark] of each part of the prompt
function read(prompt, wrong) {
  const most = 3;
  if (!wrong.length) return make("span", { class: "read" }, make("span", { class: "right" }, "✓ as asked"));
  const words = wrong.slice(0, most).flatMap(([start, end, remark], index) => [index ? ", " : "", marked(prompt.slice(start, end), remark)]);
  const rest = wrong.slice(most).map((one) => one[2]).join("; ");
  const more = rest ? [" ", make("span", { title: rest }, `and ${wrong.length - most} more`)] : [];
  return make("span", { class: "read" }, make("span", { class: "unseen" }, "Wrong: "), ...words, ...more);
}

function markedPrompt(prompt, wrong) {
  const parts = [];
  let done = 0;
  for (const [start, end, remark] of [...wrong].sort((a, b) => a[0] - b[0])) {
    if (start < done) continue;
    parts.push(prompt.slice(done, start), marked(prompt.slice(start, end), remark));
    done = end;
  }
  return [...parts, prompt.slice(done)];
}
