#!/usr/bin/env bash
# Tries podman itself, with Debian's or Ubuntu's package, of root and of a user: tests/podman.sh PYTHON
# Everything is in folders of its own; what stays is the packages, and for root a user who has containers.
set -euo pipefail
cd "$(dirname "$0")/.."
user=trtspec-podman
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi
missing=""
for command in podman newuidmap slirp4netns iptables; do
  command -v "$command" > /dev/null || missing=yes
done
if [ "$missing" ]; then
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
    podman runc catatonit uidmap slirp4netns iptables containernetworking-plugins
fi
if [ "$(id -u)" = 0 ]; then
  id "$user" > /dev/null 2>&1 || useradd --create-home "$user"
  # As udev has it: rootless networks begin there.
  if [ -e /dev/net/tun ]; then chmod 0666 /dev/net/tun; fi
fi
exec "$1" -m pytest -m podman
