# What the scripts of this folder share; they source it from the top of the
# repository.
# SPDX-License-Identifier: Apache-2.0

# A CUDA Toolkit in its usual place counts as installed.
if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  export PATH=/usr/local/cuda/bin:$PATH
fi

# One line, and the end.
die() {
  echo "$(basename "$0"): $*" >&2
  exit 3
}

# Is the version $1 at least $2?
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# Prints the first Python that has these modules: ours, or the system's.
find_python() {
  local candidate
  for candidate in .venv/bin/python python3; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" - "$@" <<<'import importlib.util, sys
sys.exit(any(importlib.util.find_spec(m) is None for m in sys.argv[1:]) or sys.version_info < (3, 11))'; then
      [[ $candidate == /* || $candidate != */* ]] || candidate=$PWD/$candidate
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# build PRESET: configures and builds it; on a terminal with ninja's progress,
# elsewhere quietly unless something is wrong.
build() {
  local log=build/$1.log
  mkdir -p build
  cmake --preset "$1" -DIPCLAB_PYTHON="$(find_python pytest psutil)" >"$log" 2>&1 || {
    cat "$log" >&2
    die "CMake failed"
  }
  local quiet=()
  [[ -t 1 ]] || quiet=(-- --quiet)
  cmake --build --preset "$1" "${quiet[@]}" || die "the build failed"
}
