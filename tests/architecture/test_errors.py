"""The error tree: its docstring is the truth."""

import ast
import inspect
import re

from imports import sources

from edge_sdk import errors


def described():
    """Child -> parent, and the exit codes that are written down, as the docstring draws them."""
    parents, codes, path = {}, {}, []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)", line)
        if not found:
            continue
        depth = len(found[1]) // 4
        del path[depth:]
        parents[found[2]] = path[-1] if path else None
        path.append(found[2])
        code = re.search(r"exit code (\d+)", line)
        if code:
            codes[found[2]] = int(code[1])
    return parents, codes


def real():
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    return {each.__name__: each for each in classes}


def test_the_docstring_draws_the_real_tree():
    parents, codes = described()
    classes = real()
    assert parents == {
        name: None if each is errors.EdgeError else each.__bases__[0].__name__ for name, each in classes.items()
    }
    assert codes == {"EdgeError": 1, "UsageError": 2}
    for each in classes.values():
        assert each.exit_code == (2 if issubclass(each, errors.UsageError) else 1)


def test_each_error_says_its_own_word():
    words = {name: each.code for name, each in real().items()}
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", word) for word in words.values())
    assert len(set(words.values())) == len(words)


def words_raised():
    """The word of each RemoteProtocolError and Rejected in the code, where it is written out."""
    places = {"RemoteProtocolError": 0, "Rejected": 1}
    for _, source in sources():
        for node in ast.walk(ast.parse(source)) if any(f"{place}(" in source for place in places) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in places:
                word = node.args[places[node.func.id]]
                if isinstance(word, ast.Constant):
                    yield word.value


def test_every_refusal_word_in_the_code_is_in_the_list():
    found = {*words_raised()}
    assert len(found) > 10
    assert found <= errors.REFUSAL_WORDS
