"""What can be shown without a TPU: everything that a run computes lowers for TPUs, on a mesh of eight devices, to operations they have.

Nothing here is compiled or run.
"""

import ast
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from conftest import ROOT
from jax import lax

from jaxbed import parallel, stages
from jaxbed.data import noise
from jaxbed.evaluation import pools
from jaxbed.models import conv, reflect_conv
from jaxbed.training import train
from jaxbed.training.program import steps_of_seed

TPU = ("tpu",)
LINEAR_ALGEBRA = "what a TPU's compiler has for it; a CPU calls LAPACK and a GPU cuSolver. No method uses it so far"
PARTITIONER = "a mark for the partitioner, which removes it, where JAX does not use Shardy"
# Targets of custom calls that programs for TPUs may have, and why. None has any so far: Cholesky factors, triangular systems, sorting
# and the inverse of the error function are operations of StableHLO and CHLO.
TARGETS = {
    "Eigh": LINEAR_ALGEBRA,
    "LuDecomposition": LINEAR_ALGEBRA,
    "ProductOfElementaryHouseholderReflectors": LINEAR_ALGEBRA,
    "Qr": LINEAR_ALGEBRA,
    "SPMDFullToShardShape": PARTITIONER,
    "SPMDShardToFullShape": PARTITIONER,
    "Sharding": PARTITIONER,
    "annotate_device_placement": "in which memory an array lies",
}
HOST = {"send", "recv", "infeed", "outfeed"}  # a step that waits for Python

# Arithmetic, shapes, loops and choices: what every compiler of XLA has
PLAIN = """
    abs add and bitcast_convert broadcast_in_dim case clamp compare concatenate constant convert convolution cosine divide
    dot_general dynamic_slice dynamic_update_slice exponential exponential_minus_one floor gather iota is_finite log log_plus_one
    logistic maximum mesh minimum multiply negate not or pad power reduce reduce_window remainder reshape return reverse
    round_nearest_afz round_nearest_even rsqrt scatter select select_and_scatter shift_left shift_right_arithmetic
    shift_right_logical sign sine slice sqrt square subtract tanh transpose while xor
"""
# The other operations, each with a method that uses it. These few methods are in the default suite; the rest take two to four seconds of
# processor time each, lower to no other operation, and are slow
SPECIAL = {
    "hex": {"cholesky", "triangular_solve"},
    "efdmix": {"sort"},
    "dsu": {"erf_inv", "optimization_barrier"},
    "erm": set(),  # in bfloat16, with random crops and groups of BatchNorm
}


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Makes jaxbed decide as on the backend of that name, a TPU to begin with."""

    def use(name):
        monkeypatch.setattr(jax, "default_backend", lambda: name)
        conv._rules.cache_clear()  # which hold what was decided before

    use("tpu")
    yield use
    conv._rules.cache_clear()


def operations(text):
    """Names of a program's operations, without their dialects."""
    return set(re.findall(r"\b(?:stablehlo|chlo)\.(\w+)", text)) - {"custom_call"}


def targets(text):
    """Of all its custom calls."""
    calls = re.findall(r'custom_call @"?([^\s"(]+)|call_target_name = "([^"]+)"', text)
    assert len(calls) == len(re.findall(r"stablehlo\.custom_call\b", text))
    return {at or named for at, named in calls}


def refused(text):
    """What TPUs lack of a program's operations."""
    return targets(text) - set(TARGETS) | operations(text) & HOST


def special(text):
    marks = {target for target, reason in TARGETS.items() if reason is not LINEAR_ALGEBRA}
    return operations(text) - set(PLAIN.split()) | targets(text) - marks


def small(method):
    """Four seeds on four rows of two devices."""
    changes = {"seeds": 4, "mesh": parallel.Mesh(seed=4, data=2)}
    if method == "hex":
        return tiny.mlp_config(method, **changes)
    if method == "erm":
        augment = tiny.shapes.Augment(mean=(0.5,), std=(0.25,), crop="resized", flip=0.5)
        changes["data"] = dataclasses.replace(tiny.DATA, augment=augment)
        changes["net"] = dataclasses.replace(tiny.RESNET_4, stem="imagenet", dtype="bfloat16", norm_groups=2)
    net = tiny.RESNET_6 if "sagnet" in method else tiny.RESNET_4  # SagNet cuts it between its two blocks
    return tiny.train_config(method, **{"net": net, **changes})


