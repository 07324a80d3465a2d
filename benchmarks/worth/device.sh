# Runs the whole comparison on one GPU, many runs at once: results are right, seconds are not.
# Usage: SWELL_DATA=... OUT=... bash benchmarks/worth/device.sh [seconds] [workers] [more arguments of run.py]
set -u
export PYTHONPATH="$PWD/src" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT=1000
limit=${1:-420} workers=${2:-14}
shift 2 2>/dev/null || shift $#
# Kernels of several processes run side by side only under CUDA's multi-process service; without it they take turns.
export CUDA_MPS_PIPE_DIRECTORY=/tmp/worth-mps CUDA_MPS_LOG_DIRECTORY=/tmp/worth-mps
mkdir -p /tmp/worth-mps
if command -v nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d &&
    timeout 60 python3 -c "import torch; torch.ones(9, device='cuda').sum().item()"; then
    echo "with the multi-process service"
else
    echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    echo "without the multi-process service"
fi
python3 benchmarks/worth/run.py --workers "$workers" --limit "$limit" --out "${OUT:-.}/worth.json" "$@"
status=$?
echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
exit $status
