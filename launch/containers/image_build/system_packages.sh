#!/bin/sh
# Installs what the operator needs to compile at job start: a C++ compiler, unless the base has one,
# and the headers of libjpeg-turbo. Runs in the image build, on Amazon Linux (dnf), Debian or Ubuntu
# (apt).
set -eu

compiler_or() {
  command -v c++ >/dev/null 2>&1 || printf '%s' "$1"
}

if command -v dnf >/dev/null 2>&1; then
  # shellcheck disable=SC2046 # no compiler to install means no argument
  dnf install -y --setopt=install_weak_deps=False libjpeg-turbo-devel $(compiler_or gcc-c++)
  dnf clean all
  rm -rf /var/cache/dnf
elif command -v apt-get >/dev/null 2>&1; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update
  # shellcheck disable=SC2046
  apt-get install -y --no-install-recommends libjpeg-dev $(compiler_or g++)
  apt-get clean
  rm -rf /var/lib/apt/lists/*
else
  echo "the base image has neither dnf nor apt-get: set BASE_IMAGE to an image with Amazon Linux" \
    "2023, Debian or Ubuntu; or build your own base with a C++ compiler and the headers of" \
    "libjpeg-turbo, and remove this step from the Dockerfile" >&2
  exit 1
fi