def lowered(cfg, platforms=TPU):
    """{what: text} of what a run computes: its start, its steps, its answers, and what the networks of earlier stages give."""
    source = cfg.data.open()
    made = tiny.program(cfg, source)
    seeds, state, columns = made.seeds, made.abstract.state, made.advance.columns
    feed = next(train.feeds_from(cfg, made, 0))
    assert feed.row.shape == (4, made.info.steps_per_epoch, cfg.batch_size)  # many steps in one call
    init = seeds.over(steps_of_seed(made.info, made.method, source, made.images).init, shared=(0,), once=True)
    rows = seeds.like(jax.ShapeDtypeStruct((seeds.size, cfg.batch_size), np.int32), "seed", "data")
    programs = {
        "start": init.lower(made.arrays, rows, seeds.array, columns, platforms=platforms),
        "steps": made.advance.compiled.lower(made.abstract, made.arrays, *feed, seeds.array, columns, platforms=platforms),
    }
    (pool,) = pools.pool(made.method.predict, seeds, source, source.sets, cfg.eval.batch_size)
    (block,) = pool.blocks()
    programs["answers"] = pool.answers.lower(state.params, state.stats, block, platforms=platforms)
    for stage in stages.of(cfg):
        if stage.outputs:
            programs[stage.name] = outputs(stage, source, platforms)
    return {what: program.as_text() for what, program in programs.items()}


def outputs(stage, source, platforms):
    """What the networks of a stage give for one batch, lowered."""
    made = tiny.program(stage.cfg, source)
    image = jax.eval_shape(source.scale, jax.ShapeDtypeStruct((8, *source.train.image.shape[1:]), np.uint8))
    label = jax.ShapeDtypeStruct((8,), np.int32)
    batch = (made.seeds.like(array, "data") for array in (image, label))
    give = made.seeds.over(functools.partial(stage.outputs, made.method), shared=(2, 3))
    return give.lower(made.abstract.state.params, made.abstract.state.stats, *batch, platforms=platforms)


@pytest.mark.parametrize("method", [pytest.param(name, marks=() if name in SPECIAL else pytest.mark.slow) for name in tiny.METHODS])
def test_what_a_run_computes_lowers_for_tpus(method):
    for what, text in lowered(small(method)).items():
        assert "num_partitions = 8" in text and not refused(text), what
        assert special(text) <= set().union(*SPECIAL.values()), what
        if what == "steps":
            assert special(text) >= SPECIAL.get(method, set()) and "while" in operations(text)


def lower(function, *shapes, platform="tpu", dtype=jnp.float32):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    fresh = jax.jit(lambda *each: function(*each))  # or what was traced for another backend would be taken
    return fresh.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (jnp.linalg.eigh, {"Eigh"}),
        (jnp.linalg.qr, {"Qr", "ProductOfElementaryHouseholderReflectors"}),
        (jnp.linalg.det, {"LuDecomposition"}),
        (jnp.linalg.cholesky, set()),
        (functools.partial(lax.top_k, k=2), set()),
    ],
)
def test_linear_algebra_of_tpus_is_known_and_that_of_cpus_refused(function, expected):
    text = lower(function, (4, 4))
    assert not refused(text) and targets(text) == expected <= special(text)
    if expected:
        assert refused(lower(function, (4, 4), platform="cpu"))


def test_calls_of_python_are_refused():
    def function(x):
        jax.debug.print("{}", x)
        return x

    assert refused(lower(function, (4,), platform="cpu"))


# Where jaxbed asks what it runs on, and what a TPU gets. Nothing was measured on one: where GPUs have a special form, it gets
# the plain one
PLACES = {
    ("models/conv.py", "conv"): "the strides that are asked for: blocks of pixels spare cuDNN a padding of three channels",
    ("models/conv.py", "form"): "XLA's convolution per seed; a product for 1 x 1 kernels of stride 1, and for maps of at most 4 pixels",
    ("models/conv.py", "depthwise_conv"): "a sum of shifted maps, which is one loop",
    ("models/reflect_conv.py", "convolve"): "the convolution as it is, as in `conv`",
    ("parallel.py", "to_host"): "its arrays as they are: np.asarray copies them",
    ("training/program.py", "steps_per_call"): "many steps per dispatch, as on a GPU: only CPUs are slow in loops",
    ("methods/fast_adversarial.py", "attacked"): "the loop of an attack as a loop, as on a GPU",
    ("measures/answering.py", "_answer"): "programs that are compiled in threads, as on a GPU: only CPUs compile them while they answer",
    ("parallel.py", "free_bytes"): "its memory, which it counts as GPUs do",
    ("parallel.py", "use_cores"): "nothing: it is about the number of CPU devices",
    ("system/starter.py", "gpus"): "0: its processes are started by whoever starts the machines of a slice",
    ("training/log.py", "peak_memory_bytes"): "its peak, or 0 where it does not count one",
    ("training/log.py", "header"): "its name in the log",
    ("tuning/sweep.py", "prepare"): "no hold on it: the runs that are started need it",
}
ASKS = re.compile(r"default_backend|platform_dependent|memory_stats|num_cpu_devices|jax_platforms|JAX_PLATFORMS|device_kind|\.platform\b")


