def call(world, number, rng):
    return "", ""


FILES = ()
