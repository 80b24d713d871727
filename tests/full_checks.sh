# Parts of ./test --full. Sourced by ./test after steps.sh.
# SPDX-License-Identifier: Apache-2.0
#
# Each build tree has the preset of the same name and is next to the main build folder. If a part
# fails, the others still run; all failed parts are listed at the end.

all_parts=(release long compiled run format asan tsan minimal no_grpc mutants fuzzers conformance protocol same_bits chaos bad_wire recovery durable lost_tasks strangers subproject recipes shared benchmarks deb xla_versions transformers)

test_tree() {
  step "configure $build-$1" cmake -S . -B "$build-$1" --preset "$1"
  step "build $build-$1" cmake --build "$build-$1"
  run_tests "$build-$1"
}

fuzz() {
  local target=$1 name corpus status=0
  name=$(basename "$target")
  corpus=$(mktemp -d)
  "$target" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 "$corpus" \
    "tests/fuzz/seeds/${name#fuzz_}" || status=$?
  rm -rf "$corpus"
  return $status
}

part_release() { run_tests "$build"; }

part_long() {  # tests that part_release also runs; .ci/run has this part instead of part_release
  run_tests "$build" -R "$(paste -sd "|" tests/long_tests.txt)"
}

part_compiled() {  # preset minimal, with clang++, without optimization and without tests: cheap enough for every change
  step "configure $build-compiled" cmake -S . -B "$build-compiled" --preset minimal -DCMAKE_CXX_COMPILER=clang++ \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=OFF
  step "build $build-compiled" cmake --build "$build-compiled"
}

part_run() { step "./run reaches its accuracy" env TUTTI_BUILD_DIR="$build" ./run; }

check_format() { git ls-files '*.h' '*.cc' | xargs clang-format --dry-run --Werror; }
part_format() { step "check the format" check_format; }

part_asan() { test_tree asan; }
part_tsan() { test_tree tsan; }
part_minimal() { test_tree minimal; }

refuses_several_processes() {  # EXECUTABLE
  local output
  if output=$(TF_CONFIG='{"cluster":{"worker":["127.0.0.1:20001","127.0.0.1:20002"]},"task":{"type":"worker","index":0}}' \
    "$@" --strategy multi_worker_mirrored --steps 1 2>&1); then
    echo "$output"
    return 1
  fi
  grep "this build has no gRPC, so processes connect only under mpirun" <<< "$output"
}

part_no_grpc() {  # also without XLA
  local tree=$build-no_grpc loop=$build-no_grpc/examples/fashion_mnist_custom_loop
  local flags=(--devices cpu:0 --steps 20 --train-examples 2000 --test-examples 500)
  step "configure $tree" cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTUTTI_GRPC=OFF -DTUTTI_XLA=OFF -DTUTTI_BUILD_TESTS=OFF
  step "build $tree" cmake --build "$tree" --target tutti_cli fashion_mnist_keras fashion_mnist_custom_loop
  step "one process trains" env TUTTI_BUILD_DIR="$tree" ./run --epochs 1 --min-accuracy 0.8
  step "two processes of mpirun train" mpirun --allow-run-as-root --oversubscribe -n 2 "$loop" \
    --strategy multi_worker_mirrored "${flags[@]}"
  step "two processes without mpirun are refused, with the remedy" refuses_several_processes "$loop"
  step "parameter servers are refused, with the remedy" sh -c \
    '! "$0" --strategy parameter_server --steps 1 > "$1" 2>&1 && grep "this build has no gRPC, so it has no parameter servers" "$1"' \
    "$loop" "$tree/refused.txt"
  step "TPUs are refused, with the remedy" sh -c '! "$0" --strategy tpu --steps 1 > "$1" 2>&1 && grep "DTUTTI_XLA=ON" "$1"' \
    "$loop" "$tree/refused.txt"
}

part_mutants() {
  step "mutants, each detected by a test of its folder" \
    python3 tests/mutants/run.py --source "$PWD/$build-mutants/source" --build "$PWD/$build-mutants/build"
}

