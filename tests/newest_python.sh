#!/usr/bin/env bash
# Test the core on Python 3.14, in a root folder of Debian's next release; as root, with debootstrap.
#
#     bash tests/newest_python.sh ROOT [pytest's options]
set -euo pipefail
root=$1
shift
[[ -e $root/usr/bin/python3.14 ]] || debootstrap --variant=minbase \
    --include=python3.14,python3.14-venv,ca-certificates,git sid "$root"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mkdir -p "$root/clone"
git ls-files -z | tar c --null --files-from=- | tar x --directory "$root/clone"
# Its mounts are gone as soon as it ends.
unshare --mount --pid --fork --mount-proc="$root/proc" bash -euc '
    mount --rbind /dev "$0/dev"
    exec env --ignore-environment TERM=dumb PATH=/usr/sbin:/usr/bin HOME=/root UV_SYSTEM_CERTS=1 \
        SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt chroot "$0" bash -euc "
            cd /clone
            [[ -e /nox ]] || { python3.14 -m venv /nox && /nox/bin/pip install --quiet nox[uv]; }
            exec /nox/bin/nox -s pythons-3.14 -- \"\$@\"
        " bash "$@"
' "$root" "$@"
