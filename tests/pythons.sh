#!/bin/sh
# The help of every command, the demo and the end-to-end tests of deploy, with a Python of each version that is named
# and on PATH (or that pyenv has), each in an environment of its own under build/pythons; says what it found.
#   tests/pythons.sh 3.12 3.11 3.10
set -eu
cd "$(dirname "$0")/.."
status=0
for version; do
    python=""
    # A shim of pyenv is on PATH for versions that are not chosen too, and does not run.
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python"$version"; do
        if "$candidate" -c '' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "Python $version: none here, not tried"
        continue
    fi
    home=build/pythons/$version
    mkdir -p "$home"
    git ls-files -z | xargs -0 cp -P --parents -t "$home"
    if make -C "$home" PYTHON="$python" demo .venv/.dev >"$home/log" 2>&1 &&
        (cd "$home" && .venv/bin/python -m pytest -n 0 tests/unit/cli/test_app.py tests/unit/test_docs.py \
            tests/e2e/test_deploy.py tests/e2e/test_generate.py) >>"$home/log" 2>&1; then
        echo "Python $version: passed"
    else
        echo "Python $version: failed; $home/log says why"
        status=1
    fi
done
exit $status
