#!/bin/sh
# Install Chromium from Debian, in which the tests look at the pages that swell writes and serves. Needs root, or sudo.
set -eu

if command -v chromium >/dev/null 2>&1; then
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "swell: there is no apt-get here; install Chromium yourself, and the tests of pages run" >&2
  exit 1
fi
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
echo "swell: installing Chromium"
$as_root apt-get install --yes --no-install-recommends chromium fonts-dejavu-core
