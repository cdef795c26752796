// The gallery: every finished picture, the newest first.

import { $, arrange, element, put } from "./dom.js";
import { thumbnail } from "./picture.js";
import { ask } from "./server.js";
import { ago, whole } from "./words.js";

const PAGE = 48;

export class Gallery {
  #tiles = new Map();
  #visit = 0;

  constructor() {
    $("older-assets").addEventListener("click", () => this.#load([...this.#tiles.keys()].at(-1)));
  }

  clear() {
    this.#visit += 1;
    this.#tiles.clear();
    arrange($("assets"), []);
    $("no-assets").hidden = true;
    $("older-assets").hidden = true;
  }

  /** The newest, from the server. */
  async refresh() {
    await this.#load();
  }

  async #load(before) {
    const visit = this.#visit;
    const query = new URLSearchParams({ limit: PAGE, ...(before && { before }) });
    try {
      const { told } = await ask(`/assets?${query}`);
      // Who asked may have left meanwhile.
      if (visit !== this.#visit) return;
      put($("gallery-problem"), null);
      const tiles = told.assets.map((asset) => [asset.jobId, this.#tiles.get(asset.jobId) ?? this.#made(asset)]);
      // A Map keeps each key where it was first put.
      this.#tiles = new Map(before ? [...this.#tiles, ...tiles] : [...tiles, ...this.#tiles]);
      if (before || this.#tiles.size <= PAGE) $("older-assets").hidden = told.assets.length < PAGE;
    } catch (error) {
      put($("gallery-problem"), error.message);
    }
    arrange($("assets"), [...this.#tiles.values()]);
    $("no-assets").hidden = this.#tiles.size > 0 || !$("gallery-problem").hidden;
  }

  #made(asset) {
    const tile = element("li", { className: "tile" });
    tile.dataset.id = asset.jobId;
    tile.style.setProperty("--ratio", asset.width / asset.height);
    const picture = { id: asset.jobId, link: asset.url, prompt: asset.prompt, size: `${asset.width}x${asset.height}`, at: asset.createdAt };
    const time = element("time", { dateTime: asset.createdAt, title: whole(asset.createdAt), text: ago(asset.createdAt) });
    const caption = element("p", { className: "caption" });
    caption.append(element("span", { className: "words", text: asset.prompt }), time);
    tile.append(thumbnail(picture), caption);
    return tile;
  }
}
