// Registers all operators but the decoding of batches.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstring>

#include "binding/tensors.h"
#include "pixels/decode.h"
#include "to_baseline.h"

namespace custom_op {
namespace {

RegionDecoder& thread_decoder() {
  thread_local RegionDecoder decoder;
  return decoder;
}

class RowsInto final : public RowSink {
 public:
  RowsInto(uint8_t* out, size_t row_bytes) : out_(out), row_bytes_(row_bytes) {}
  void begin() override { next_ = out_; }
  uint8_t* next() override { return next_; }
  void written() override { next_ += row_bytes_; }

 private:
  uint8_t* out_;
  size_t row_bytes_;
  uint8_t* next_ = nullptr;
};

Tensor decode_and_crop_jpeg(Tensor data, int64_t crop_y, int64_t crop_x, int64_t crop_height,
                            int64_t crop_width, std::optional<Tensor> index, int64_t max_pixels) {
  RegionDecoder& decoder = thread_decoder();
  decoder.open(jpeg_bytes(data), max_pixels, index ? jpeg_bytes(*index, "index") : Bytes{});
  const Box box{crop_y, crop_x, crop_height, crop_width};
  decoder.check(box);
  const std::array<int64_t, 3> shape{crop_height, crop_width, 3};
  Tensor pixels = torch::stable::empty(shape, ScalarType::Byte);
  RowsInto sink(static_cast<uint8_t*>(pixels.mutable_data_ptr()),
                static_cast<size_t>(crop_width) * 3);
  decoder.decode(box, sink);
  // The stable ABI has no permute before torch 2.14.
  return torch::stable::transpose(torch::stable::transpose(pixels, 0, 2), 1, 2);
}

Tensor jpeg_headers(std::vector<Tensor> jpegs, bool mask_errors) {
  const std::vector<Bytes> images = jpegs_bytes(jpegs);
  const std::array<int64_t, 2> shape{static_cast<int64_t>(images.size()), 3};
  Tensor headers = torch::stable::empty(shape, ScalarType::Long);
  auto* row = static_cast<int64_t*>(headers.mutable_data_ptr());
  RegionDecoder& decoder = thread_decoder();
  for (const Bytes& jpeg : images) {
    std::array<int64_t, 3> values{};
    try {
      decoder.open(jpeg, INT64_MAX);
      values = {decoder.height(), decoder.width(), decoder.orientation()};
    } catch (const JpegError&) {
      if (!mask_errors) throw;
    }
    row = std::copy(values.begin(), values.end(), row);
  }
  return headers;
}

Tensor to_tensor(const std::vector<uint8_t>& bytes) {
  const std::array<int64_t, 1> shape{static_cast<int64_t>(bytes.size())};
  Tensor tensor = torch::stable::empty(shape, ScalarType::Byte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Tensor index_jpeg(Tensor data, double max_share, int64_t max_pixels) {
  RegionDecoder& decoder = thread_decoder();
  decoder.open(jpeg_bytes(data), max_pixels);
  decoder.record_side_index(max_share);
  return to_tensor(decoder.finish_side_index());
}

Tensor rewrite_as_baseline(Tensor data, int64_t max_pixels) {
  return to_tensor(to_baseline(jpeg_bytes(data), max_pixels));
}

}  // namespace
}  // namespace custom_op

STABLE_TORCH_LIBRARY(custom_op, m) {
  m.def(
      "decode_and_crop_jpeg(Tensor data, int crop_y, int crop_x, int crop_height, int crop_width, "
      "*, Tensor? index, int max_pixels) -> Tensor");
  m.def("index_jpeg(Tensor data, *, float max_share, int max_pixels) -> Tensor");
  m.def("jpeg_headers(Tensor[] jpegs, *, bool mask_errors) -> Tensor");
  m.def("to_baseline(Tensor data, *, int max_pixels) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(custom_op, CPU, m) {
  m.impl("decode_and_crop_jpeg", TORCH_BOX(&custom_op::decode_and_crop_jpeg));
  m.impl("jpeg_headers", TORCH_BOX(&custom_op::jpeg_headers));
  m.impl("index_jpeg", TORCH_BOX(&custom_op::index_jpeg));
  m.impl("to_baseline", TORCH_BOX(&custom_op::rewrite_as_baseline));
}
