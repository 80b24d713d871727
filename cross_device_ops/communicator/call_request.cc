// What a rank can see of a wrong call before it asks the others; widening, aligning and dividing
// around an engine's call.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/communicator/call_request.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "cross_device_ops/buffer_call.h"

namespace tutti::internal {

namespace {

class Checker {
 public:
  Checker(const CallRequest& request, int rank, int size)
      : request_(request), rank_(rank), size_(static_cast<std::size_t>(size)) {}

  void check() const {
    if (request_.options.compression && request_.collective != Collective::kAllReduce) {
      wrong("expected no compression but in all_reduce, got ", *request_.options.compression);
    }
    switch (request_.collective) {
      case Collective::kAllReduce:
        return check_all_reduce();
      case Collective::kReduce:
        return check_reduce();
      case Collective::kBroadcast:
        return check_root();
      case Collective::kAllGather:
        return check_all_gather();
      case Collective::kReduceScatter:
        return check_reduce_scatter();
      case Collective::kAllToAll:
        return check_all_to_all();
      case Collective::kBarrier:
        return;
    }
  }

 private:
  template <class... Parts>
  [[noreturn, gnu::cold, gnu::noinline]] void wrong(const Parts&... parts) const {
    fail(ErrorCode::kInvalidArgument, beginning_of_refusal(request_, rank_), parts...);
  }

  void check_dtypes() const {
    const DType dtype = request_.dtype;
    const auto check = [&](const auto& elements) {
      if (elements.dtype != dtype) {
        wrong("buffers of one call have one type; expected ", dtype, ", got ", elements.dtype);
      }
      if (elements.data == nullptr && elements.count > 0) {
        wrong("expected memory for ", elements.count, " elements, got a null pointer");
      }
    };
    std::ranges::for_each(request_.inputs, check);
    std::ranges::for_each(request_.outputs, check);
  }

  void check_op() const {
    const DType dtype = request_.inputs.front().dtype;
    if (dtype == DType::kBool && request_.op != ReduceOp::kMin && request_.op != ReduceOp::kMax) {
      wrong("bool has MIN and MAX only, got ", request_.op, "; try uint8");
    }
    if (request_.op == ReduceOp::kMean && !is_floating(dtype)) {
      wrong("MEAN needs a floating type, got ", dtype, "; try SUM, or convert first");
    }
  }

  void check_root() const {
    check_dtypes();
    if (request_.root < 0 || static_cast<std::size_t>(request_.root) >= size_) {
      wrong("expected a root from 0 to ", size_ - 1, ", got ", request_.root);
    }
  }

  void check_output_count(std::size_t expected) const {
    if (request_.outputs.front().count != expected) {
      wrong("expected an output of ", expected, " elements, got ", request_.outputs.front().count);
    }
  }

  // `in_place`: the input lies inside the output, or the output inside the input, where it may.
  void require_disjoint(const ConstElements& a, const ConstElements& b, bool in_place) const {
    const std::less<const std::byte*> before;
    if (a.count == 0 || b.count == 0 || in_place) return;
    if (before(a.data, b.data + b.num_bytes()) && before(b.data, a.data + a.num_bytes())) {
      wrong("input and output overlap; expected the same memory where the call can work in place, ",
            "or separate memory");
    }
  }

  void check_all_reduce() const {
    if (request_.inputs.empty()) wrong("expected a buffer, got none");
    check_dtypes();
    check_op();
    check_compression();
    const Elements* out = request_.outputs.data();
    for (const ConstElements& in : request_.inputs) check_pair(in, *out++);
  }

  void check_pair(const ConstElements& in, const Elements& out) const {
    if (in.count != out.count) {
      wrong("expected an output of ", in.count, " elements, got ", out.count);
    }
    require_disjoint(in, out, in.data == out.data);
  }

  void check_compression() const {
    const std::optional<DType>& compression = request_.options.compression;
    if (!compression) return;
    const DType dtype = request_.inputs.front().dtype;
    const bool adds = request_.op == ReduceOp::kSum || request_.op == ReduceOp::kMean;
    if (!is_half(*compression) || dtype != DType::kFloat32 || !adds) {
      wrong("compression is for SUM and MEAN of float32 in bfloat16 or float16; got ", request_.op,
            " of ", dtype, " in ", *compression);
    }
  }

  void check_reduce() const {
    check_root();
    check_op();
    if (rank_ != request_.root) return;
    const ConstElements& in = request_.inputs.front();
    check_output_count(in.count);
    require_disjoint(in, request_.outputs.front(), in.data == request_.outputs.front().data);
  }

  std::size_t sum_of(std::span<const std::size_t> counts, std::string_view what) const {
    if (counts.size() != size_) {
      wrong("expected ", size_, " ", what, ", one per rank, got ", counts.size());
    }
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  }

  std::size_t part_begin() const {
    const auto end = request_.counts.begin() + rank_;
    return std::accumulate(request_.counts.begin(), end, std::size_t{0});
  }

  void check_all_gather() const {
    check_dtypes();
    const ConstElements& in = request_.inputs.front();
    const Elements& out = request_.outputs.front();
    check_output_count(sum_of(request_.counts, "counts"));
    if (in.count != request_.counts[static_cast<std::size_t>(rank_)]) {
      wrong("expected an input of counts[", rank_,
            "] = ", request_.counts[static_cast<std::size_t>(rank_)], " elements, got ", in.count);
    }
    require_disjoint(in, out, in.data == out.data + part_begin() * size_of(out.dtype));
  }

