"""What `import metalabelnet` brings, and what it leaves for later."""

import subprocess
import sys

import metalabelnet


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_import_is_light() -> None:
    code = (
        "import sys, metalabelnet; print(sorted({'torch', 'sklearn', 'numpy'} & set(sys.modules)), dir(metalabelnet))"
    )
    loaded, names = python(code).split("] ", 1)
    assert loaded == "["
    assert {"MetaLabelNetClassifier", "fit"} <= set(eval(names))
    assert not hasattr(metalabelnet, "no_such_name")


def test_without_sklearn() -> None:
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
