// Times MPI_Allreduce in place, which sums one float32 buffer per process.
// SPDX-License-Identifier: Apache-2.0
//
// mpirun -np 2 mpi_all_reduce NAME FIRST LAST (sizes from FIRST to LAST bytes, each 4 times the
// previous one). A barrier precedes each call. A call's time is that of the slowest process; the
// result is the median of all calls.
#include <mpi.h>

#include "benchmarks/all_reduce/call_plan.h"

namespace {

using namespace tutti::benchmarks;

double time_of(std::vector<float>& data, int count, int calls) {
  std::vector<double> times;
  for (int i = 0; i < calls + calls / 10 + 2; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - begin;
    double slowest = 0.0;
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= calls / 10 + 2) times.push_back(slowest);
  }
  return median(times);
}

bool is_right(std::vector<float>& data, int count, int rank, int num_ranks) {
  std::fill_n(data.begin(), count, static_cast<float>(rank + 1));
  MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  const float expected = static_cast<float>(num_ranks * (num_ranks + 1)) / 2.0f;
  const bool right = std::all_of(data.begin(), data.begin() + count,
                                 [&](float value) { return value == expected; });
  std::fill_n(data.begin(), count, 0.0f);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, num_ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  const std::vector<std::size_t> sizes = sizes_from(argc, argv, 2);
  if (sizes.empty()) {
    if (rank == 0) std::fprintf(stderr, "usage: mpi_all_reduce NAME FIRST LAST\n");
    MPI_Finalize();
    return 2;
  }
  std::vector<float> data(sizes.back() / sizeof(float));
  for (const std::size_t size : sizes) {
    const int count = static_cast<int>(size / sizeof(float));
    const bool right = is_right(data, count, rank, num_ranks);
    const double seconds = time_of(data, count, num_calls(size));
    if (rank == 0) report(argv[1], size, seconds, right);
  }
  MPI_Finalize();
  return 0;
}
