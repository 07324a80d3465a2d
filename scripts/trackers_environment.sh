#!/bin/sh
# Make .venv-trackers, the environment in which the sinks for W&B, Trackio, MLflow and Prometheus meet the real packages, and a
# job a real notebook. It is made again only when this file or pyproject.toml has changed.
set -eu
cd "$(dirname "$0")/.."

venv=.venv-trackers
stamp=$venv/.stamp
python=${PYTHON:-python3}

if [ -f $stamp ] && [ ! pyproject.toml -nt $stamp ] && [ ! "$0" -nt $stamp ]; then
  exit 0
fi

[ -x $venv/bin/python ] || { echo "swell: making $venv"; "$python" -m venv $venv; }
echo "swell: installing trackers into $venv (once)"
install="$venv/bin/python -m pip --disable-pip-version-check --quiet install --no-compile"
$install wandb trackio mlflow-skinny prometheus-client nbclient nbformat ipykernel pytest hypothesis
$install --editable .
touch $stamp
