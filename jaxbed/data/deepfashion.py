"""What DeepFashion Remixed asks of DeepFashion2: Hendrycks et al., "The Many Faces of Robustness" (2021), and its authors' code.

Each garment of an image has a class and four codes from 1 to 3. Training garments have the codes TRAINING; each OOD set changes one of
them. The published text calls the training viewpoint "side/back"; the code, and DeepFashion2's own list, say that 2 is frontal.
"""

CLASSES = (  # in the order of category_id, which begins at 1
    *("short sleeve top", "long sleeve top", "short sleeve outerwear", "long sleeve outerwear", "vest", "sling", "shorts", "trousers"),
    *("skirt", "short sleeve dress", "long sleeve dress", "vest dress", "sling dress"),
)
CODES = (1, 2, 3)
TRAINING = {"scale": 2, "occlusion": 2, "viewpoint": 2, "zoom_in": 1}
SHIFTS = {  # {set: the code that it changes}, in the order of the published code
    "size_small": ("scale", 1),
    "size_large": ("scale", 3),
    "occlusion_slight": ("occlusion", 1),
    "occlusion_heavy": ("occlusion", 3),
    "viewpoint_no_wear": ("viewpoint", 1),
    "viewpoint_side_back": ("viewpoint", 3),
    "zoom_medium": ("zoom_in", 2),
    "zoom_large": ("zoom_in", 3),
}
# Table 11, whose eight numbers for nine names fit this order, without the images of `test`; rounded up to batches, train/ and validation/
PUBLISHED = {"train": 48000, **dict(zip(SHIFTS, (42640, 7440, 28160, 10360, 480, 11040, 10520, 10640), strict=True))}


def codes(of_set: str) -> dict[str, int]:
    """The codes of the garments that a set asks about; train and test have those of TRAINING."""
    return TRAINING | ({SHIFTS[of_set][0]: SHIFTS[of_set][1]} if of_set in SHIFTS else {})
