// The operators that write JPEGs, as torch sees them.
#include <torch/csrc/stable/library.h>

#include <cstring>
#include <tuple>

#include "decode.h"
#include "index.h"
#include "tensors.h"
#include "trim.h"

namespace custom_op {
namespace {

Tensor to_tensor(const std::vector<uint8_t>& bytes) {
  const std::array<int64_t, 1> shape{static_cast<int64_t>(bytes.size())};
  Tensor tensor = torch::stable::empty(shape, ScalarType::Byte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Tensor add_restart_markers(Tensor data, int64_t interval, int64_t max_pixels) {
  const Bytes jpeg = jpeg_bytes(data);
  try {
    return to_tensor(with_restart_markers(jpeg, interval, max_pixels));
  } catch (const NotIndexable& error) {
    // The Python side knows the error by these words.
    refuse(std::string("not indexable: ") + error.what());
  }
}

std::tuple<Tensor, int64_t, int64_t> trim_jpeg(Tensor data, int64_t top, int64_t left,
                                               int64_t height, int64_t width) {
  thread_local RegionDecoder decoder;
  decoder.open(jpeg_bytes(data), INT64_MAX);
  const Trimmed trimmed = decoder.trim({top, left, height, width});
  return {to_tensor(trimmed.jpeg), trimmed.top, trimmed.left};
}

}  // namespace
}  // namespace custom_op

STABLE_TORCH_LIBRARY_FRAGMENT(custom_op, m) {
  m.def("add_restart_markers(Tensor data, int interval, *, int max_pixels) -> Tensor");
  m.def(
      "trim_jpeg(Tensor data, int top, int left, int height, int width) -> "
      "(Tensor, SymInt, SymInt)");
}

STABLE_TORCH_LIBRARY_IMPL(custom_op, CPU, m) {
  m.impl("add_restart_markers", TORCH_BOX(&custom_op::add_restart_markers));
  m.impl("trim_jpeg", TORCH_BOX(&custom_op::trim_jpeg));
}
