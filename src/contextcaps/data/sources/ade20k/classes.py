"""List the 150 classes of the ADE20K scene parsing benchmark, and map the full releases' classes to them.

Names are those of objectInfo150.txt, indices those of mapFromADE.txt, both of
https://github.com/CSAILVision/sceneparsing.

A name of the full releases stands for a class only as its whole list of synonyms, in any order: "machine" alone is a
synonym of car in the benchmark, but in the releases a class of its own. The benchmark's authors merged or renamed five
classes of the releases; those are `RENAMED`.
"""

import re
from collections.abc import Sequence

__all__ = ["BENCHMARK_CLASSES", "RELEASE_INDICES", "NameMap", "split_names"]

RENAMED = {
    "door": "door",
    "double door": "door",
    "closet": "wardrobe",
    "booth": "booth",
    "screen, crt screen": "crt screen",
}
"""Release's name → the benchmark's first name, where the lists of synonyms differ."""


def split_names(text: str) -> tuple[str, ...]:
    """Return the synonyms in "door, double door" or "door;double door", in their order."""
    return tuple(name for part in re.split("[,;]", text) if (name := " ".join(part.split())))


class NameMap:
    """Finds the class that a release's name stands for.

    Args:
        classes: each class's synonyms.
    """

    def __init__(self, classes: Sequence[Sequence[str]]) -> None:
        self._index = {_key(names): index for index, names in enumerate(classes)}
        first = {names[0].lower(): index for index, names in enumerate(classes)}
        for name, target in RENAMED.items():
            if target in first:
                self._index.setdefault(_key(split_names(name)), first[target])

    def get(self, name: str) -> int | None:
        """Return the class's index, or None if the name is not among the classes."""
        return self._index.get(_key(split_names(name)))


def _key(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


_TABLE = """\
2978: wall
312: building, edifice
2420: sky
976: floor, flooring
2855: tree
447: ceiling
2131: road, route
165: bed
3055: windowpane, window
1125: grass
350: cabinet
2377: sidewalk, pavement
1831: person, individual, someone, somebody, mortal, soul
838: earth, ground
774 783: door, double door
2684: table
1610: mountain, mount
1910: plant, flora, plant life
687: curtain, drape, drapery, mantle, pall
471: chair
401: car, auto, automobile, machine, motorcar
2994: water
1735: painting, picture
2473: sofa, couch, lounge
2329: shelf
1276: house
2264: sea
1564: mirror
2178: rug, carpet, carpeting
913: field
57: armchair
2272: seat
907: fence, fencing
724: desk
2138: rock, stone
2985 533: wardrobe, closet, press
1395: lamp
155: bathtub, bathing tub, bath, tub
2053: railing, rail
689: cushion
137: base, pedestal, stand
266: box
581: column, pillar
2380: signboard, sign
491: chest of drawers, chest, bureau, dresser
627: counter
2212: sand
2388: sink
2423: skyscraper
943: fireplace, hearth, open fireplace
2096: refrigerator, icebox
1121: grandstand, covered stand
1788: path
2530: stairs, steps
2185: runway
420: case, display case, showcase, vitrine
1948: pool table, billiard table, snooker table
1869: pillow
2251: screen door, screen
2531: stairway, staircase
2128: river
294: bridge, span
239: bookcase
212: blind, screen
571: coffee table, cocktail table
2793: toilet, can, commode, crapper, pot, potty, stool, throne
978: flower
236: book
1240: hill
181: bench
629: countertop
2598: stove, kitchen stove, range, kitchen range, cooking stove
1744: palm, palm tree
1374: kitchen island
591: computer, computing machine, computing device, data processor, electronic computer, information processing system
2679: swivel chair
223: boat
123: bar
47: arcade machine
1282: hovel, hut, hutch, shack, shanty
327: bus, autobus, coach, charabanc, double-decker, jitney, motorbus, motorcoach, omnibus, passenger vehicle
2821: towel
1451: light, light source
2880: truck, motortruck
2828: tower
480: chandelier, pendant, pendent
77: awning, sunshade, sunblind
2616: streetlight, street lamp
246 247: booth, cubicle, stall, kiosk
2733: television, television receiver, television set, tv, tv set, idiot box, boob tube, telly, goggle box
14: airplane, aeroplane, plane
738: dirt track
38: apparel, wearing apparel, dress, clothes
1936: pole
1401: land, ground, soil
120: bannister, banister, balustrade, balusters, handrail
868: escalator, moving staircase, moving stairway
1702: ottoman, pouf, pouffe, puff, hassock
249: bottle
308: buffet, counter, sideboard
1969: poster, posting, placard, notice, bill, card
2526: stage
2928: van
2337: ship
1023: fountain
609: conveyer belt, conveyor belt, conveyer, conveyor, transporter
389: canopy
2989: washer, automatic washer, washing machine
1930: plaything, toy
2668: swimming pool, swimming bath, natatorium
2586: stool
131: barrel, cask
146: basket, handbasket
3016: waterfall, falls
2739: tent, collapsible shelter
95: bag
1563: minibike, motorbike
642: cradle
1708: oven
103: ball
1002: food, solid food
2569: step, stair
2704: tank, storage tank
2833: trade name, brand name, brand, marque
1551: microwave, microwave oven
1981: pot, flowerpot
29: animal, animate being, beast, brute, creature, fauna
187: bicycle, bike, wheel, cycle
1393: lake
747: dishwasher, dish washer, dishwashing machine
2254: screen, silver screen, projection screen
206: blanket, cover
2262: sculpture
1260: hood, exhaust hood
2243: sconce
2932: vase
2836: traffic light, traffic signal, stoplight
2850: tray
64: ashcan, trash can, garbage can, wastebin, ash bin, ash-bin, ashbin, dustbin, trash barrel, trash bin
894: fan
1858: pier, wharf, wharfage, dock
3109: crt screen
1919: plate
1583: monitor, monitoring device
318: bulletin board, notice board
2356: shower
2046: radiator
1098: glass, drinking glass
530: clock
954: flag
"""

_ROWS = [line.partition(": ") for line in _TABLE.splitlines()]

BENCHMARK_CLASSES: tuple[tuple[str, ...], ...] = tuple(split_names(names) for _, _, names in _ROWS)
"""Synonyms of each of the 150 classes, in the benchmark's order; the first is the class's name."""

RELEASE_INDICES: dict[int, int] = {
    int(index): row for row, (indices, _, _) in enumerate(_ROWS) for index in indices.split()
}
"""Class index in the full releases' _seg.png → index into `BENCHMARK_CLASSES`."""
