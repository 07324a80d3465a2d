# Times the default policy alone on one GPU, task after task, then trains other ways side by side for their results.
# Usage: SWELL_DATA=... OUT=... bash benchmarks/worth/alone.sh
set -u
export PYTHONPATH="$PWD/src" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
out=${OUT:-.} run=benchmarks/worth/run.py began=$SECONDS
python3 $run --times --workers 1 --ways goodput --seeds 0 --limit 200 --tail 20 --out "$out/alone.json" \
    --tasks lstm mixer vae triplet denoiser recommender tabular autoencoder mlp convnet resnet gru vit gpt muon signum
rest=$((245 - SECONDS + began))
[ $rest -gt 20 ] && OMP_NUM_THREADS=1 python3 $run --workers 14 --ways goodput "goodput, betas kept" --seeds 1 \
    --limit $((rest - 20)) --tail 20 --out "$out/together.json" \
    --tasks muon signum gpt vit gru denoiser recommender autoencoder tabular triplet resnet convnet mlp lstm mixer vae
echo "$((SECONDS - began)) s"
