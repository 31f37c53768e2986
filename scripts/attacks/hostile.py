def offer(world, number, rng):
    return "", ""


FILES = ()
