"""Class names, in the order of the labels, of sets whose files often come without them."""

DIGITS = tuple("0123456789")

FASHION_MNIST = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR100 = (
    *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle"),
    *("bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle"),
    *("chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup"),
    *("dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house"),
    *("kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man"),
    *("maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid"),
    *("otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine"),
    *("possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew"),
    *("skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower"),
    *("sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout"),
    *("tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm"),
)
ADE20K = (
    *("wall", "building", "sky", "floor", "tree", "ceiling", "road", "bed", "windowpane", "grass", "cabinet"),
    *("sidewalk", "person", "earth", "door", "table", "mountain", "plant", "curtain", "chair", "car", "water"),
    *("painting", "sofa", "shelf", "house", "sea", "mirror", "rug", "field", "armchair", "seat", "fence"),
    *("desk", "rock", "wardrobe", "lamp", "bathtub", "railing", "cushion", "base", "box", "column"),
    *("signboard", "chest of drawers", "counter", "sand", "sink", "skyscraper", "fireplace", "refrigerator"),
    *("grandstand", "path", "stairs", "runway", "case", "pool table", "pillow", "screen door", "stairway"),
    *("river", "bridge", "bookcase", "blind", "coffee table", "toilet", "flower", "book", "hill", "bench"),
    *("countertop", "stove", "palm", "kitchen island", "computer", "swivel chair", "boat", "bar"),
    *("arcade machine", "hovel", "bus", "towel", "light", "truck", "tower", "chandelier", "awning"),
    *("streetlight", "booth", "television receiver", "airplane", "dirt track", "apparel", "pole", "land"),
    *("bannister", "escalator", "ottoman", "bottle", "buffet", "poster", "stage", "van", "ship", "fountain"),
    *("conveyer belt", "canopy", "washer", "plaything", "swimming pool", "stool", "barrel", "basket"),
    *("waterfall", "tent", "bag", "minibike", "cradle", "oven", "ball", "food", "step", "tank", "trade name"),
    *("microwave", "pot", "animal", "bicycle", "lake", "dishwasher", "screen", "blanket", "sculpture", "hood"),
    *("sconce", "vase", "traffic light", "tray", "ashcan", "fan", "pier", "crt screen", "plate", "monitor"),
    *("bulletin board", "shower", "radiator", "glass", "clock", "flag"),
)
"""The 150 classes of the scene parsing benchmark, labels 1 to 150 of its masks."""
