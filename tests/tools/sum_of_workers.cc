// Program for tests of launchers: finds its rank, joins the other workers, and sums their numbers.
// SPDX-License-Identifier: Apache-2.0
//
// sum_of_workers [DIES]: writes "worker 1 of 3: sum 6 in job ID". The worker with the name DIES,
// such as "worker 1", kills itself before the sum, but only in its first process.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "cluster/worker_group.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"

namespace {

void die_once(const std::string& name, int argc, char** argv) {
  const char* const restarts = std::getenv("TUTTI_RESTART");
  if (argc < 2 || name != argv[1] || (restarts && std::string(restarts) != "0")) return;
  ::raise(SIGKILL);
}

void add_up(int argc, char** argv) {
  const auto resolver = tutti::resolver_from_environment();
  tutti::WorkerGroupOptions options;
  options.join_timeout = std::chrono::seconds(60);
  const auto group = tutti::WorkerGroup::join(*resolver, options);
  const std::string name = group->name_of(group->worker());
  die_once(name, argc, argv);
  const auto communicator = group->make_communicator();
  float sum = static_cast<float>(group->worker() + 1);
  communicator->all_reduce(tutti::ReduceOp::kSum, tutti::Elements(std::span(&sum, 1)));
  const char* const job = std::getenv("TUTTI_JOB_ID");
  std::printf("%s of %d: sum %g in job %s\n", name.c_str(), group->num_workers(), sum,
              job ? job : resolver->job_id().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    add_up(argc, argv);
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "sum_of_workers: %s\n", error.what());
    return 1;
  }
}
