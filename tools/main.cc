// The program `tutti` and its sub-commands.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "benchmarks/tutti_bench/bench_command.h"
#include "tools/commands.h"
#include "tools/launch/child_process.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"
#include "tutti/core/flags.h"

namespace {

int run(int argc, char** argv) {
  using namespace tutti::tools;
  tutti::Flags flags("tutti: checks machines, builds and clusters, and runs distributed training.");
  bool json = false;
  const auto format = [&] { return json ? OutputFormat::kJson : OutputFormat::kText; };
  const auto declare = [&](tutti::Flags& command) {
    command.add("--json", json, "print one JSON object");
  };
  std::string virtual_gpus;
  const auto declare_devices = [&](tutti::Flags& command) {
    declare(command);
    command.add("--virtual-gpus", virtual_gpus,
                "virtual GPUs per GPU: 4, or 4:512 for 512 MiB each");
  };
  flags.add_command("devices", "list the devices of this machine", declare_devices,
                    [&] { return devices_command(format(), virtual_gpus); });
  std::string data_dir;
  const auto declare_doctor = [&](tutti::Flags& command) {
    declare(command);
    command.add("--data-dir", data_dir, "folder of Fashion-MNIST; default: search known folders");
  };
  flags.add_command("doctor", "check this build and this machine", declare_doctor,
                    [&] { return doctor_command(format(), data_dir); });
  std::string resolver = "auto";
  const auto declare_cluster = [&](tutti::Flags& command) {
    declare(command);
    command.add(
        "--resolver", resolver,
        tutti::concat("resolver, one of: ", tutti::join(tutti::registered_cluster_resolvers())));
  };
  flags.add_command("cluster", "show the tasks of the cluster and mark the task of this process",
                    declare_cluster, [&] { return cluster_command(format(), resolver); });
  ConformOptions conform;
  const auto declare_conform = [&](tutti::Flags& command) {
    declare(command);
    command.add("NAME", conform.name, "registered name of the operation; optional with --plugin");
    command.add("--plugin", conform.plugin, "shared library that registers an operation");
    command.add("--plugin-options", conform.plugin_options,
                "options of the operation, such as k=0.01,name=value");
    command.add_choice(
        "--shape", conform.shape, {"local", "spread", "threads", "all"},
        "group: one object for all replicas (local), or threads that exchange messages (spread) or "
        "share memory (threads)");
    command.add("--sample", conform.sample, "approximate number of cases, chosen by seed; 0: all");
    command.add("--seed", conform.seed, "seed of the values and of the sample");
    command.add("--budget", conform.budget,
                "seconds after which no further case starts; 0: no limit");
    command.add("--limit", conform.limit, "time limit per case in seconds; 0: no limit");
    command.add("--case", conform.case_id, "run only the case with this id, which reports print");
    command.add("--devices", conform.devices,
                "devices of the buffers, such as gpu:0-1; default: CPUs");
  };
  flags.add_command("conform", "check a cross-device operation against the conformance kit",
                    declare_conform, [&] {
                      conform.format = format();
                      return conform_command(conform);
                    });
  tutti::bench::BenchFlags bench;
  const auto declare_bench = [&](tutti::Flags& command) {
    command.add_command(
        "all_reduce",
        "measure sums of gradients, with the columns of nccl-tests and a lower bound (floor)",
        [&](tutti::Flags& all_reduce) { bench.declare_all_reduce(all_reduce); },
        [&] { return tutti::bench::bench_all_reduce_command(bench); });
  };
  flags.add_command("bench", "measure sums of gradients", declare_bench, [] { return 2; });
  CkptOptions ckpt;
  const auto declare_ckpt_flags = [&](tutti::Flags& command) {
    declare(command);
    command.add("DIR", ckpt.path,
                "folder of a run, folder of one checkpoint, or a safetensors file");
  };
  const auto add_ckpt = [&](tutti::Flags& command, const char* name, const char* help, auto body) {
    command.add_command(name, help, declare_ckpt_flags, [&, body] {
      ckpt.format = format();
      return body(ckpt);
    });
  };
  const auto declare_ckpt = [&](tutti::Flags& command) {
    add_ckpt(command, "list", "list the checkpoints", checkpoint_list_command);
    add_ckpt(command, "verify", "read every byte and compare checksums", checkpoint_verify_command);
    command.add_command(
        "show", "show the contents of a checkpoint, by default the newest",
        [&](tutti::Flags& show) {
          declare_ckpt_flags(show);
          show.add("--step", ckpt.step, "step of the checkpoint; default: the newest checkpoint");
        },
        [&] {
          ckpt.format = format();
          return checkpoint_show_command(ckpt);
        });
  };
  flags.add_command("ckpt", "list, verify or show checkpoints", declare_ckpt, [] { return 2; });
  RunFlags run_flags;
  flags.add_command(
      "run", "run a program in several processes on this machine",
      [&](tutti::Flags& command) { run_flags.declare(command); },
      [&] { return run_command(run_flags); });
  if (const int error = run_flags.take_program(argc, argv)) return error;
  return flags.parse(argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  tutti::launch::open_standard_streams();
  try {
    return run(argc, argv);
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 1;
  }
}