part_fuzzers() {  # built in asan's tree
  local fuzzer seconds
  for fuzzer in $(cd tests/fuzz && ls fuzz_*.cc | sed 's/\.cc$//'); do
    seconds=20
    [[ $fuzzer == fuzz_plugin_table || $fuzzer == fuzz_collective_header ]] && seconds=60
    step "fuzz $fuzzer for $seconds s" fuzz "$build-asan/bin/$fuzzer" $seconds
  done
}

part_conformance() {  # two processes at a time, because the threads of a case mostly wait for one another
  step "conformance, every case" xargs -P 2 -n 1 "$build/bin/tutti" conform \
    <<< "canonical hierarchical_copy reduction_to_one_device ring"
}

part_protocol() {
  local bounds
  for bounds in "3 2 1" "2 2 2" "2 3 0"; do  # numbers of closures, faults and versions
    step "every state of the coordinator's protocol: $bounds" \
      env TUTTI_MODEL_BOUNDS="$bounds" "$build/bin/test_strategy" --gtest_filter='ProtocolModel.NoState*'
  done
}

part_same_bits() {  # two runs at a time, because replicas often wait for one another
  step "same bits, all variants, 40 steps" \
    python3 tests/integration/same_bits_test.py "$build/examples/fashion_mnist_custom_loop" --steps 40 --jobs 2
}

part_chaos() {
  step "chaos, 100 faults" \
    python3 tests/integration/chaos_test.py "$build/examples/fashion_mnist_custom_loop" "$build/bin/tutti" --faults 100
}

part_bad_wire() {
  step "a faulty network between three workers" \
    python3 tests/integration/bad_wire_test.py "$build/examples/fashion_mnist_custom_loop" "$build/bin/tutti" --full
}

part_recovery() {
  local transport
  for transport in auto tcp; do
    step "10 kills of workers with 100 MB of state, transport $transport" \
      python3 tests/integration/recovery_time_test.py "$build/bin/recovering_state" "$build/bin/tutti" \
      --workers 3 --kills 10 --transport "$transport"
    step "new processes killed again while they come up, transport $transport" \
      python3 tests/integration/recovery_time_test.py "$build/bin/recovering_state" "$build/bin/tutti" \
      --again --kills 4 --transport "$transport"
  done
  step "every style of program, killed at 20 moments each" \
    python3 tests/integration/restarted_job_test.py "$build/bin/recovering_state" "$build/bin/restarted_program" \
    "$build/examples/estimator" "$build/bin/tutti" --moments 20 KilledAtAnyMoment
}

part_durable() {
  step "10,000 closures, 30 processes killed" \
    python3 tests/integration/durable_servers_test.py "$build/bin/coordinated_counter" "$build/bin/tutti" \
    --closures 10000 --kills 30 --only kills
  step "100 connections reset, TF_CONFIG" \
    python3 tests/integration/durable_servers_test.py "$build/bin/coordinated_counter" "$build/bin/tutti" \
    --closures 3000 --resets 100 --only resets
}

part_lost_tasks() {
  step "tasks of parameter servers killed and stopped, every mode, with restarts and without" \
    python3 tests/integration/lost_tasks_test.py "$build/examples/between_graph_trainer" \
    "$build/examples/fashion_mnist_custom_loop" "$build/bin/tutti" --full
}

part_strangers() {
  step "1,000 foreign clients for a minute" \
    python3 tests/integration/strangers_test.py "$build/examples/fashion_mnist_custom_loop" \
    --strangers 1000 --seconds 60
}

part_subproject() {
  step "a project that contains tutti as a subproject" python3 tests/install/subproject_test.py . c++ --build
}

