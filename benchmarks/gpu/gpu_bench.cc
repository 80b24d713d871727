// Program gpu_bench: runs one measurement per command, and prints it as a line of JSON.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/gpu_bench.h"

#include <cstdio>

#include "tutti/core/error.h"
#include "tutti/core/flags.h"

namespace tutti::benchmarks {
namespace {

void declare(BenchArguments& arguments, Flags& flags) {
  flags.add("--devices", arguments.devices, "gpu:0, gpu:0-3, cpu:0-1, ...");
  flags.add("--elements", arguments.elements, "float32 elements");
  flags.add("--iterations", arguments.iterations, "calls per round");
  flags.add("--rounds", arguments.rounds, "number of rounds");
  flags.add("--ops", arguments.ops, "cross-device operation (all_reduce)");
  flags.add_choice("--optimizer", arguments.optimizer, {"sgd", "adam"}, "optimizer (update)");
  flags.add_choice("--gradients", arguments.gradients, {"resnet50", "cifar10_cnn", "one"},
                   "network whose variables are updated (update)");
  flags.add_choice("--execution", arguments.execution, {"eager", "captured"},
                   "execution of steps (empty_step)");
}

void check(const BenchArguments& arguments) {
  if (arguments.elements < 1 || arguments.iterations < 1 || arguments.rounds < 1) {
    fail(ErrorCode::kInvalidArgument, "--elements, --iterations, --rounds: expected >= 1, got ",
         arguments.elements, ", ", arguments.iterations, " and ", arguments.rounds);
  }
}

int run(const char* name, const BenchArguments& arguments, Json (*bench)(const BenchArguments&)) {
  check(arguments);
  Json report = bench(arguments);
  report.set("bench", name).set("devices", arguments.devices);
  std::printf("%s\n", report.dump().c_str());
  const Json* wrong = report.find("wrong");
  return wrong != nullptr && wrong->as_int() != 0 ? 1 : 0;
}

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  using namespace tutti::benchmarks;
  BenchArguments arguments;
  tutti::Flags flags("Measures devices; prints one line of JSON");
  const auto add = [&](const char* name, const char* help, auto bench) {
    flags.add_command(
        name, help, [&](tutti::Flags& command) { declare(arguments, command); },
        [&arguments, name, bench] { return run(name, arguments, bench); });
  };
  add("copy", "copies within a device", copy_bench);
  add("update", "steps of an optimizer", update_bench);
  add("all_reduce", "sums over devices", all_reduce_bench);
  add("empty_step", "a replicated step with almost no work", empty_step_bench);
  try {
    return flags.parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 2;
  }
}
