"""Hold one file or folder for each kind of source; `SOURCES` lists them all.

CONTRIBUTING.md has the steps for adding one; `voc.py` is an example.
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
