// Maximum and average pooling and their gradients.
// SPDX-License-Identifier: Apache-2.0
//
// cuDNN is not used, because its pooling pads both sides equally, does not define the gradient of
// tied maxima (tutti's goes to the first maximum), and needs the result to compute the gradient.
// Gradients are computed by gathering: each pixel adds up the gradients of the windows that contain
// it, without atomics.
#include "tensor/cuda/elements.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

/// Sizes of images [height, width, channels] and of the pooled images. Channels are counted in
/// packs.
struct Geometry {
  int height, width, out_height, out_width, packs;
  int window_h, window_w, stride_h, stride_w, pad_top, pad_left;
};

/// Interval [begin, end) along one dimension.
struct Range {
  int begin, end;
  __device__ int size() const { return end - begin; }
};

/// Returns the pixels of window `index` that are inside the image.
__device__ Range pixels_of(int index, int stride, int window, int pad, int extent) {
  const int begin = index * stride - pad;
  return {begin > 0 ? begin : 0, begin + window < extent ? begin + window : extent};
}

/// Returns the windows that contain pixel `index`.
__device__ Range windows_of(int index, int stride, int window, int pad, int out_extent) {
  const int last = (index + pad) / stride;
  const int before = index + pad - window;  // a window that starts at `before` excludes the pixel
  const int begin = before < 0 ? 0 : before / stride + 1;
  return {begin, last + 1 < out_extent ? last + 1 : out_extent};
}

/// Coordinates of element `index` of an array [images, height, width, packs].
struct Place {
  __device__ Place(std::uint32_t index, int height, int width, int packs) {
    const auto depth = static_cast<std::uint32_t>(packs);
    pack = static_cast<int>(index % depth);
    index /= depth;
    column = static_cast<int>(index % static_cast<std::uint32_t>(width));
    index /= static_cast<std::uint32_t>(width);
    row = static_cast<int>(index % static_cast<std::uint32_t>(height));
    image = index / static_cast<std::uint32_t>(height);
  }
  int pack, column, row;
  std::uint32_t image;
};

__device__ std::uint32_t index_of(std::uint32_t image, int row, int column, int pack, int height,
                                  int width, int packs) {
  return ((image * static_cast<std::uint32_t>(height) + static_cast<std::uint32_t>(row)) *
              static_cast<std::uint32_t>(width) +
          static_cast<std::uint32_t>(column)) *
             static_cast<std::uint32_t>(packs) +
         static_cast<std::uint32_t>(pack);
}

/// Writes the largest element of each window to y, and the index of its pixel (row * width +
/// column) to `where`; skips an output that is nullptr. The first of equal elements wins; NaN
/// counts as the largest value.
template <class T, int N>
__global__ void max_pool(const Pack<T, N>* x, Pack<T, N>* y, Pack<int, N>* where, Geometry g,
                         std::uint32_t count) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    const Place place(i, g.out_height, g.out_width, g.packs);
    const Range rows = pixels_of(place.row, g.stride_h, g.window_h, g.pad_top, g.height);
    const Range columns = pixels_of(place.column, g.stride_w, g.window_w, g.pad_left, g.width);
    Pack<T, N> best{};
    Pack<int, N> best_pixel{};
    bool is_first = true;
    for (int h = rows.begin; h < rows.end; ++h) {
      for (int w = columns.begin; w < columns.end; ++w) {
        const Pack<T, N> values =
            x[index_of(place.image, h, w, place.pack, g.height, g.width, g.packs)];
        for (int j = 0; j < N; ++j) {
          const Number<T> value = number(values.elements[j]), top = number(best.elements[j]);
          if (is_first || (top == top && !(value <= top))) {
            best.elements[j] = values.elements[j];
            best_pixel.elements[j] = h * g.width + w;
          }
        }
        is_first = false;
      }
    }
    if (y != nullptr) y[i] = best;
    if (where != nullptr) where[i] = best_pixel;
  }
}

template <class T, int N>
__global__ void max_pool_gradient(const Pack<T, N>* dy, const Pack<int, N>* where, Pack<T, N>* dx,
                                  Geometry g, std::uint32_t count) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    const Place place(i, g.height, g.width, g.packs);
    const Range rows = windows_of(place.row, g.stride_h, g.window_h, g.pad_top, g.out_height);
    const Range columns = windows_of(place.column, g.stride_w, g.window_w, g.pad_left, g.out_width);
    const int pixel = place.row * g.width + place.column;
    Number<T> sums[N] = {};
    for (int h = rows.begin; h < rows.end; ++h) {
      for (int w = columns.begin; w < columns.end; ++w) {
        const std::uint32_t at =
            index_of(place.image, h, w, place.pack, g.out_height, g.out_width, g.packs);
        const Pack<int, N> pixels = where[at];
        const Pack<T, N> gradients = dy[at];
        for (int j = 0; j < N; ++j) {
          if (pixels.elements[j] == pixel) sums[j] += number(gradients.elements[j]);
        }
      }
    }
    Pack<T, N> result;
    for (int j = 0; j < N; ++j) result.elements[j] = element<T>(sums[j]);
    dx[i] = result;
  }
}

