"""Tag a corpus that is too large for one process, with Ray Data as the engine."""

from contextcaps.corpus.engine import CorpusOptions, tag_corpus
from contextcaps.corpus.work import Model

__all__ = ["CorpusOptions", "Model", "tag_corpus"]
