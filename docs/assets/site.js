// Typesets equations, and draws the diagrams of the pages that have some.
"use strict";

const here = document.currentScript.src;

document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(element, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
      throwOnError: false,
    });
  }
  const diagrams = document.querySelectorAll("pre.diagram");
  if (!diagrams.length) return;
  const script = document.createElement("script"); // 2.5 MB, and so only where it is needed
  script.src = new URL("vendor/mermaid/mermaid.tiny.js", here);
  script.onload = () => {
    for (const block of diagrams) {
      const drawing = document.createElement("div");
      drawing.className = "diagram";
      drawing.textContent = block.textContent;
      block.replaceWith(drawing);
    }
    const dark = document.body.dataset.mdColorScheme === "slate";
    mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral", securityLevel: "strict" });
    mermaid.run({ querySelector: "div.diagram" });
  };
  document.head.append(script);
});