template <class T, int N>
__global__ void average_pool(const Pack<T, N>* x, Pack<T, N>* y, Geometry g, std::uint32_t count) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    const Place place(i, g.out_height, g.out_width, g.packs);
    const Range rows = pixels_of(place.row, g.stride_h, g.window_h, g.pad_top, g.height);
    const Range columns = pixels_of(place.column, g.stride_w, g.window_w, g.pad_left, g.width);
    Number<T> sums[N] = {};
    for (int h = rows.begin; h < rows.end; ++h) {
      for (int w = columns.begin; w < columns.end; ++w) {
        const Pack<T, N> values =
            x[index_of(place.image, h, w, place.pack, g.height, g.width, g.packs)];
        for (int j = 0; j < N; ++j) sums[j] += number(values.elements[j]);
      }
    }
    Pack<T, N> result;
    const auto size = static_cast<Number<T>>(rows.size() * columns.size());
    for (int j = 0; j < N; ++j) result.elements[j] = element<T>(sums[j] / size);
    y[i] = result;
  }
}

template <class T, int N>
__global__ void average_pool_gradient(const Pack<T, N>* dy, Pack<T, N>* dx, Geometry g,
                                      std::uint32_t count) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    const Place place(i, g.height, g.width, g.packs);
    const Range rows = windows_of(place.row, g.stride_h, g.window_h, g.pad_top, g.out_height);
    const Range columns = windows_of(place.column, g.stride_w, g.window_w, g.pad_left, g.out_width);
    Number<T> sums[N] = {};
    for (int h = rows.begin; h < rows.end; ++h) {
      const Range window_rows = pixels_of(h, g.stride_h, g.window_h, g.pad_top, g.height);
      for (int w = columns.begin; w < columns.end; ++w) {
        const Range window_columns = pixels_of(w, g.stride_w, g.window_w, g.pad_left, g.width);
        const auto size = static_cast<Number<T>>(window_rows.size() * window_columns.size());
        const Pack<T, N> gradients =
            dy[index_of(place.image, h, w, place.pack, g.out_height, g.out_width, g.packs)];
        for (int j = 0; j < N; ++j) sums[j] += number(gradients.elements[j]) / size;
      }
    }
    Pack<T, N> result;
    for (int j = 0; j < N; ++j) result.elements[j] = element<T>(sums[j]);
    dx[i] = result;
  }
}

/// Range of images whose elements can be counted in 32 bits.
struct Part {
  std::int64_t first_input, first_output;  // number of elements before these images
  std::int64_t inputs, outputs;            // number of packs in these images
  std::uint32_t num_inputs() const { return static_cast<std::uint32_t>(inputs); }
  std::uint32_t num_outputs() const { return static_cast<std::uint32_t>(outputs); }
};

/// Calls body(geometry, part) for parts that together cover all images of a tensor [images, height,
/// width, channels].
template <int N, class Body>
void for_each_part(const Shape& x, const Shape& y, const Pool2dAttributes& a, const Body& body) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 30;
  const auto narrow_int = [](std::int64_t value) { return static_cast<int>(value); };
  const std::int64_t input = x[1] * x[2] * x[3], output = y[1] * y[2] * y[3];
  if (std::max({input, output, a.window_h * a.window_w}) > kLimit) {
    fail(ErrorCode::kUnimplemented, "pooling: expected images of at most ", kLimit,
         " elements, got ", x);
  }
  const Geometry geometry{narrow_int(x[1]),       narrow_int(x[2]),       narrow_int(y[1]),
                          narrow_int(y[2]),       narrow_int(x[3] / N),   narrow_int(a.window_h),
                          narrow_int(a.window_w), narrow_int(a.stride_h), narrow_int(a.stride_w),
                          narrow_int(a.pad_top),  narrow_int(a.pad_left)};
  const std::int64_t images_of_part = kLimit / std::max(input, output);
  for (std::int64_t image = 0; image < x[0]; image += images_of_part) {
    const std::int64_t images = std::min(images_of_part, x[0] - image);
    body(geometry, Part{image * input, image * output, images * input / N, images * output / N});
  }
}

