# The common part of the scripts in this folder, which source this file. The functions
# set_up and build must be called from the top of the repository.
# SPDX-License-Identifier: Apache-2.0

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Calls ci/setup with the same arguments, then puts what it has installed onto PATH.
set_up() {
  ci/setup "$@" || exit
  use_tools
}

# Prints a message on standard error and exits with 3.
die() {
  echo "$(basename "$0"): $*" >&2
  exit 3
}

# Is the version $1 at least $2?
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# Puts onto PATH what ci/setup has installed, and a CUDA Toolkit 12.0 or newer: the toolkit
# on PATH, the toolkit in the usual folder, or the toolkit from the wheels. (If ci/setup
# has installed CMake, the machine has no CMake or an old CMake.)
use_tools() {
  local folder nvcc
  PATH=$PATH:$top/.venv/bin
  for folder in "$top"/.venv/lib/python3*/site-packages/cmake/data/bin; do
    [[ -d $folder ]] && PATH=$folder:$PATH
  done
  for nvcc in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc "$top"/.venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    if (($(nvcc_release "$nvcc") >= 12)); then
      PATH=$(dirname "$nvcc"):$PATH
      break
    fi
  done
  export PATH
}

# Puts the toolkit that `ci/setup --toolkit $1` has installed onto PATH.
use_toolkit() {
  export PATH=$top/.venv/cuda-$1/bin:$PATH CUDAToolkit_ROOT=$top/.venv/cuda-$1
}

# Prints the first number of an nvcc's release, such as 13; 0 if there is no nvcc.
nvcc_release() {
  local release
  release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p')
  echo "${release:-0}"
}

# Prints the path of a Python 3.11 or newer that has these modules: the Python of .venv,
# or a Python of the system. Fails if none has them.
find_python() {
  local candidate
  for candidate in "$top/.venv/bin/python" python3 python3.{14,13,12,11}; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" -P - "$@" 2>/dev/null <<<'import importlib.util, sys
sys.exit(any(importlib.util.find_spec(m) is None for m in sys.argv[1:]) or sys.version_info < (3, 11))'; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# Prints the newest commit that is a day older than the commit $1, or the first commit.
day_before() {
  local day base
  day=$(($(git log -1 --format=%ct "$1") - 86400))
  base=$(git rev-list -1 --before="$day" "$1")
  [[ $base ]] || base=$(git rev-list --max-parents=0 "$1" | tail -n 1)
  echo "$base"
}

# [target=NAMES] build PRESET [OPTION...]: configures and builds the preset. On a terminal
# it shows ninja's progress. Elsewhere it prints something only if it fails: the first
# error.
build() {
  local preset=$1 log=build/$1.log made
  shift
  mkdir -p build
  # CMake refuses a build folder that was copied or moved with its checkout.
  made=$(sed -n 's/^CMAKE_CACHEFILE_DIR:[A-Z]*=//p' "build/$preset/CMakeCache.txt" 2>/dev/null || true)
  if [[ $made && ! $made -ef build/$preset ]]; then
    echo "build/$preset was built as $made; it is removed and built again"
    rm -rf "build/$preset"
  fi
  cmake --preset "$preset" -DIPCLAB_PYTHON="$(find_python pytest psutil)" "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    die "CMake failed"
  }
  local command=(cmake --build --preset "$preset" ${target:+--target $target})
  if [[ -t 1 ]]; then
    "${command[@]}" || die "the build failed"
  elif ! "${command[@]}" -- --quiet >"$log" 2>&1; then
    first_error "$log" >&2
    die "the build failed; its whole output: $log"
  fi
}

# Prints the first error of a compiler or linker in a log; its last lines if there is none.
first_error() {
  grep -m 1 -A 6 -E '(error|Error)( #[0-9]+(-D)?)?: |undefined reference|^ninja: error|cannot find -l' "$1" || tail -n 20 "$1"
}

use_tools
