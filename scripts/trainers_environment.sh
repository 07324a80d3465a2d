#!/bin/sh
# Make .venv-trainers, the environment of the tests and benchmarks inside other people's trainers: transformers, accelerate, trl,
# peft, datasets and lightning. It is made again only when this file, constraints.txt or pyproject.toml has changed.
set -eu
cd "$(dirname "$0")/.."

venv=${VENV:-.venv-trainers}
stamp=$venv/.stamp
python=${PYTHON:-python3}

if [ -f $stamp ] && [ ! constraints.txt -nt $stamp ] && [ ! pyproject.toml -nt $stamp ] && [ ! "$0" -nt $stamp ]; then
  exit 0
fi

[ -x $venv/bin/python ] || { echo "swell: making $venv"; "$python" -m venv $venv; }
install="$venv/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt"

# torch first and alone, so that the build in constraints.txt is chosen before another package asks for one.
echo "swell: installing torch, transformers, trl and lightning into $venv (large; once)"
$install torch
$install --editable '.[transformers,accelerate,lightning]' trl peft datasets pytest pytest-xdist hypothesis
# Files that do not parse on this Python stay uncompiled; they are never imported.
$venv/bin/python -m compileall -qq -j 0 $venv/lib || true
touch $stamp