template <class T, int N>
Pack<T, N>* packs(const DeviceTensor& tensor, std::int64_t first) {
  return reinterpret_cast<Pack<T, N>*>(static_cast<T*>(tensor.data) + first);
}

template <class T, int N>
void run_max_pool(const KernelCall& call) {
  for_each_part<N>(call.inputs[0].shape, call.outputs[0].shape,
                   call.attributes_as<Pool2dAttributes>(), [&](const Geometry& g, const Part& p) {
                     launch(max_pool<T, N>, blocks_for(p.num_outputs()), kThreads, call.stream,
                            packs<T, N>(call.inputs[0], p.first_input),
                            packs<T, N>(call.outputs[0], p.first_output),
                            static_cast<Pack<int, N>*>(nullptr), g, p.num_outputs());
                   });
}

template <class T, int N>
void run_max_pool_gradient(const KernelCall& call) {
  for_each_part<N>(call.inputs[0].shape, call.inputs[1].shape,
                   call.attributes_as<Pool2dAttributes>(), [&](const Geometry& g, const Part& p) {
                     auto* const where = static_cast<Pack<int, N>*>(call.workspace.allocate(
                         static_cast<std::size_t>(p.outputs + 1) * sizeof(Pack<int, N>)));
                     launch(max_pool<T, N>, blocks_for(p.num_outputs()), kThreads, call.stream,
                            packs<T, N>(call.inputs[0], p.first_input),
                            static_cast<Pack<T, N>*>(nullptr), where, g, p.num_outputs());
                     launch(max_pool_gradient<T, N>, blocks_for(p.num_inputs()), kThreads,
                            call.stream, packs<T, N>(call.inputs[1], p.first_output), where,
                            packs<T, N>(call.outputs[0], p.first_input), g, p.num_inputs());
                   });
}

template <class T, int N>
void run_average_pool(const KernelCall& call) {
  for_each_part<N>(call.inputs[0].shape, call.outputs[0].shape,
                   call.attributes_as<Pool2dAttributes>(), [&](const Geometry& g, const Part& p) {
                     launch(average_pool<T, N>, blocks_for(p.num_outputs()), kThreads, call.stream,
                            packs<T, N>(call.inputs[0], p.first_input),
                            packs<T, N>(call.outputs[0], p.first_output), g, p.num_outputs());
                   });
}

template <class T, int N>
void run_average_pool_gradient(const KernelCall& call) {
  for_each_part<N>(call.outputs[0].shape, call.inputs[0].shape,
                   call.attributes_as<Pool2dAttributes>(), [&](const Geometry& g, const Part& p) {
                     launch(average_pool_gradient<T, N>, blocks_for(p.num_inputs()), kThreads,
                            call.stream, packs<T, N>(call.inputs[0], p.first_output),
                            packs<T, N>(call.outputs[0], p.first_input), g, p.num_inputs());
                   });
}

/// Calls `packed` if all tensors can be accessed in packs, otherwise `single`.
template <class T, Kernel packed, Kernel single>
void choose(const KernelCall& call) {
  if (call.outputs[0].shape.num_elements() == 0) return;
  const std::int64_t channels = call.outputs[0].shape.dim(-1);
  const bool fits = can_pack<T, kFewOf<T>>(channels, call.inputs[0].data, call.inputs.back().data,
                                           call.outputs[0].data);
  fits ? packed(call) : single(call);
}

template <class T>
void register_for(KernelTable& table) {
  constexpr int kN = kFewOf<T>;
  table.set(OpId::kMaxPool, dtype_of<T>(), choose<T, run_max_pool<T, kN>, run_max_pool<T, 1>>);
  table.set(OpId::kMaxPoolGrad, dtype_of<T>(),
            choose<T, run_max_pool_gradient<T, kN>, run_max_pool_gradient<T, 1>>);
  table.set(OpId::kAveragePool, dtype_of<T>(),
            choose<T, run_average_pool<T, kN>, run_average_pool<T, 1>>);
  table.set(OpId::kAveragePoolGrad, dtype_of<T>(),
            choose<T, run_average_pool_gradient<T, kN>, run_average_pool_gradient<T, 1>>);
}

}  // namespace

void register_pooling_kernels(KernelTable& table) {
  register_for<float>(table);
  register_for<double>(table);
  register_for<BFloat16>(table);
  register_for<Float16>(table);
}

}  // namespace tutti::cuda
