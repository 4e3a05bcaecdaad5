"""The picture of tagged scenes in the README: three drawn test images, with what a small `contextcaps` says of each.

`python docs/figures/tagged.py RUN` draws tagged.png beside this file. RUN is a run of some minutes on a CPU:

    contextcaps train --data 'scenes?split=train&count=3000&size=32' \
        --val-data 'scenes?split=validation&count=500&size=32' --model contextcaps --set capsules.types=4 \
        --image-size 32 --backbone small --epochs 8 --batch-size 32 --lr 0.002 --accelerator cpu --out RUN

The images are the first test scene of three kinds, whatever the network says of them.
"""

import sys
from pathlib import Path

import numpy as np

from contextcaps.data import open_source
from contextcaps.experiments.gallery import TaggedImage, judge, write_gallery
from contextcaps.tagging import load

KINDS, SIZE = ("coast", "street", "living room"), 192


def main(run: str) -> None:
    source = open_source("scenes", split="test", count=1000, size=SIZE)
    chosen = [next(i for i in range(len(source)) if source.scene_kind(i) == kind) for kind in KINDS]
    samples = [source[index] for index in chosen]
    tagger = load(run, "cpu")
    images = []
    for sample, tagging in zip(samples, tagger.tag([sample.image for sample in samples], on_bad="stop"), strict=True):
        truth = tuple(source.classes[label] for label in sample.labels)
        tags = judge(tagging, truth, tagger.classes, tagger.thresholds)
        images.append(TaggedImage(sample.id, np.asarray(sample.image), truth, tags))
    write_gallery(
        images,
        Path(__file__).with_suffix(".png"),
        "contextcaps on drawn scenes",
        f"The first test scene of three kinds ({', '.join(KINDS)}), whatever the network says of it. Trained for 8 "
        "epochs on 3,000 scenes of 32×32 px on a CPU, seed 0; drawn larger than the network sees them.",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
