#!/bin/sh
# What the operator compiles with at job start: a C++ compiler and libjpeg-turbo's headers. Runs
# inside the image build, on Amazon Linux (dnf) and on Debian or Ubuntu (apt). A compiler that the
# base brings is left as it is.
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
  echo "this base image has neither dnf nor apt-get: choose one made of Amazon Linux 2023," \
    "Debian or Ubuntu with BASE_IMAGE=..., or install a C++ compiler and libjpeg-turbo's" \
    "headers in a base of your own and drop this step" >&2
  exit 1
fi
