"""The house rules that no linter holds; each rule lists its offenders."""

import ast
import gc
import importlib
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TypeVar, cast

import pytest

from tests.golden_text import GoldenTexts
from tests.wings import FOLDERS, UNSEEN
from tests.wings import TESTS as FOLDER_OF_TESTS

ROOT = Path(__file__).parent.parent
MAX_FILE_LINES = 600
MAX_LINES_OF_WHOLE_FILES = 800
WHOLE_FILES = {
    "src/openwafer/training/session/run.py",
    *("src/openwafer/cli/app.py", "src/openwafer/training/stream/assemble.py"),
    *("src/openwafer/training/stream/execute/executor.py", "src/openwafer/sdk/fabric/words.py"),
    *(
        "src/openwafer/training/frontends/loop/loop.py",
        "src/openwafer/training/stream/plan/dry_run.py",
        "src/openwafer/training/stream/plan/search.py",
    ),
}
MAX_FUNCTION_LINES = 60
MAX_TEST_BODY_LINES = 15
MIN_TEST_NAME_WORDS = 2
MAX_COMMENT_SHARE = 0.08
MAX_LINE_OF_DOCS = 120
MAX_NAMES_OF_TRAINING = 90
BANNED_PARTS = {
    *("utils", "util", "helpers", "helper", "common", "misc"),
    *("manager", "managers", "handler", "handlers", "core", "base"),
}
BANNED_NAMES = {
    *("verdict", "treatment", "spoiler", "take_up", "taken_up", "families", "doubts", "together"),
    *("portable", "addressed"),
}
# Where names stand that torch and numba do not promise to keep; numba documents two of its core.
HOMES_OF_PRIVATE_NAMES = {
    *("src/openwafer/training/torch_private.py", "src/openwafer/sdk/fabric/one_unit.py"),
    *("src/openwafer/sdk/fabric/passes.py", "src/openwafer/training/sparsity/kernels/processor.py"),
}
PRIVATE_NAME = re.compile(
    r"(torch(?!\.ops\b)|transformers)\.([\w.]+\.)?_(?!_)|numba\.core\.(?!cgutils|event\b)"
)
# Files of the training wing with a call whose arguments come out of a tuple that is made for that.
# Mend one, and take it off; none is added.
STARS_OF_LOCAL_TUPLES = {
    "data/shards.py",
    "session/run.py",
    "sparsity/activations.py",
    "sparsity/kernels/vectors.py",
    "sparsity/kernels/index.py",
    "sparsity/linear.py",
    "sparsity/products.py",
    "stream/stages/stage_execution.py",
}
# Ten times as fast as the standard library's tokens.
STRING_OR_COMMENT = re.compile(
    r"""(\"{3}|'{3})(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
OWN_SYSTEM_ERRORS = {"KeyboardInterrupt", "SystemExit"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)
LEAVES = {int, str, type(None), ast.Load, ast.Store}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.fixture(autouse=True, scope="module")
def _no_collection() -> Iterator[None]:
    """Of the garbage beside millions of nodes, of which none is any."""
    gc.disable()
    yield
    for kept in (nodes_by_kind, tree_of, comments):
        kept.cache_clear()
    gc.enable()


SOURCES = python_files("src")
TESTS = python_files("tests")
ALL_CODE = [*SOURCES, *TESTS, *python_files("benchmarks", "scripts", "docs")]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@cache
def nodes_by_kind(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    """All nodes of a file but for what only tells a load from a store; `ast.walk` takes twice."""
    found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    left: list[ast.AST] = [tree_of(path)]
    while left:
        node = left.pop()
        found[type(node)].append(node)
        for value in vars(node).values():
            kind = type(value)
            if kind is list:
                left.extend(one for one in value if isinstance(one, ast.AST))
            elif kind not in LEAVES and isinstance(value, ast.AST):
                left.append(value)
    return found


def nodes_of(path: Path, *kinds: type[Node]) -> list[Node]:
    """Those of some kinds, each without the kinds that inherit from it."""
    found = nodes_by_kind(path)
    return [node for kind in kinds for node in cast("list[Node]", found.get(kind, []))]


def dotted(node: ast.AST) -> str:
    """A name with its dotted prefix; empty where something else is called or asked."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            prefix = dotted(node.value)
            return f"{prefix}.{node.attr}" if prefix else ""
        case _:
            return ""


def functions(path: Path) -> list[Function]:
    return [*nodes_of(path, ast.FunctionDef), *nodes_of(path, ast.AsyncFunctionDef)]


def calls(path: Path, name: str) -> Iterator[ast.Call]:
    """Calls written as `name(...)` or `name` with a dotted prefix of that very spelling."""
    return (node for node in nodes_of(path, ast.Call) if dotted(node.func) == name)


@cache
def comments(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    found = [match for match in STRING_OR_COMMENT.finditer(text) if match["comment"]]
    return [(text.count("\n", 0, match.start()) + 1, match["comment"]) for match in found]


def lines_of_body(function: Function) -> int:
    first = function.body[1 if ast.get_docstring(function) and function.body[1:] else 0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def line_limit(path: Path) -> int:
    is_whole = path.relative_to(ROOT).as_posix() in WHOLE_FILES
    return MAX_LINES_OF_WHOLE_FILES if is_whole else MAX_FILE_LINES


def test_files_are_short_but_for_those_that_read_best_whole() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in ALL_CODE}
    assert [place(path, n) for path, n in lengths.items() if n > line_limit(path)] == []


def test_files_that_read_best_whole_exist() -> None:
    assert [name for name in WHOLE_FILES if not (ROOT / name).is_file()] == []


def test_no_function_is_longer_than_60_lines() -> None:
    lengths = [(p, f, (f.end_lineno or 0) - f.lineno + 1) for p in ALL_CODE for f in functions(p)]
    assert [place(p, f.lineno) for p, f, n in lengths if n > MAX_FUNCTION_LINES] == []


def test_no_test_body_is_longer_than_15_lines() -> None:
    tests = [(p, f) for p in TESTS for f in functions(p) if f.name.startswith("test_")]
    long = [place(p, f.lineno) for p, f in tests if lines_of_body(f) > MAX_TEST_BODY_LINES]
    assert long == []


def stars_of_local_tuples(function: Function) -> Iterator[ast.Call]:
    """Calls `f(*held)` where the function itself has written `held = this, that`."""
    nodes = list(ast.walk(function))
    made = (node for node in nodes if isinstance(node, ast.Assign))
    tuples = [node.targets[0] for node in made if isinstance(node.value, ast.Tuple)]
    names = {target.id for target in tuples if isinstance(target, ast.Name)}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        stars = [one.value for one in call.args if isinstance(one, ast.Starred)]
        if any(isinstance(star, ast.Name) and star.id in names for star in stars):
            yield call


def test_calls_of_the_training_wing_name_their_arguments_but_for_files_of_a_list() -> None:
    wing = ROOT / "src/openwafer/training"
    hiding = {
        path.relative_to(wing).as_posix()
        for path in SOURCES
        if path.is_relative_to(wing) and nodes_of(path, ast.Starred)
        if any(True for function in functions(path) for _ in stars_of_local_tuples(function))
    }
    assert hiding == STARS_OF_LOCAL_TUPLES


def test_test_names_are_sentences() -> None:
    tests = [(p, f) for p in TESTS for f in functions(p) if f.name.startswith("test_")]
    short = [place(p, f.lineno) for p, f in tests if f.name.count("_") < MIN_TEST_NAME_WORDS]
    assert short == []


def test_no_path_part_hides_what_is_inside() -> None:
    parts = [(path, {*path.relative_to(ROOT).with_suffix("").parts}) for path in ALL_CODE]
    assert [str(path) for path, names in parts if names & BANNED_PARTS] == []


def test_no_name_is_a_word_that_the_house_replaces() -> None:
    """Such words are coined, or stand for too many things, to tell a reader what is named."""
    named = [(path, 1, path.stem) for path in SOURCES]
    named += [
        (path, node.lineno, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name).lower())
        for path in SOURCES
        for node in (*functions(path), *nodes_of(path, ast.ClassDef))
    ]
    assert [
        place(path, line) for path, line, name in named if name.strip("_") in BANNED_NAMES
    ] == []


def test_no_comment_is_a_banner() -> None:
    banner = re.compile(r"#\s*[-=#*~]{3,}|#.*[-=#*~]{4,}\s*$")
    found = [place(p, n) for p in ALL_CODE for n, text in comments(p) if banner.match(text)]
    assert found == []


def test_comments_stay_rare() -> None:
    num_comments = sum(len(comments(path)) for path in SOURCES)
    num_lines = sum(path.read_text(encoding="utf-8").count("\n") for path in SOURCES)
    assert num_comments <= MAX_COMMENT_SHARE * num_lines


def test_every_error_of_training_and_planning_names_a_remedy() -> None:
    sources = python_files("src/openwafer/training", "src/openwafer/planning")
    raised = [(path, call) for path in sources for call in calls(path, "error")]
    bare = [place(p, call.lineno) for p, call in raised if not has_remedy(call)]
    assert raised
    assert bare == []


def has_remedy(call: ast.Call) -> bool:
    return any(keyword.arg == "help" for keyword in call.keywords)


def is_checked(item: ast.withitem, call: ast.Call) -> bool:
    has_text = item.optional_vars is not None or any(k.arg == "match" for k in call.keywords)
    return has_text or ast.unparse(call.args[0]) in OWN_SYSTEM_ERRORS


def names_of_libraries(node: ast.AST) -> list[str]:
    """What an import, or an attribute, names of other packages."""
    match node:
        case ast.ImportFrom(module=str(module)):
            return [f"{module}.{alias.name}" for alias in node.names]
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.Attribute():
            return [dotted(node)]
        case _:
            return []


def test_names_that_libraries_do_not_promise_have_one_home() -> None:
    bad = {
        place(path, getattr(node, "lineno", 0))
        for path in SOURCES
        if path.relative_to(ROOT).as_posix() not in HOMES_OF_PRIVATE_NAMES
        for node in nodes_of(path, ast.ImportFrom, ast.Import, ast.Attribute)
        if any(map(PRIVATE_NAME.match, names_of_libraries(node)))
    }
    assert sorted(bad) == []


def test_every_expected_error_has_its_text_checked() -> None:
    items = [
        (path, item, item.context_expr)
        for path in TESTS
        for node in nodes_of(path, ast.With)
        for item in node.items
    ]
    unchecked = [
        place(path, call.lineno)
        for path, item, call in items
        if isinstance(call, ast.Call) and dotted(call.func) == "pytest.raises"
        if not is_checked(item, call)
    ]
    assert unchecked == []


def is_there(name: str, module: str) -> bool:
    """Whether a module has the name, or is a package with a module of that name."""
    found = importlib.import_module(module)
    is_package = hasattr(found, "__path__")
    return hasattr(found, name) or (is_package and find_spec(f"{module}.{name}") is not None)


def test_what_scripts_import_of_the_product_exists() -> None:
    missing = [
        f"{place(path, node.lineno)}: {alias.name}"
        for path in python_files("benchmarks", "scripts", "examples", "docs")
        for node in nodes_of(path, ast.ImportFrom)
        if (node.module or "").startswith("openwafer")
        for alias in node.names
        if not is_there(alias.name, str(node.module))
    ]
    assert missing == []


def names_from_openwafer(path: Path) -> set[str]:
    imports: list[ast.Import | ast.ImportFrom] = [
        *nodes_of(path, ast.Import),
        *nodes_of(path, ast.ImportFrom),
    ]
    return {
        alias.asname or alias.name.split(".")[0]
        for node in imports
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] == "openwafer"
    }


