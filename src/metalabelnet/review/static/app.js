// Keyboard shortcuts. The pages work without this file and without htmx.
"use strict";
const page = document.body.dataset.page;
const message = document.getElementById("message");
const cards = () => [...document.querySelectorAll(".card")];
const tab = (sessionStorage.tab ??= Array.from(crypto.getRandomValues(new Uint8Array(8)), b => b.toString(16)).join(""));
document.addEventListener("formdata", event => { if (event.formData.has("tab")) event.formData.set("tab", tab); });

// Tiny images are scaled up without smoothing.
const markTiny = image => image.classList.toggle("tiny", image.naturalWidth > 0 && image.naturalWidth <= 64);
document.addEventListener("load", event => { if (event.target.matches?.(".card img")) markTiny(event.target); }, true);
document.querySelectorAll(".card img").forEach(markTiny);

let current = null; // the card that shortcuts apply to
const focusCard = card => { if (card) { current = card; card.focus({ preventScroll: true }); card.scrollIntoView({ block: "nearest" }); } };
document.addEventListener("focusin", event => { current = event.target.closest(".card") ?? current; });
if (page === "check") focusCard(cards().find(card => !card.classList.contains("decided")) ?? cards()[0]);

// The classes that match the typed prefix, as on the server.
const classes = [...document.querySelectorAll("#classes option")].map(option => option.value);
document.addEventListener("input", event => {
  const output = event.target.closest(".choose")?.querySelector(".match");
  if (!output) return;
  const typed = event.target.value.trim().toLowerCase();
  const exact = classes.filter(name => name.toLowerCase() === typed);
  const matches = exact.length ? exact : classes.filter(name => typed && name.toLowerCase().startsWith(typed));
  output.textContent = matches.length === 1 ? `Enter: ${matches[0]}` : typed ? (matches.slice(0, 8).join(", ") || "no such class") : "";
});

// In the grid, htmx replaces the card. Focus moves to the next card at once, and back if the verdict was not saved.
document.addEventListener("htmx:beforeRequest", event => {
  const card = event.target.closest(".card"), index = cards().indexOf(card);
  if (current === card && event.detail.requestConfig.parameters.action !== "undo") focusCard(cards()[index + 1] ?? card);
});
document.addEventListener("htmx:afterSwap", event => {
  if (event.target.matches?.(".card") && (!current?.isConnected || event.target.querySelector(".alert"))) focusCard(event.target);
});
document.addEventListener("htmx:responseError", event => {
  message.textContent ||= event.detail.xhr.responseText; // responses without a message of their own
  focusCard(event.target.closest(".card"));
});
document.addEventListener("htmx:sendError", event => {
  message.textContent = "The server does not respond. The verdict was not saved; restart the program and open its new address.";
  focusCard(event.target.closest(".card"));
});

const click = element => { element?.click(); return Boolean(element); };
const press = (container, value) => click(container?.querySelector(`button[name=action][value=${value}]`));
const undo = () => click(document.getElementById("undo"));
const follow = key => click(document.querySelector(`[data-key="${key}"]`));
const move = key => {
  const all = cards(), index = Math.max(0, all.indexOf(current)), top = all[index]?.offsetTop;
  const columns = Math.max(1, all.filter(card => card.offsetTop === all[0].offsetTop).length);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  if (top === undefined) return false;
  focusCard(all[Math.min(all.length - 1, Math.max(0, index + step))]);
  return true;
};
const keys = {
  k: () => press(current, "keep"), s: () => press(current, "corrected"),
  x: () => press(current, "unusable"), Delete: () => press(current, "unusable"),
  n: () => press(current, "skip"), " ": () => press(current, "skip"),
  c: () => { current?.querySelector("input[name=class]").focus(); return Boolean(current); },
  u: undo, v: () => follow("v"), PageDown: () => follow("PageDown"),
  ArrowRight: () => move("ArrowRight"), ArrowLeft: () => move("ArrowLeft"),
  ArrowDown: () => move("ArrowDown"), ArrowUp: () => move("ArrowUp"),
};
keys["/"] = keys.c;
const cleanKeys = { Delete: () => press(document, "unusable"), PageDown: () => press(document, "skip") };

document.addEventListener("keydown", event => {
  if (event.altKey || event.metaKey || event.isComposing) return;
  const field = event.target.closest("input:not([type=hidden]), select, textarea");
  const empty = !field || (field.name === "class" && field.value === "");
  let handled = false;
  if (event.ctrlKey) handled = event.key === "z" && empty && undo();
  else if (field && event.key === "Escape") { field.value = field.name === "class" ? "" : field.value; focusCard(field.closest(".card") ?? current); handled = true; }
  else if (page === "clean" && empty) handled = cleanKeys[event.key]?.();
  else if (page === "check" && !field && !(event.key === " " && event.target.closest("button, a, summary"))) handled = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key]?.();
  if (handled) event.preventDefault();
});
