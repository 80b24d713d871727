# Functions of ./test. Each step prints one line and its time; if a step fails, the last 200 lines
# of its output are shown.
# SPDX-License-Identifier: Apache-2.0

# step "what it does" command arguments...: runs the command as a step.
step() {
  local what=$1 begin=$SECONDS log
  shift
  log=$(mktemp)
  printf '%-52s ' "$what"
  if "$@" > "$log" 2>&1; then
    echo "ok, $((SECONDS - begin)) s"
    rm -f "$log"
  else
    echo "FAILED after $((SECONDS - begin)) s: $*"
    tail -n 200 "$log"
    rm -f "$log"
    exit 1
  fi
}

# run_tests BUILD_FOLDER [ctest arguments...]: prints run, passed, failed and skipped tests per label. Slow tests are in
# tests/long_tests.txt, one regular expression per line; without --full they are only counted.
run_tests() {
  local build=$1 begin=$SECONDS report long
  shift
  long=$(paste -sd "|" tests/long_tests.txt)
  if ! $full; then
    echo "left to ./test --full: $(ctest --test-dir "$build" -N -R "$long" "$@" | grep -c "Test *#") tests"
    set -- -E "$long" "$@"
  fi
  report=$(cd "$build" && pwd)/test-results.xml
  rm -f "$report"
  printf '%-52s\n' "test $build"
  # Runs twice as many tests as processors, because many tests wait for deadlines or other processes. The large output
  # limit keeps the last lines of each test, which the summary reads.
  ctest --test-dir "$build" -j "$((2 * $(nproc)))" --output-on-failure --output-junit "$report" \
    --test-output-size-passed 1000000 "$@" \
    > "$build/test-output.log" 2>&1 || true
  ctest --test-dir "$build" --show-only=json-v1 "$@" > "$build/tests.json" 2> /dev/null
  python3 tests/summarize_results.py "$report" "$build/tests.json" "$build/test-output.log" "$build/tests-not-built.txt" || exit 1
  echo "tested $build in $((SECONDS - begin)) s"
}