same_line() {  # TREE: computes the same weights as the main build, loads a plugin, and trains in two processes
  local report here there
  report=$(mktemp -d)
  for here in "$build" "$1"; do
    "$here/examples/linear_regression" --devices cpu:0-1 --metrics-json "$report/$(basename "$here")"
  done
  here=$(grep -o '"weights_hash": *"[^"]*"' "$report/$(basename "$build")")
  there=$(grep -o '"weights_hash": *"[^"]*"' "$report/$(basename "$1")")
  rm -rf "$report"
  [ -n "$here" ] && [ "$here" = "$there" ] || { echo "linear_regression: expected $here as in the main build, got $there"; return 1; }
  cc -shared -fPIC -I include examples/plugins/tree_sum/tree_sum_plugin.c -o "$1/tree_sum.so" &&
    "$1/bin/tutti" conform --plugin "$1/tree_sum.so" --sample 200 || return 1
  "$1/bin/tutti" run -n 2 -- "$1/examples/fashion_mnist_custom_loop" --strategy multi_worker_mirrored --steps 4 || return 1
  if [ -f "$build/lib/libtutti_cuda_simulated.so" ]; then
    TUTTI_CUDA_MODULE=$build/lib/libtutti_cuda_simulated.so "$1/examples/linear_regression" --devices gpu:0-1 || return 1
  fi
  readelf -d "$1/lib/libtutti.so" | grep "SONAME.*\[libtutti.so.0.2\]"
}

part_recipes() {
  step "Conan 2" sh -c 'python3 -m venv "$0" && "$0/bin/pip" install -q "conan>=2,<3"' "$build/conan"
  step "a package made by Conan, and a project that requires it" \
    python3 tests/install/recipes_test.py . c++ --conan "$PWD/$build/conan/bin/conan"
}

part_shared() {
  local tree=$build-shared
  step "configure $tree" cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTUTTI_SHARED=ON -DTUTTI_BUILD_TESTS=OFF
  step "build $tree" cmake --build "$tree" --target tutti_cli linear_regression fashion_mnist_custom_loop
  step "programs with libtutti.so compute the same weights as static programs" same_line "$tree"
}

part_benchmarks() {
  local tree=$build-benchmarks
  step "configure $tree" cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTUTTI_BUILD_BENCHMARKS=ON -DTUTTI_BUILD_TESTS=OFF
  step "build every program of benchmarks/" cmake --build "$tree" --target benchmarks/all
}

part_deb() {
  step "Debian packages in a fresh Debian" python3 tests/install/deb_test.py "$build"
}

part_xla_versions() {  # part_release tests the first version
  local version found=$build/xla_plugin/found.txt
  for version in 0.106 0.81; do
    step "install the XLA plugin for CPUs, PJRT $version" sh -c \
      'tools/install_xla_plugin.sh "$0" $1 | grep "\.so$" > "$2"' "$build/xla_plugin" $version "$found"
    step "all tests of XLA under PJRT $version" \
      env TUTTI_LOG_LEVEL=warning TUTTI_PJRT_PLUGIN="$(sed 's/.*: //' "$found")" "$build/bin/test_xla" --gtest_brief=1
  done
}

part_transformers() {
  local python=$build/transformers/bin/python
  step "install transformers and PyTorch" sh -c \
    'python3 -m venv "$0" && "$0/bin/pip" install -q torch transformers' "$build/transformers"
  step "compare GPT-2 and Llama with transformers" "$python" tests/gpt/transformers_test.py "$build/bin/gpt_logits"
}

# check_parts PART...: ends the program if a part is unknown.
check_parts() {
  local part
  for part in "$@"; do
    if [[ " ${all_parts[*]} " != *" $part "* ]]; then
      echo "./test: unknown part '$part' after --full; expected some of: ${all_parts[*]}" >&2
      exit 2
    fi
  done
}

# run_parts [PART...]: runs these parts; by default all, except parts that are contained in another one. Each part runs in a
# subshell, which ends at its first failing step.
run_parts() {
  local part failed=()
  (($#)) || set -- $(printf '%s\n' "${all_parts[@]}" | grep -vx 'long\|compiled')
  for part in "$@"; do
    ("part_$part") || failed+=("$part")
  done
  if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]}"
    exit 1
  fi
}