def patches_own_code(call: ast.Call, own_names: set[str]) -> bool:
    target = ast.unparse(call.args[0]).strip("'\"")
    return target.split(".")[0] in own_names | {"openwafer"}


def test_no_test_replaces_our_own_code() -> None:
    mocks = [
        p
        for p in TESTS
        if re.search(r"^(from|import) (unittest\.)?mock", p.read_text(), re.MULTILINE)
    ]
    patches = [
        place(path, call.lineno)
        for path in TESTS
        for call in calls(path, "monkeypatch.setattr")
        if patches_own_code(call, names_from_openwafer(path))
    ]
    assert (mocks, patches) == ([], [])


def test_error_codes_are_kebab_case() -> None:
    first = [(p, call.args[0]) for p in SOURCES for call in calls(p, "error") if call.args]
    codes = [(p, arg) for p, arg in first if isinstance(arg, ast.Constant)]
    pattern = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
    assert [place(p, a.lineno) for p, a in codes if not pattern.fullmatch(str(a.value))] == []


def formats(path: Path) -> Iterator[str]:
    """Names of file formats: texts like openwafer-trace in the constants of a module."""
    for statement in tree_of(path).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            texts = [n.value for n in ast.walk(statement) if isinstance(n, ast.Constant)]
            yield from filter(re.compile(r"openwafer(-[a-z]+)+").fullmatch, map(str, texts))


