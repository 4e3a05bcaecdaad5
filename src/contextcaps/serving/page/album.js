// The photographs and what is known of them: plain data, without a page.

/** 128 random bits: nobody else can name this photograph. */
function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newPhoto(file) {
  return {
    key: newKey(), file, name: file.name || "pasted.png", state: "waiting", error: null, url: null, thumbnail: null,
    scores: null, known: {}, moves: [], before: null, reasons: new Map(), turn: 0,
  };
}

export class Album {
  constructor() {
    this.photos = [];
    this.current = null;
    this.model = null;
    this.threshold = null; // null: each class's own
    this.history = [];
  }

  /** The score from which a class counts as present. */
  thresholdOf(name) { return this.threshold ?? this.model.thresholds[name] ?? 0.5; }

  isTag(photo, name) { return photo.known[name] ?? photo.scores[name] >= this.thresholdOf(name); }

  /** All classes of a photograph, best first; those that were said to be there before all others. */
  ranked(photo) {
    return [...this.model.classes].sort((a, b) => photo.scores[b] - photo.scores[a]);
  }

  tagsOf(photo) { return photo.scores ? this.ranked(photo).filter((name) => this.isTag(photo, name)) : []; }

  /** Tag → number of photographs that have it, most first. */
  counts() {
    const counts = new Map();
    for (const photo of this.photos) for (const name of this.tagsOf(photo)) counts.set(name, (counts.get(name) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
  }

  /** The photographs with a tag; all without one. */
  shown(filter) { return filter ? this.photos.filter((photo) => photo.scores && this.isTag(photo, filter)) : this.photos; }

  /** Note what was known of photographs, so that it can be undone. */
  remember(photos, what) { this.history.push({ what, before: photos.map((photo) => [photo, { ...photo.known }]) }); }

  /** Rows as the API gives them, for files. */
  rows() {
    return this.photos.filter((photo) => photo.scores || photo.error).map((photo) => {
      if (!photo.scores) return { image: photo.name, tags: [], error: photo.error };
      const tags = this.tagsOf(photo).map((name) => ({
        name, score: photo.scores[name], ...(photo.known[name] ? { given: true } : {}),
      }));
      return { image: photo.name, tags, given: photo.known };
    });
  }
}
