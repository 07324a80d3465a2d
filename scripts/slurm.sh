#!/bin/sh
# Install Slurm from Debian, on which the tests submit the scripts that `swell launch slurm` prints. Needs root, or sudo. Its
# services are not started: the tests start daemons of their own.
set -eu

if command -v slurmctld >/dev/null 2>&1 && command -v slurmd >/dev/null 2>&1 && command -v munged >/dev/null 2>&1; then
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "swell: there is no apt-get here; install Slurm and munge yourself, and the tests of batch scripts run" >&2
  exit 1
fi
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
echo "swell: installing Slurm"
$as_root apt-get install --yes --no-install-recommends slurmctld slurmd slurm-client munge