def test_every_file_format_has_its_page() -> None:
    known = {name for path in SOURCES for name in formats(path)}
    pages = {page.stem for page in (ROOT / "docs/formats").glob("openwafer-*.md")}
    assert known == pages


def doors() -> Iterator[tuple[str, list[str]]]:
    for path in (ROOT / "src").rglob("__init__.py"):
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                module = ".".join(path.parent.relative_to(ROOT / "src").parts)
                yield module, ast.literal_eval(node.value)


@pytest.mark.parametrize("wing", ["training", "planning", "wafer"])
def test_every_journal_entry_stands_once(wing: str) -> None:
    text = (ROOT / "docs" / "journal" / f"{wing}.md").read_text(encoding="utf-8")
    entries = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sorted(entries) == sorted(set(entries))


def test_public_doors_open_on_exactly_these_names(golden: GoldenTexts) -> None:
    names = sorted(f"{module}.{name}" for module, exported in doors() for name in exported)
    golden.check("public_names.txt", "\n".join(names) + "\n")


def test_doors_of_the_training_wing_name_few_things() -> None:
    """Which ones: docs/decisions/0047-doors-name-what-programs-use.md."""
    counts = [len(names) for module, names in doors() if module.startswith("openwafer.training")]
    assert sum(counts) <= MAX_NAMES_OF_TRAINING


