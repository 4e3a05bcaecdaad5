"""Hold one file or folder for each kind of source; `SOURCES` lists them all.

To add a kind of source:

1. Write `data/sources/NAME.py` with a subclass of `contextcaps.data.source.Source`, or of
   `contextcaps.data.file_source.FileSource` if its samples are image files in a folder (`voc.py` is an example).
2. Its constructor takes `(location, *, on_bad="stop", split=None, ...)`, reads the index but no image, sets `classes`
   and `root` (and `splits`, if the data has any, before `self._choose_split(split)`), calls
   `self.problems.add(where, what)` for each bad sample, and ends with `self._settle()`.
3. Implement `__len__`, `sample`, `labels_of` and `_identity` (a `FileSource` calls `_keep` and `_finish` instead).
4. Add a line to `SOURCES`. Now `contextcaps data inspect NAME:LOCATION`, training and all other commands know it.
5. Test it in `tests/data/sources/test_NAME.py`.
"""

__all__ = ["SOURCES"]

SOURCES = {
    "scenes": "scenes.ScenesSource",
    "ade20k": "ade20k.ADE20KSource",
    "coco": "coco.COCOSource",
    "voc": "voc.VOCSource",
    "yolo": "yolo.YOLOSource",
    "folders": "folders.FoldersSource",
    "metadata": "metadata.MetadataSource",
    "table": "table.TableSource",
    "shards": "shards.ShardsSource",
    "mnist": "mnist.MNISTSource",
    "multimnist": "mnist.MultiMNISTSource",
    "hf": "hf.HFSource",
}
"""Kind → module of this folder and class; imported when a source of this kind is opened."""
