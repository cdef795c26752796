// The few things that every part of the page does to its document. Text is only ever set as text.

export const $ = (id) => document.getElementById(id);

export const stamp = (id) => $(id).content.firstElementChild.cloneNode(true);

export function element(name, { text, ...given } = {}) {
  const made = Object.assign(document.createElement(name), given);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A drawing out of the page's own set. */
export function mark(name) {
  const [drawing, use] = ["svg", "use"].map((each) => document.createElementNS("http://www.w3.org/2000/svg", each));
  drawing.setAttribute("class", "mark");
  drawing.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#mark-${name}`);
  drawing.append(use);
  return drawing;
}

/** Show a text, or hide its place when there is none. Setting the same again is left out, so that no screen reader repeats it. */
export function put(place, text) {
  if (place.textContent !== (text ?? "")) place.textContent = text ?? "";
  place.hidden = !text;
}

/** A list without flicker: each thing keeps its element, in the order given. */
export function arrange(list, elements) {
  const wanted = new Set(elements);
  for (const child of [...list.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((each, place) => {
    if (list.children[place] !== each) list.insertBefore(each, list.children[place] ?? null);
  });
}

/** Say it to whoever listens to the page. */
export function tell(sentence) {
  const place = $("told");
  // The same sentence twice is two events, and an unchanged text would be told once.
  place.textContent = place.textContent === sentence ? `${sentence}\u00a0` : sentence;
}