@pytest.mark.parametrize(("module", "names"), [*doors()])
def test_every_public_name_says_what_it_is(module: str, names: list[str]) -> None:
    values = [(name, getattr(importlib.import_module(module), name)) for name in names]
    described = [(name, value) for name, value in values if isinstance(value, type | FunctionType)]
    # A dataclass without docstring gets its signature as one.
    silent = [n for n, v in described if not v.__doc__ or v.__doc__.startswith(f"{n}(")]
    assert silent == []


def test_the_ground_floor_and_the_command_line_load_no_torch() -> None:
    modules = ["config", "diagnostics", "dtypes", "trace", "source", "atomic_file"]
    modules += ["cli"] if (ROOT / "src/openwafer/cli").exists() else []
    imports = "; ".join(f"import openwafer.{module}" for module in modules)
    script = f"import sys; {imports}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False False"


def test_every_make_target_that_the_docs_name_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {t for page in pages for t in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    targets = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named <= {name for line in targets for name in line.split()}


def test_what_the_docs_import_is_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    written = re.compile(r"^(?:>>> )?from (openwafer[\w.]*) import \(?([\w, ]+)", re.MULTILINE)
    named = {
        (page.name, module, name.strip())
        for page in pages
        for module, names in written.findall(page.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
    missing = [each for each in named if not hasattr(importlib.import_module(each[1]), each[2])]
    assert named
    assert missing == []


def test_each_room_of_the_training_wing_is_on_its_page() -> None:
    wing, page = ROOT / "src/openwafer/training", ROOT / "docs/design/rooms.md"
    rooms = {path.parent.relative_to(wing).as_posix() for path in wing.rglob("*/__init__.py")}
    named = re.findall(r"^\| `([\w/]+)/` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(rooms)


def names_of_threads(path: Path) -> Iterator[str]:
    """What threads that a module begins are called, up to a number or another variable part."""
    constants = dict(re.findall(r'^(\w+): Final = "([\w-]+)"', path.read_text(), re.MULTILINE))
    for call in nodes_of(path, ast.Call):
        written = {keyword.arg: keyword.value for keyword in call.keywords}
        match dotted(call.func), call.args, written:
            case (("Thread" | "threading.Thread"), _, {"name": name}):
                pass
            case "ThreadPoolExecutor", _, {"thread_name_prefix": name}:
                pass
            case "run_beside", [_, name, *_], _:
                pass
            case _:
                continue
        text = re.match(r"f?'([\w-]+)|(\w+)", ast.unparse(name))
        if text and (text[1] or text[2] in constants):
            yield text[1] or constants[text[2]]


def test_each_thread_of_the_training_wing_is_on_its_page() -> None:
    page = (ROOT / "docs/design/threads.md").read_text(encoding="utf-8")
    threads = {n for path in python_files("src/openwafer/training") for n in names_of_threads(path)}
    assert threads >= {"fetch", "store-", "relay", "experts", "control"}
    assert sorted(name for name in threads if f"`{name}" not in page) == []


def prose_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Lines but for the rows of tables, which cannot be broken, and what stands in a fence."""
    fence = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|:{3,})", line)
        if mark and mark[1].startswith(fence):
            fence = "" if fence else mark[1]
        elif not fence and not line.lstrip().startswith("|"):
            yield number, line


def test_lines_of_the_docs_fit_a_screen() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    lines = [(page, number, line) for page in pages for number, line in prose_lines(page)]
    assert [place(page, n) for page, n, line in lines if len(line) > MAX_LINE_OF_DOCS] == []


def test_no_page_has_marks_of_a_merge() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = {page: page.read_text("utf-8") for page in pages}
    assert [str(page) for page, text in texts.items() if re.search("<{7} |>{7} ", text)] == []


@pytest.mark.parametrize("wing", UNSEEN)
def test_tests_that_are_left_out_do_not_see_the_wing(wing: str) -> None:
    """The floors say the same of the package; its roof, `cli`, loads a wing when it needs it."""
    hidden = re.compile(rf"\b(openwafer\.{wing}|tests\.({'|'.join(FOLDERS[wing])}))\b")
    left_out = [
        path for path in TESTS if path.relative_to(FOLDER_OF_TESTS).parts[0] in UNSEEN[wing]
    ]
    assert [str(path) for path in left_out if hidden.search(path.read_text("utf-8"))] == []


def test_each_test_file_has_a_name_of_its_own() -> None:
    """pytest takes two files of one name for one module, and refuses the second."""
    names = Counter(path.name for path in TESTS if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
