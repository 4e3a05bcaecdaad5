"""Tag a corpus that is too large for one process, with Ray Data as the engine."""

from contextcaps.corpus.cluster import require_ray

require_ray()  # before the modules that import pyarrow, which Ray Data brings

from contextcaps.corpus.engine import CorpusOptions, tag_corpus  # noqa: E402
from contextcaps.corpus.work import Model  # noqa: E402

__all__ = ["CorpusOptions", "Model", "tag_corpus"]
