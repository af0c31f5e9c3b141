// Draws the page's diagrams in the colours that the page has when it is opened.
const chosen = document.body.dataset.theme;
const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral", securityLevel: "strict" });
mermaid.run();
