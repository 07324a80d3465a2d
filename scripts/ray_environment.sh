#!/bin/sh
# Make .venv-ray, the environment of the tests with Ray. It is made again only when this file, constraints.txt or pyproject.toml
# has changed. Where Ray cannot be installed, for example because it has no build for this Python, that is said and is no error.
set -eu
cd "$(dirname "$0")/.."

venv=${VENV:-.venv-ray}
stamp=$venv/.stamp
python=${PYTHON:-python3}

if [ -f $stamp ] && [ ! constraints.txt -nt $stamp ] && [ ! pyproject.toml -nt $stamp ] && [ ! "$0" -nt $stamp ]; then
  exit 0
fi

rm -f $stamp
[ -x $venv/bin/python ] || { echo "swell: making $venv"; "$python" -m venv $venv; }
install="$venv/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt"

# torch first and alone, so that the build in constraints.txt is chosen before another package asks for one.
echo "swell: installing torch and ray into $venv (large; once)"
$install torch
# ray[default] has what `ray job submit` needs.
if ! $install --editable '.[ray]' 'ray[default]'; then
  echo "swell: skipped the tests with Ray: it cannot be installed for $($venv/bin/python --version) here" >&2
  exit 0
fi
$install pytest pytest-xdist hypothesis
# Files that do not parse on this Python stay uncompiled; they are never imported.
$venv/bin/python -m compileall -qq -j 0 $venv/lib || true
touch $stamp
