#!/bin/sh
# See to it that the programs that the tests call are there: install what is missing with apt-get
# where that can be done, else say clearly what to install.
set -eu

# program:Debian package that has it
needed="ip:iproute2 unshare:util-linux nsenter:util-linux setpriv:util-linux prlimit:util-linux tmux:tmux"

missing=""
for entry in $needed; do
    if ! PATH="$PATH:/usr/sbin:/sbin" command -v "${entry%%:*}" >/dev/null; then
        case "$missing " in *" ${entry#*:} "*) ;; *) missing="$missing ${entry#*:}" ;; esac
    fi
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "The tests need these packages of your system (Debian's names):$missing" >&2
    echo "Install them and try again, for example: sudo apt-get install$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing$missing"
apt-get update -qq
# shellcheck disable=SC2086  # a list of words
apt-get install -y -qq --no-install-recommends $missing
