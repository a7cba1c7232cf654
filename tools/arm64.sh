#!/usr/bin/env bash
# Most users have a Mac with an arm64 processor. This makes a place on x86-64 Linux where the operators can be
# built and run for arm64 all the same: `make arm64` calls it with a folder, and gets there
#
#   root/       Python, the C and the C++ library of this Debian or Ubuntu for arm64, unpacked
#   bin/python  that Python in QEMU: of a virtual environment, which the folder is
#   bin/g++     clang for arm64, on this processor: builds mlxops, and is what mx.compile runs
#
# Only the compiler, the linker and QEMU come from the machine. As root they are installed where they are missing.
set -eu

need() {
  echo "make arm64 $1" >&2
  exit 1
}

[ $# = 1 ] || need "calls tools/arm64.sh with a folder."
[ "$(uname -m)" = x86_64 ] || need "is for x86-64: on other processors \`make test\` runs the operators as they are."
mkdir -p "$1"/{apt/lists/partial,apt/archives/partial,bin,root,tmp}
here=$(realpath "$1")
clang=19

ID='' VERSION_CODENAME=''
[ ! -r /etc/os-release ] || . /etc/os-release
case $ID in
  debian) source="http://deb.debian.org/debian $VERSION_CODENAME main" ;;
  ubuntu) source="http://ports.ubuntu.com/ubuntu-ports $VERSION_CODENAME main universe" ;;
  *) need "takes packages of Debian or Ubuntu, and this is neither." ;;
esac

missing=()
command -v clang++-$clang > /dev/null || missing+=(clang-$clang)
command -v ld.lld-$clang > /dev/null || missing+=(lld-$clang)
command -v qemu-aarch64-static > /dev/null || missing+=(qemu-user-static)
if [ ${#missing[@]} != 0 ]; then
  [ "$(id -u)" = 0 ] || need "needs what an administrator can install: apt-get install ${missing[*]}"
  { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}"; } > "$here/apt/log" 2>&1 ||
    need "needs packages that apt-get does not get here: ${missing[*]} ($here/apt/log)"
fi

# apt with a memory of its own, in which nothing is installed: so it finds all that these packages need, needs no
# rights, and leaves this system's own packages alone.
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
# Newer releases have all in usr; that they call it so is in none of these packages.
mkdir -p "$here/root/usr/lib"
[ -e "$here/root/lib" ] || ln -s usr/lib "$here/root/lib"
for package in "$here"/apt/archives/*.deb; do
  dpkg -x "$package" "$here/root"
done

# What is temporary is kept apart: MLX keeps compiled functions there, under names that say nothing of processors.
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
