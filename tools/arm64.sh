#!/usr/bin/env bash
# Most users have a Mac with an arm64 processor. This script prepares a folder on x86-64 Linux in which the
# operators can be built and run for arm64. `make arm64` calls it with the folder, which then contains
#
#   root/       Python and the C and C++ libraries of this Debian or Ubuntu for arm64, unpacked
#   bin/python  this Python in QEMU; the folder is its virtual environment
#   bin/g++     clang for arm64, running on this processor: builds mlxops, and compiles for mx.compile
#
# Only the compiler, the linker and QEMU belong to the machine. If they are missing, root installs them.
set -eu

need() {
  echo "make arm64 $1" >&2
  exit 1
}

[ $# = 1 ] || need "must call tools/arm64.sh with a folder."
[ "$(uname -m)" = x86_64 ] || need "needs x86-64; on other processors, use \`make test\`."
mkdir -p "$1"/{apt/lists/partial,apt/archives/partial,bin,root,tmp}
here=$(realpath "$1")
clang=19

ID='' VERSION_CODENAME=''
[ ! -r /etc/os-release ] || . /etc/os-release
case $ID in
  debian) source="http://deb.debian.org/debian $VERSION_CODENAME main" ;;
  ubuntu) source="http://ports.ubuntu.com/ubuntu-ports $VERSION_CODENAME main universe" ;;
  *) need "needs packages of Debian or Ubuntu, but this system is neither." ;;
esac

missing=()
command -v clang++-$clang > /dev/null || missing+=(clang-$clang)
command -v ld.lld-$clang > /dev/null || missing+=(lld-$clang)
command -v qemu-aarch64-static > /dev/null || missing+=(qemu-user-static)
if [ ${#missing[@]} != 0 ]; then
  [ "$(id -u)" = 0 ] || need "needs packages that an administrator can install: apt-get install ${missing[*]}"
  { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}"; } > "$here/apt/log" 2>&1 ||
    need "needs packages that apt-get cannot install here: ${missing[*]} ($here/apt/log)"
fi

# apt with its own state, in which nothing is installed: it therefore finds all dependencies of these packages, needs
# no privileges, and does not change this system's own packages.
echo "deb [signed-by=/usr/share/keyrings/$ID-archive-keyring.gpg] $source" > "$here/apt/sources.list"
: > "$here/apt/status"
apt() {
  command "$@" -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$here/apt" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt" \
    -o Dir::Etc::sourcelist="$here/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
}
{
  apt apt-get update
  gcc=$(apt apt-cache depends g++ | sed -n 's/.*Depends: g++-\([0-9]*\)$/\1/p')
  apt apt-get install -y --no-install-recommends --download-only python3 libpython3-dev "libstdc++-$gcc-dev"
} > "$here/apt/log" 2>&1 || need "cannot download the arm64 packages of $ID ($here/apt/log)"
# Newer releases contain everything in usr, but none of these packages has the symbolic link.
mkdir -p "$here/root/usr/lib"
[ -e "$here/root/lib" ] || ln -s usr/lib "$here/root/lib"
for package in "$here"/apt/archives/*.deb; do
  dpkg -x "$package" "$here/root"
done

# A separate temporary folder: MLX stores compiled functions there, under names that do not include the processor.
cat > "$here/bin/python" << END
#!/bin/sh
export PATH="$here/bin:\$PATH" TMPDIR="$here/tmp"
exec qemu-aarch64-static -0 "$here/bin/python" -L "$here/root" "$here/root/usr/bin/python3" "\$@"
END
cat > "$here/bin/g++" << END
#!/bin/sh
exec clang++-$clang --target=aarch64-linux-gnu --sysroot="$here/root" -fuse-ld=lld "\$@"
END
chmod +x "$here"/bin/*
printf 'home = %s\ninclude-system-site-packages = false\n' "$here/root/usr/bin" > "$here/pyvenv.cfg"
mkdir -p "$("$here/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
touch "$here/.system"
