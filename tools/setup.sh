#!/usr/bin/env bash
# Make or renew the environment .venv of this checkout: called by the Makefile when its stamp is missing or
# older than what it depends on. Usage: PYTHON=<interpreter, or empty> tools/setup.sh <stamp>
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=$1
# Says that the packages in .venv were all installed for a checkout at this path; without it .venv is made
# anew, because an interrupted pip or a moved checkout leaves what no later run would mend.
packages=${stamp/.ready/.packages}
started=$SECONDS

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# It must really run: a shim of a version manager may be there and fail.
usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' >/dev/null 2>&1
}

pick_python() {
    if [[ -n ${PYTHON:-} ]]; then
        usable "$PYTHON" || die "PYTHON=$PYTHON is not a working Python 3.11 or 3.12"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3; do
        if usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no working Python 3.11 or 3.12 found: \`apt-get install python3.11 python3.11-venv python3.11-dev\`" \
        "on Debian, or any Python 3.11 or 3.12, and name it with PYTHON=..."
}

pip_install() {
    .venv/bin/python -m pip install --quiet --progress-bar off --disable-pip-version-check -c constraints.txt "$@"
}

python=$(pick_python)
# Before anything long: what is missing for the build of Horovod.
"$python" -m tools.build_horovod --check

rm -f "$stamp"
if [[ ! -e $packages ]] || ! usable .venv/bin/python; then
    rm -rf .venv
    say "making .venv with $("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
    "$python" -m venv .venv
fi
rm -f "$packages"
say "installing the locked packages; takes a minute or two the first time"
# The build tools come first, so that the rest is built with these and no others.
pip_install setuptools wheel hatchling editables
pip_install --no-build-isolation -e '.[dev,build]'
touch "$packages"
.venv/bin/python -m tools.build_horovod
.venv/bin/python -c "import matplotlib.font_manager" # lists the fonts once, seconds that no run should pay for
touch "$stamp"
say "done in $((SECONDS - started)) s"
