#!/bin/sh
# Make .venv-keras, in which the Keras tests and benchmarks run: Keras with torch, jax and tensorflow. Once; and again
# only when this file, constraints.txt or pyproject.toml has changed.
set -eu
cd "$(dirname "$0")/.."

venv=.venv-keras
stamp=$venv/.stamp
python=${PYTHON:-python3}

if [ -f $stamp ] && [ ! constraints.txt -nt $stamp ] && [ ! pyproject.toml -nt $stamp ] && [ ! "$0" -nt $stamp ]; then
  exit 0
fi

[ -x $venv/bin/python ] || { echo "swell: making $venv"; "$python" -m venv $venv; }
install="$venv/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt"

# torch first and alone, so that the build which constraints.txt names is settled before anything else asks for one.
echo "swell: installing torch, keras, jax and tensorflow into $venv (large; once)"
$install torch
$install keras jax tensorflow pytest hypothesis
$install --editable .
# Files that do not parse on this Python are left uncompiled; they are never imported.
$venv/bin/python -m compileall -qq -j 0 $venv/lib || true
touch $stamp
