"""What `import metalabelnet` brings, and what it leaves for later."""

import subprocess
import sys

import metalabelnet


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_the_import_is_light_and_the_names_are_there() -> None:
    code = (
        "import sys, metalabelnet; print(sorted({'torch', 'sklearn', 'numpy'} & set(sys.modules)), dir(metalabelnet))"
    )
    loaded, names = python(code).split("] ", 1)
    assert loaded == "["
    assert {"MetaLabelNetClassifier", "fit"} <= set(eval(names))
    assert not hasattr(metalabelnet, "no_such_name")


def test_without_scikit_learn_there_is_fit_and_a_sentence() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import metalabelnet
print(callable(metalabelnet.fit))
try:
    from metalabelnet import MetaLabelNetClassifier
except ValueError as error:
    print(error)
"""
    there, sentence = python(code).splitlines()
    assert there == "True"
    assert sentence == ("MetaLabelNetClassifier needs scikit-learn 1.6 or newer: pip install 'metalabelnet[sklearn]'")
