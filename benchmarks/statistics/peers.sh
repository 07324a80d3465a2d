#!/bin/sh
# Make .venv-peers, in which cpu.py runs: swell beside FairScale and AdaptDL, as they are on the package index. Does
# nothing until this file, constraints.txt or pyproject.toml changes.
set -eu
cd "$(dirname "$0")/../.."

venv=.venv-peers
stamp=$venv/.stamp
python=${PYTHON:-python3}
here=benchmarks/statistics/peers.sh

if [ -f $stamp ] && [ ! constraints.txt -nt $stamp ] && [ ! pyproject.toml -nt $stamp ] && [ ! $here -nt $stamp ]; then
  exit 0
fi

[ -x $venv/bin/python ] || { echo "swell: making $venv"; "$python" -m venv $venv; }
install="$venv/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt"

# torch first and alone, so that the build in constraints.txt is installed before another package asks for one.
echo "swell: installing torch, FairScale and AdaptDL into $venv (large; once)"
$install torch
$install --editable '.[torch,report]'
# Both ask for old versions of packages that they hardly use; this benchmark needs no more than these.
$install --no-deps fairscale==0.4.13 adaptdl==0.2.11
$install portpicker autograd semver requests 'setuptools<80'
$venv/bin/python -m compileall -qq -j 0 $venv/lib || true
touch $stamp
