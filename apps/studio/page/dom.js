// DOM helpers. Text is only set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

export const cloneTemplate = (id) => $(id).content.firstElementChild.cloneNode(true);

export function element(name, { text, ...given } = {}) {
  const made = Object.assign(document.createElement(name), given);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** An SVG icon of the page. */
export function icon(name) {
  const [svg, use] = ["svg", "use"].map((each) => document.createElementNS("http://www.w3.org/2000/svg", each));
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** Set an element's text, or hide it without one. An unchanged text is not set: screen readers would repeat it. */
export function setText(place, text) {
  if (place.textContent !== (text ?? "")) place.textContent = text ?? "";
  place.hidden = !text;
}

/** Update a list without flicker: elements that stay are moved, not replaced. */
export function arrange(list, elements) {
  const wanted = new Set(elements);
  for (const child of [...list.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((each, place) => {
    if (list.children[place] !== each) list.insertBefore(each, list.children[place] ?? null);
  });
}

/** Announce a sentence to screen readers. */
export function announce(sentence) {
  const place = $("announcements");
  // Screen readers ignore an unchanged text, so a repeated sentence gets a different ending.
  place.textContent = place.textContent === sentence ? `${sentence}\u00a0` : sentence;
}
