#!/bin/sh
# Build the benchmarks' peer (arctic-inference, from source) into the environment of $PYTHON.
#
#   PYTHON=.venv/bin/python benchmarks/install_peer.sh
#
# Takes about a minute and a C++20 compiler. Nothing is done where the wanted version imports.
# The peer is only measured, never imported by the product, so it is no dependency of it.
set -eu

PYTHON=${PYTHON:-python3}
VERSION=0.3.0

if "$PYTHON" - "$VERSION" <<'PY' 2>/dev/null
import sys
from importlib.metadata import version
from arctic_inference.suffix_decoding import SuffixDecodingCache
sys.exit(version("arctic-inference") != sys.argv[1])
PY
then
    echo "arctic-inference $VERSION is already installed"
    exit 0
fi

# Its build asks for these by import, so build isolation must be off and they must be there first.
"$PYTHON" -m pip install --quiet \
    "nanobind==2.9.2" "cmake>=3.26" ninja "setuptools>=75" wheel grpcio-tools numpy
# Its simulator (a row of the group `replay`) imports these.
"$PYTHON" -m pip install --quiet pandas tqdm "transformers>=5.0"

# CMake looks for an interpreter of its own accord and may find another one than ours.
executable=$("$PYTHON" -c 'import sys; print(sys.executable)')
# --no-deps: it would pull an inference engine that the suffix trees do not need.
CMAKE_ARGS="-DPython_EXECUTABLE=$executable" "$PYTHON" -m pip install --quiet \
    --no-build-isolation --no-deps "arctic-inference==$VERSION"
"$PYTHON" -c 'from arctic_inference.suffix_decoding import SuffixDecodingCache'
echo "arctic-inference $VERSION installed"
