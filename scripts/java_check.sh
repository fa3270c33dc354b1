#!/usr/bin/env bash
# Prints the home of a Java 17, the version Spark 4.0 is tested with here; otherwise says how to get one and exits 1.
# Looks at JAVA_HOME, then at `java` on the path, then where the usual installers put it.
set -euo pipefail
shopt -s nullglob

is_17() { [ -x "$1/bin/java" ] && "$1/bin/java" -version 2>&1 | grep -q 'version "17[."]'; }

candidates=()
[ -z "${JAVA_HOME:-}" ] || candidates+=("$JAVA_HOME")
# `java` on the path is often a link to a link, and on macOS a stub: the JVM itself knows its home.
if command -v java >/dev/null; then
    on_path=$(java -XshowSettings:properties -version 2>&1 </dev/null | sed -n 's/^ *java\.home = //p') || on_path=
    [ -z "$on_path" ] || candidates+=("$on_path")
fi
candidates+=(
    /usr/lib/jvm/*17*
    /opt/homebrew/opt/openjdk@17/libexec/openjdk.jdk/Contents/Home
    /usr/local/opt/openjdk@17/libexec/openjdk.jdk/Contents/Home
    /Library/Java/JavaVirtualMachines/*17*/Contents/Home
    "${HOME:-/nonexistent}"/.sdkman/candidates/java/17*
)
for home in "${candidates[@]}"; do
    if is_17 "$home"; then
        echo "$home"
        exit 0
    fi
done
echo "Missing: Java 17, which Spark runs on${on_path:+ (found only $on_path)}." >&2
echo "Get it: sudo apt-get install -y openjdk-17-jre-headless · brew install openjdk@17 · sdk install java 17-tem" >&2
exit 1
