# What ./test --full runs. Sourced by ./test, after steps.sh.
# SPDX-License-Identifier: Apache-2.0
#
# Each tree has the preset of the same name and lies beside the main build folder. A part that
# fails does not keep the others from running; what failed is listed at the end.

failed=()

# part command arguments...: in a subshell, which the first failing step of the part ends.
part() {
  ("$@") || failed+=("$*")
}

# configure_tree NAME cmake arguments...
configure_tree() {
  local name=$1
  shift
  step "configure $build-$name" cmake -S . -B "$build-$name" --preset "$name" "$@"
}

test_tree() {
  configure_tree "$1"
  step "build $build-$1" cmake --build "$build-$1"
  run_tests "$build-$1"
}

check_format() {
  git ls-files '*.h' '*.cc' | xargs clang-format --dry-run --Werror
}

fuzz() {
  local target=$1 name corpus
  name=$(basename "$target")
  corpus=$(mktemp -d)
  "$target" -max_total_time=20 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 "$corpus" \
    "tests/fuzz/seeds/${name#fuzz_}"
  rm -rf "$corpus"
}

conform() {
  step "conformance of $1, every case" "$build/bin/tutti" conform "$1"
}

test_clang() {
  configure_tree clang
  step "build $build-clang (thread-safety analysis)" cmake --build "$build-clang"
  run_tests "$build-clang" -L unit
}

run_fuzzers() {
  local fuzzer fuzzers
  fuzzers=$(cd tests/fuzz && ls fuzz_*.cc | sed 's/\.cc$//')
  configure_tree fuzz
  step "build the fuzzers" cmake --build "$build-fuzz" --target $fuzzers
  for fuzzer in $fuzzers; do
    step "fuzz $fuzzer for 20 s" fuzz "$build-fuzz/bin/$fuzzer"
  done
}

part run_tests "$build"
part step "check the format" check_format
part test_tree asan
part test_tree tsan
part test_clang
part test_tree minimal
part run_fuzzers
for name in canonical hierarchical_copy reduction_to_one_device ring halving_doubling tree auto; do
  part conform "$name"
done
part step "the coordinator's protocol: 2 closures, 2 faults, 1 cut" \
  env TUTTI_MODEL_BOUNDS="2 2 1" "$build/bin/test_strategy" --gtest_filter='ProtocolModel.NoState*'
part step "same bits, all variants, 100 steps" \
  python3 tests/integration/same_bits_test.py "$build/examples/fashion_mnist_custom_loop" --steps 100
part step "chaos, 100 faults" \
  python3 tests/integration/chaos_test.py "$build/examples/fashion_mnist_custom_loop" "$build/bin/tutti" --faults 100
part step "1,000 strangers for a minute" \
  python3 tests/integration/strangers_test.py "$build/examples/fashion_mnist_custom_loop" \
  --strangers 1000 --seconds 60

if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