def test_every_place_that_asks_for_the_backend_has_an_answer_for_tpus():
    places = set()
    for path in sorted((ROOT / "jaxbed").rglob("*.py")):
        text = path.read_text()
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        for number, line in enumerate(text.splitlines(), start=1):
            if ASKS.search(line) and "sys.platform" not in line:
                around = [node for node in functions if node.lineno <= number <= node.end_lineno]
                places.add((str(path.relative_to(ROOT / "jaxbed")), max(around, key=lambda node: node.lineno).name))
    assert places == set(PLACES)


def strides(text):
    return re.findall(r"stride = \[(\d), \d\]", text)


@pytest.mark.parametrize(("name", "stride", "channels"), [("tpu", "2", 3), ("gpu", "1", 12)])
def test_first_convolutions_of_tpus_have_their_strides(backend, name, stride, channels):
    backend(name)
    text = lower(lambda x, kernel: conv.conv(x, kernel, 2, 3), (8, 32, 32, 3), (7, 7, 3, 16))
    assert strides(text) == [stride] and f"x{channels}x16xf32>) -> " in text


@pytest.mark.parametrize(
    ("kernel", "stride", "side", "forms"),
    [
        (3, 1, 8, {"tpu": "convolution", "gpu": "dot_general"}),
        (1, 2, 8, {"tpu": "convolution", "gpu": "dot_general"}),
        (1, 1, 8, {"tpu": "dot_general", "gpu": "dot_general"}),
        (3, 1, 2, {"tpu": "dot_general", "gpu": "dot_general"}),
    ],
)
@pytest.mark.parametrize("name", ["tpu", "gpu"])
def test_convolutions_of_several_seeds_have_the_form_of_their_backend(backend, kernel, stride, side, forms, name):
    backend(name)
    text = lower(jax.vmap(lambda x, weights: conv.conv(x, weights, stride, kernel // 2)), (3, 4, side, side, 8), (3, kernel, kernel, 8, 16))
    assert operations(text) & {"convolution", "dot_general"} == {forms[name]}
    assert text.count("stablehlo.convolution") in (0, 3) and "group_count = 3" not in text  # one per seed, none of groups


@pytest.mark.parametrize(("name", "grouped"), [("tpu", False), ("gpu", True)])
def test_depthwise_convolutions_of_tpus_are_sums(backend, name, grouped):
    backend(name)
    text = lower(conv.depthwise_conv, (2, 9, 9, 4), (5, 5, 1, 4), dtype=jnp.bfloat16)
    assert ("convolution" in operations(text)) == grouped


@pytest.mark.parametrize(("name", "channels"), [("tpu", 3), ("gpu", 16)])
def test_style_networks_of_tpus_begin_with_the_image_as_it_is(backend, name, channels):
    backend(name)

    def first(x, kernel, bias):
        return reflect_conv.convolve({"kernel": kernel, "bias": bias}, reflect_conv.whole(x)).values

    text = lower(first, (2, 8, 8, 3), (3, 3, 3, 4), (4,))
    shapes = re.findall(r"stablehlo\.convolution.*?, tensor<\d+x\d+x(\d+)x\d+xf32>\) ->", text)
    assert shapes == [str(channels)]


@pytest.mark.parametrize(("name", "steps"), [("tpu", 4), ("cpu", 1)])
def test_tpus_take_many_steps_per_call(backend, name, steps):
    backend(name)
    cfg = tiny.mlp_config(data=noise.Config(8, 4, 64, 16))
    feed = next(train.feeds_from(cfg, tiny.program(cfg), 0))
    assert feed.row.shape[1] == steps


def test_results_are_fetched_in_order_while_others_are_under_way():
    begun = []

    def computed():
        for number in range(5):
            begun.append(number)
            yield f"of {number}", jnp.full(2, number)

    fetched = parallel.fetched(computed())
    assert not begun and next(fetched)[0] == "of 0" and begun == list(range(1 + parallel.UNDER_WAY))
    assert [(name, array.tolist()) for name, array in fetched] == [(f"of {number}", [number] * 2) for number in range(1, 5)]
