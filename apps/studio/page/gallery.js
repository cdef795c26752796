// The gallery view: all finished pictures, newest first.

import { $, arrange, element, setText } from "./dom.js";
import { thumbnail } from "./viewer.js";
import { request } from "./api.js";
import { formatAge, formatTime } from "./formatting.js";

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

  /** Load the newest pictures. */
  async refresh() {
    await this.#load();
  }

  async #load(before) {
    const visit = this.#visit;
    const query = new URLSearchParams({ limit: PAGE, ...(before && { before }) });
    try {
      const { data } = await request(`/assets?${query}`);
      // The user may have signed out in the meantime.
      if (visit !== this.#visit) return;
      setText($("gallery-problem"), null);
      const tiles = data.assets.map((asset) => [asset.jobId, this.#tiles.get(asset.jobId) ?? this.#create(asset)]);
      // A Map keeps the position of a key's first insertion.
      this.#tiles = new Map(before ? [...this.#tiles, ...tiles] : [...tiles, ...this.#tiles]);
      if (before || this.#tiles.size <= PAGE) $("older-assets").hidden = data.assets.length < PAGE;
    } catch (error) {
      setText($("gallery-problem"), error.message);
    }
    arrange($("assets"), [...this.#tiles.values()]);
    $("no-assets").hidden = this.#tiles.size > 0 || !$("gallery-problem").hidden;
  }

  #create(asset) {
    const tile = element("li", { className: "tile" });
    tile.dataset.id = asset.jobId;
    tile.style.setProperty("--ratio", asset.width / asset.height);
    const { jobId: id, url: link, prompt, createdAt: at } = asset;
    const picture = { id, link, prompt, size: `${asset.width}x${asset.height}`, at };
    const time = element("time", { dateTime: at, title: formatTime(at), text: formatAge(at) });
    const caption = element("p", { className: "caption" });
    caption.append(element("span", { className: "words", text: prompt }), time);
    tile.append(thumbnail(picture), caption);
    return tile;
  }
}
