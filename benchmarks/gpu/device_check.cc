// Program device_check: compares computations on a device with those on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/device_check.h"

#include <algorithm>
#include <cstdio>

#include "tutti/core/clock.h"
#include "tutti/core/flags.h"

namespace tutti::device_check {
namespace {

struct Arguments {
  std::string device = "gpu:0";
  std::string size = "all";
  std::string only, spoil;
  std::int64_t every = 1;
  bool json = false;

  void declare(Flags& flags) {
    flags.add("--device", device, "device to check");
    flags.add_choice("--size", size, {"all", "small", "wide"}, "sizes of the tensors (ops)");
    flags.add("--every", every, "check only every n-th call of each operation and type (ops)");
    flags.add("--only", only,
              "only these operations (ops: add,matmul), or this operation or optimizer");
    flags.add("--spoil", spoil, "change one element of this operation's or optimizer's results");
    flags.add("--json", json, "print one line of JSON");
  }
};

void print(const Findings& findings) {
  for (const std::string& failure : findings.failures) std::printf("FAILED %s\n", failure.c_str());
  for (const std::string& name : findings.not_tried) std::printf("not tried: %s\n", name.c_str());
  for (const std::string& name : findings.without_kernel) {
    std::printf("no kernel: %s\n", name.c_str());
  }
  std::printf("%s: %lld of %lld agree with the CPU; %s\n", findings.check.c_str(),
              static_cast<long long>(findings.num_passed),
              static_cast<long long>(findings.num_compared), findings.detail.c_str());
}

int run(const Arguments& arguments, Findings (*check)(const CheckOptions&)) {
  CheckOptions options;
  options.device = Device::parse(arguments.device);
  options.size = arguments.size == "small"  ? CallSize::kSmall
                 : arguments.size == "wide" ? CallSize::kWide
                                            : CallSize::kAll;
  options.every = std::max<std::int64_t>(1, arguments.every);
  options.only = arguments.only;
  options.spoil = arguments.spoil;
  const Clock& clock = Clock::system();
  const TimePoint begin = clock.now();
  const Findings findings = check(options);
  if (arguments.json) {
    Json report = findings.json();
    report.set("device", arguments.device).set("seconds", seconds_between(begin, clock.now()));
    std::printf("%s\n", report.dump().c_str());
  } else {
    print(findings);
  }
  return findings.passed() ? 0 : 1;
}

}  // namespace
}  // namespace tutti::device_check

int main(int argc, char** argv) {
  using namespace tutti::device_check;
  Arguments arguments;
  tutti::Flags flags("Compares a device with the CPU; exit code 1 if they differ");
  const auto declare = [&](tutti::Flags& command) { arguments.declare(command); };
  flags.add_command("ops", "every operation and element type", declare,
                    [&] { return run(arguments, check_ops); });
  flags.add_command("gradients", "gradients that a tape computes", declare,
                    [&] { return run(arguments, check_gradients); });
  flags.add_command("optimizers", "steps of every optimizer", declare,
                    [&] { return run(arguments, check_optimizers); });
  try {
    return flags.parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_check: %s\n", error.what());
    return 2;
  }
}
