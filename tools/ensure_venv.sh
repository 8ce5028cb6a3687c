#!/usr/bin/env bash
# Makes a virtual environment in the given folder, unless there is one: ensure_venv.sh FOLDER PYTHON
set -euo pipefail

folder=$1
python=$2

if [ -x "$folder/bin/pip" ]; then exit 0; fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Python: $python is missing or older than 3.11; install a newer one, or name it: make PYTHON=python3.12 …" >&2
    exit 1
fi
# Debian keeps the parts that venv needs in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive
        export DEBIAN_FRONTEND
        apt-get update -qq >&2 || true
        apt-get install -y -qq --no-install-recommends "$package" >&2
    else
        echo "Python: its venv module is missing; install it (Debian, Ubuntu: apt-get install $package)." >&2
        exit 1
    fi
fi
"$python" -m venv "$folder"
