# Sourced by the other scripts: one way to get a missing system package.
# need_package WHAT PACKAGE… : as root on a Debian family system, install; elsewhere say what is missing and stop.
need_package() {
    local what=$1
    shift
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "Missing: $what. Install it (Debian, Ubuntu: sudo apt-get install -y $*) and run the same command again." >&2
        return 1
    fi
    echo "Installing $what ($*)" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update </dev/null >&2 || echo "apt-get update failed; trying with the package lists at hand" >&2
    apt-get -qq install -y --no-install-recommends "$@" </dev/null >&2
}
