// Print what is folded, then fold it again.
addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((fold) => {
  fold.open = true; fold.dataset.folded = "";
}));
addEventListener("afterprint", () => document.querySelectorAll("details[data-folded]").forEach((fold) => {
  fold.open = false; delete fold.dataset.folded;
}));
