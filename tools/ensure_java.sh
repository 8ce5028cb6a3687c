#!/usr/bin/env bash
# Sees to a Java runtime that Spark can use. On Debian or Ubuntu, as root, installs one; elsewhere says what is missing.
set -euo pipefail

minimum=17

# The major version of the given java; 0 if it cannot be run.
major() {
    local version
    version=$("$1" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -n 1) || true
    version=${version#1.}
    version=${version%%[!0-9]*}
    echo "${version:-0}"
}

# Spark does not look at PATH when JAVA_HOME is set, so neither does this.
if [ -n "${JAVA_HOME:-}" ]; then
    if [ "$(major "$JAVA_HOME/bin/java")" -ge "$minimum" ]; then exit 0; fi
    echo "Java: JAVA_HOME ($JAVA_HOME) holds no Java $minimum or newer; unset it or point it at one." >&2
    exit 1
fi
if command -v java >/dev/null && [ "$(major java)" -ge "$minimum" ]; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Java: none of $minimum or newer here; installing a headless runtime with apt-get." >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2 || true
    for package in openjdk-21-jre-headless openjdk-17-jre-headless openjdk-25-jre-headless default-jre-headless; do
        candidate=$(apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: //p')
        if [ -z "$candidate" ] || [ "$candidate" = "(none)" ]; then continue; fi
        if ! apt-get install -y -qq --no-install-recommends "$package" >&2; then continue; fi
        if command -v java >/dev/null && [ "$(major java)" -ge "$minimum" ]; then exit 0; fi
        # An older Java is still the first on PATH: make the newest the default one.
        newest=$(ls -d /usr/lib/jvm/*-"$(echo "$package" | tr -dc 0-9)"-*/bin/java 2>/dev/null | head -n 1 || true)
        if [ -n "$newest" ] && update-alternatives --set java "$newest" >&2 && [ "$(major java)" -ge "$minimum" ]; then
            exit 0
        fi
    done
fi

echo "Java: a runtime $minimum or newer is missing; install one (Debian, Ubuntu: apt-get install default-jre-headless;" \
    "macOS: brew install openjdk; elsewhere: https://adoptium.net) and put it on PATH or set JAVA_HOME." >&2
exit 1
