// Keys. Everything works without this file and without htmx, by mouse or Tab.
"use strict";
const page = document.body.dataset.page;
const said = document.getElementById("said");
const cards = () => [...document.querySelectorAll(".card")];
const tab = (sessionStorage.tab ??= Array.from(crypto.getRandomValues(new Uint8Array(8)), b => b.toString(16)).join(""));
document.addEventListener("formdata", event => { if (event.formData.has("tab")) event.formData.set("tab", tab); });

// Tiny pictures are shown as the pixels they are.
const look = image => image.classList.toggle("tiny", image.naturalWidth > 0 && image.naturalWidth <= 64);
document.addEventListener("load", event => { if (event.target.matches?.(".card img")) look(event.target); }, true);
document.querySelectorAll(".card img").forEach(look);

let current = null; // the card that keys are for
const go = card => { if (card) { current = card; card.focus({ preventScroll: true }); card.scrollIntoView({ block: "nearest" }); } };
document.addEventListener("focusin", event => { current = event.target.closest(".card") ?? current; });
if (page === "check") go(cards().find(card => !card.classList.contains("decided")) ?? cards()[0]);

// The classes that fit what was typed, as the server will understand it.
const classes = [...document.querySelectorAll("#classes option")].map(option => option.value);
document.addEventListener("input", event => {
  const shown = event.target.closest(".choose")?.querySelector(".match");
  if (!shown) return;
  const typed = event.target.value.trim().toLowerCase();
  const exact = classes.filter(name => name.toLowerCase() === typed);
  const fit = exact.length ? exact : classes.filter(name => typed && name.toLowerCase().startsWith(typed));
  shown.textContent = fit.length === 1 ? `Enter: ${fit[0]}` : typed ? (fit.slice(0, 8).join(", ") || "no class begins so") : "";
});

// In the grid htmx puts the new card in place of the old: on to the next one meanwhile, back if nothing was written.
document.addEventListener("htmx:beforeRequest", event => {
  const card = event.target.closest(".card"), place = cards().indexOf(card);
  if (current === card && event.detail.requestConfig.parameters.action !== "undo") go(cards()[place + 1] ?? card);
});
document.addEventListener("htmx:afterSwap", event => {
  if (event.target.matches?.(".card") && (!current?.isConnected || event.target.querySelector(".alert"))) go(event.target);
});
document.addEventListener("htmx:responseError", event => {
  said.textContent ||= event.detail.xhr.responseText; // where it was no page of ours with its sentence
  go(event.target.closest(".card"));
});
document.addEventListener("htmx:sendError", event => {
  said.textContent = "The program does not answer. Nothing was written; start it again and open its new address.";
  go(event.target.closest(".card"));
});

const click = part => { part?.click(); return Boolean(part); };
const press = (where, value) => click(where?.querySelector(`button[name=action][value=${value}]`));
const undo = () => click(document.getElementById("undo"));
const follow = key => click(document.querySelector(`[data-key="${key}"]`));
const move = key => {
  const all = cards(), place = Math.max(0, all.indexOf(current)), top = all[place]?.offsetTop;
  const columns = Math.max(1, all.filter(card => card.offsetTop === all[0].offsetTop).length);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  if (top === undefined) return false;
  go(all[Math.min(all.length - 1, Math.max(0, place + step))]);
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
  let done = false;
  if (event.ctrlKey) done = event.key === "z" && empty && undo();
  else if (field && event.key === "Escape") { field.value = field.name === "class" ? "" : field.value; go(field.closest(".card") ?? current); done = true; }
  else if (page === "clean" && empty) done = cleanKeys[event.key]?.();
  else if (page === "check" && !field && !(event.key === " " && event.target.closest("button, a, summary"))) done = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key]?.();
  if (done) event.preventDefault();
});