  void check_reduce_scatter() const {
    check_dtypes();
    check_op();
    const ConstElements& in = request_.inputs.front();
    const Elements& out = request_.outputs.front();
    if (in.count != sum_of(request_.counts, "counts")) {
      wrong("expected an input of ", sum_of(request_.counts, "counts"),
            " elements, the sum of counts (without counts: a multiple of ", size_, "), got ",
            in.count);
    }
    check_output_count(request_.counts[static_cast<std::size_t>(rank_)]);
    require_disjoint(in, out, out.data == in.data + part_begin() * size_of(in.dtype));
  }

  void check_all_to_all() const {
    check_dtypes();
    const ConstElements& in = request_.inputs.front();
    if (in.count != sum_of(request_.counts, "send counts")) {
      wrong("expected an input of ", sum_of(request_.counts, "send counts"),
            " elements, the sum of the counts (without counts: a multiple of ", size_, "), got ",
            in.count);
    }
    check_output_count(sum_of(request_.receive_counts, "receive counts"));
    require_disjoint(in, request_.outputs.front(), false);
  }

  const CallRequest& request_;
  const int rank_;
  const std::size_t size_;
};

}  // namespace

std::string beginning_of_refusal(const CallRequest& request, int rank) {
  const std::string_view name = request.options.name;
  return concat("rank ", rank, ": ", to_string(request.collective),
                name.empty() ? "" : concat(" '", name, "'"), ": ");
}

void check_request(const CallRequest& request, int rank, int size) {
  Checker(request, rank, size).check();
}

namespace {

template <class AnyElements>
bool are_aligned(std::span<const AnyElements> list, DType dtype) {
  const std::uintptr_t low_bits = size_of(dtype) - 1;  // sizes are powers of two
  return std::ranges::none_of(list, [&](const AnyElements& elements) {
    return (reinterpret_cast<std::uintptr_t>(elements.data) & low_bits) != 0;
  });
}

}  // namespace

std::optional<Error> refusal_of(const CallRequest& request, const CollectiveEngine& engine) {
  const std::optional<DType>& wire = request.options.compression;
  if (!wire || engine.supports(request.collective, ReduceOp::kSum, *wire)) return std::nullopt;
  return Error(ErrorCode::kUnimplemented,
               concat("rank ", engine.rank(), ": ", engine.name(), ": adds ", *wire,
                      " in several steps, which would round each time; try canonical, or no "
                      "compression"));
}

PreparedCall::PreparedCall(const CallRequest& request, const CollectiveEngine& engine)
    : request_(request), engine_(engine), call_(request) {
  if (!combines(request.collective)) return;
  if (request.op == ReduceOp::kMean) call_.op = ReduceOp::kSum;
  if (const std::optional<DType>& wire = request.options.compression) {
    copy_as(*wire);
    return;
  }
  const bool widens =
      is_half(call_.dtype) &&
      (request.op == ReduceOp::kMean || !engine.supports(call_.collective, call_.op, call_.dtype));
  const bool is_list = request.outputs.size() > 1 && !engine.takes_lists();
  const bool aligned =
      are_aligned(request.inputs, call_.dtype) &&
      (!request_.has_result(engine_.rank()) || are_aligned(request.outputs, call_.dtype));
  if (widens || is_list || !aligned) copy_as(widens ? DType::kFloat32 : call_.dtype);
}

void PreparedCall::copy_as(DType dtype) {
  const bool in_place = request_.collective != Collective::kReduceScatter;
  const std::size_t num_results = in_place ? call_.count : request_.outputs.front().count;
  const std::size_t num_elements = call_.count + (in_place ? 0 : num_results);
  copy_ = BufferRef::allocate(num_elements * size_of(dtype));
  std::byte* place = copy_->data();
  for (const ConstElements& from : request_.inputs) {
    const Elements to(place, from.count, dtype);
    convert(buffer_of(from), buffer_of(to));
    place += to.num_bytes();
  }
  input_ = {copy_->data(), call_.count, dtype};
  output_ = {in_place ? copy_->data() : place, num_results, dtype};
  call_.dtype = dtype;
  call_.inputs = {&input_, 1};
  call_.outputs = {&output_, 1};
}

void PreparedCall::finish_results() {
  if (!combines(request_.collective) || !request_.has_result(engine_.rank())) return;
  // A compressed sum has been rounded by its call; the quotient is not rounded again.
  const bool divides_last = request_.options.compression.has_value();
  const auto divide_if = [&](bool is_time, const Elements& elements) {
    if (!is_time || request_.op != ReduceOp::kMean) return;
    divide(buffer_of(elements), static_cast<std::size_t>(engine_.size()));
  };
  std::size_t offset = 0;  // in bytes, of the copy
  for (const Elements& output : request_.outputs) {
    Elements result = output;
    if (copy_) result = {output_.data + offset, output.count, output_.dtype};
    divide_if(!divides_last, result);
    if (copy_) convert(buffer_of(result), buffer_of(output));
    divide_if(divides_last, output);
    offset += result.num_bytes();
  }
}

}  // namespace tutti::internal
