"""A model behind HTTP: an API for programs, and a page to tag photographs with. Needs the extra `serve`."""
